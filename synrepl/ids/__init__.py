"""Ids for streams in a database: their reservation, completion and positions."""
