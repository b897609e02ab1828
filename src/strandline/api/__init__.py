"""State declarations, process functions, windows, aggregates and job options: the classes that users write."""
