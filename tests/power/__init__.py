"""Power cuts: every state that a disk may be found in, after which what was acknowledged must be there."""
