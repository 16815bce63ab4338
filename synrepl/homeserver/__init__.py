"""The inspection of a live homeserver: what is written, what is announced, and what each process received."""
