"""Tests of the test kit itself, as the author of a worker uses it."""
