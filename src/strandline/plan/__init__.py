"""A pipeline as data: what a program says, checked without an engine. Jobs run it on Spark, tests in the harness."""
