"""State as tables, for Spark."""
