"""What all parts share: interfaces, timers and tasks, access rights, settings, metrics, records of a log."""
