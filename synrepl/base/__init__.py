"""What all parts share: interfaces, timers and tasks, access rights, settings, metrics, notes of a log."""
