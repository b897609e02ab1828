"""The operators of views: each turns the exact changes of its inputs in an epoch into those of its result."""
