"""State with a TTL: lifetimes, handles that hide expired entries, and the cleaning that deletes them."""
