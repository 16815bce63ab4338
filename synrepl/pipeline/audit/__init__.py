"""Audits: whether an archive is what its manifests say, what its daemon has, and whole."""
