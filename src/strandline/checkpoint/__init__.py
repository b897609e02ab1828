"""Checkpoints: coordinate, upload, restore, collect garbage, verify."""
