"""Watch: live events of a log as JSON lines: gaps, stalled writers and hot caches."""
