"""State written from DataFrames: savepoints that a job begins with."""
