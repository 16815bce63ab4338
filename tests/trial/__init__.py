"""Tests that need the real reactor. Run by trial: python -m twisted.trial tests.trial."""
