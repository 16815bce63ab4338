"""The follower's side of a stream: receives facts, fetches missing ones, applies them in order."""
