"""Object stores, which hold checkpoints."""
