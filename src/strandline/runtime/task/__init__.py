"""Runs the user's function on one operator partition: events in, output out."""
