"""The native dialect: what only two synrepl daemons say to each other."""
