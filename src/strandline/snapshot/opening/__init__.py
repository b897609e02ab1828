"""Opens, lists, verifies and deletes snapshots in any folder; decides what a job starts from."""
