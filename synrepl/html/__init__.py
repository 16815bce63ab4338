"""What people are shown: HTML in small pieces, and numbers, times and names as they read them."""
