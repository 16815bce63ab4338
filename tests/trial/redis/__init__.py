"""Links to real Redis servers."""
