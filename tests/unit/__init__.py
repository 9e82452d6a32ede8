"""Tests that start no processes."""
