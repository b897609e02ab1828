"""Operators of windows with a user's function: of each event, or of all of a window's events."""
