"""Daemons that follow tables, writers of these tables, and a homeserver that is looked at: in processes."""
