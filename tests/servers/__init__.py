"""Real servers of other programs, each private to the test that starts it."""
