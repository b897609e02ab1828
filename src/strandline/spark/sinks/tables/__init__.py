"""Table formats: data files that tasks write, and that a transaction of the table lists once a checkpoint is published.

`sink.py` is what they have in common: the record of how far a sink came, in the table itself, claims, and what becomes
of files that nobody lists. `delta.py` and `iceberg.py` say how each format does it. `datafiles.py` runs in the tasks.
"""
