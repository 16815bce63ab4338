"""The doctor: finds and repairs problems with the streams in a database."""
