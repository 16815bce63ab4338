"""Roles of a daemon: primary, replica or fenced, and the transitions between them."""
