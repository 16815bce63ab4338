"""Generators of ids as a homeserver has them."""
