"""HTTP: appends, changelog, rows, files, status and metrics.

`server` makes the site, `client` has clients of one. Importing either installs no reactor.
"""
