"""How a running job is reached from other processes of its user, on its driver's machine. Knows nothing of Spark."""
