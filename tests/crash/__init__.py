"""Death at every effect: each statement and each file operation of a small scenario, one after another."""
