"""Reads a snapshot as tables: by range, by key, with SQL."""
