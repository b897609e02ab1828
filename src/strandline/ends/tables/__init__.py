"""Data files of table formats, and the columns that they hold."""
