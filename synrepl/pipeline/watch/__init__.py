"""Watching a daemon's log: what is missing, who fell silent, and what is dropped most, as lines of JSON."""
