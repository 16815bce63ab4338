"""Tests of the log and of what it is kept in."""
