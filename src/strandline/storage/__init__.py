"""Objects: what checkpoints are kept in."""
