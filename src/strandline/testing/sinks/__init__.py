"""Checks for the sinks and targets of your own: the ones that the built-in sinks pass."""
