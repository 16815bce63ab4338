"""Streams whose facts are the rows of a homeserver's own tables."""
