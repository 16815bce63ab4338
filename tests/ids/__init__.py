"""The room of ids: generators, writers and their invalidations."""
