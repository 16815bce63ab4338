"""This process on a channel that many processes share, as those of Synapse do on Redis."""
