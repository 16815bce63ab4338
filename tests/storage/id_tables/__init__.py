"""The tables of a homeserver in which ids come from sequences."""
