"""Windows at work: a user's function, or all of a window's events."""
