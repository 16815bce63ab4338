"""Backups: what an upstream sends to a replica, recorded in the files of a folder, and read again."""
