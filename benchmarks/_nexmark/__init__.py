"""Nexmark: its events, its queries as Strandline programs, as Spark's streaming SQL, and their right answers."""
