"""HTTP: the way in for facts, the way out for pages of them, and what is known about this daemon.

`server` makes the site, `client` speaks to one. Importing either installs no reactor.
"""
