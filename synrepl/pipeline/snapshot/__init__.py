"""Snapshots: what of an archive is still true, without all that was replaced since."""
