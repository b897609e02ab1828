"""Spark's types in Python: tree, DDL, values, columns, order and hash. Needs no JVM."""
