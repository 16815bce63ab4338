"""The RESP listener: Synapse's processes use this daemon in place of a Redis."""
