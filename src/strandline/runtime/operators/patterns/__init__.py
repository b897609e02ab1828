"""Patterns of rows, as MATCH_RECOGNIZE has them: pattern, conditions, and the search for matches in sorted rows."""
