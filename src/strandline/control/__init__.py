"""Access to a running job from other processes of its user, on its driver's machine. Does not depend on Spark."""
