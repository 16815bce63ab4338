"""The native dialect."""
