"""Tests of the daemon and its settings."""
