"""Audits: check an archive against its manifests, for missing facts, and against its daemon."""
