"""State as typed rows, and back: columns, keys, Parquet files, and a codec for each kind of state."""
