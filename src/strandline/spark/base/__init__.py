"""The basis of the Spark layer: sessions, types, expressions, plans, file systems and errors."""
