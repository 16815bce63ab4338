"""Worlds end with their test, as those of replication do."""

from tests.replication.conftest import _clusters_end  # noqa: F401  # a fixture for every test here
