"""Repeats epochs of a job in one process: the same rows, times and state, with a debugger where something happens."""
