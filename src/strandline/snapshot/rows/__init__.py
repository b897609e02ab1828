"""State as typed rows: columns, keys, Parquet files, and a codec for each kind of state."""
