"""The follower's side of a stream: receive, fetch what is missing, apply in order."""
