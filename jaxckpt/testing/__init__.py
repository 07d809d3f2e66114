"""Fakes, contract suites and strategies, for this project's tests and for those who add a Store."""
