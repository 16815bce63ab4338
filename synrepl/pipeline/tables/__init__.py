"""Tables of an archive that answer common questions, kept up to date by the job `tables`."""
