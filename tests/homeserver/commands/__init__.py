"""The commands that look at a homeserver."""
