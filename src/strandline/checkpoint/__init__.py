"""Checkpoints: coordination, upload, restore, garbage collection, verification."""
