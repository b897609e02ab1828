"""State backends, which keep bytes and write local files. They never access storage."""
