"""The tests: `unit/` start no processes, `ranks/` start several. A package, so that ranks can import its tasks."""
