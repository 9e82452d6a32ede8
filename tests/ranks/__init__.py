"""Tests that run whole experiments on one or several processes."""
