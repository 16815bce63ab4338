"""Files over HTTP on the real reactor."""
