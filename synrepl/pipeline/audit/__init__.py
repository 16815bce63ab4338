"""Audits: check an archive for damaged files, for missing facts, and against its daemon."""
