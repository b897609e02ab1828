"""PostgreSQL as a target: COPY and merge, with the record in a table of the same database."""
