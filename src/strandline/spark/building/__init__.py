"""Writes state from DataFrames to savepoints that a job starts from."""
