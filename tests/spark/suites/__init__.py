"""Suites of SQL that others wrote, as data: fetched, never part of this repository. docs/sql-suites.md has the results."""
