"""The process that owns one operator partition: protocol, epochs, snapshots and uploads."""
