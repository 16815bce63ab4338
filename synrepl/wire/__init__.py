"""The wire protocol: commands, dialects, sessions. Sans I/O, without Twisted."""
