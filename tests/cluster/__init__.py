"""Tests over several nodes, which are network namespaces of this machine."""
