"""One operator partition, without Spark: tables of state, the task that runs the user's function, the keeper."""
