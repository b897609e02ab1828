"""Sinks that write into the tables of databases, exactly once: PostgreSQL, and SQLite where there is no server."""
