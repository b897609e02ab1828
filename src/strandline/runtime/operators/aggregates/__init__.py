"""Built-in aggregates at work: accumulators as Arrow columns, merged as such."""
