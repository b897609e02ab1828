"""Writes savepoints: of a checkpoint (`take.py`), or of rows in any order (`builder.py`)."""
