"""The wire: commands, dialects, sessions. Without input or output, and without Twisted."""
