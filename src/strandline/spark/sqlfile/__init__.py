"""Programs that are SQL files: statements that declare sources, views and sinks, and the job that they make.

`text.py`, `tokens.py`, `statements.py`, `cursor.py`, `columns.py` and `parser.py` read a file; Spark itself analyses
the queries in it. `program.py` has the declarations by name, `options.py` checks options against the parameters of the
functions that get them, `build.py` makes streams, views, sinks and the job, and `preview.py` answers a query without a
job.
"""
