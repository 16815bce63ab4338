"""A soak: a primary, two replicas, the RESP port and many followers, for as long as you like, in pieces."""
