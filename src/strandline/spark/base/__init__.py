"""What the rest of the Spark layer stands on: sessions, names and types as DDL, hidden columns, file systems."""
