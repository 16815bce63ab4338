"""The daemon: its parts, built from the settings, started and stopped in order."""
