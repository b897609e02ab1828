"""Opens, lists, verifies and deletes snapshots wherever they lie; decides what a job starts from."""
