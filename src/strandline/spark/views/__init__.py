"""Stream SQL: queries that Spark analyses and optimises, and that are kept up to date on epochs."""
