"""Events in, output out: the user's function at work on one operator partition."""
