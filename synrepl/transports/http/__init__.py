"""HTTP: appends, changelog, rows, files, status and metrics.

`server` makes the site of a daemon, `client` has clients of it. Importing either installs no reactor.
"""
