"""Sources: which can be read again, how far they are, and what becomes of files that are not needed any more."""
