"""The process that owns one operator partition: conversation, snapshots and uploads, its end."""
