"""Files that facts refer to by checksum: store, index of names, fetching, and integrity checks."""
