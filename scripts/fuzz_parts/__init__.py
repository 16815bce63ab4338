"""What `scripts/fuzz` is made of."""
