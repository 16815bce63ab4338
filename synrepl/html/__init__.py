"""Templates, and readable numbers, times and names, for the status page and reports."""
