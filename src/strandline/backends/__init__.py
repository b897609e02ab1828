"""State backends: bytes in, local files out. They never touch storage."""
