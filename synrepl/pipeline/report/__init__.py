"""Report on an archive: one HTML page, with plots and tables as files."""
