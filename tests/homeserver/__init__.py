"""The inspection of a homeserver."""
