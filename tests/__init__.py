"""Tests of synrepl; docs/howto/contribute.md says how they are run."""
