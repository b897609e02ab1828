"""Spark's types in Python: their tree and DDL, values, columns, order and hash. Needs no JVM."""
