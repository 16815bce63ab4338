"""The doctor: finds and repairs problems with a log, and with the ids of streams, in a database."""
