"""The data pipeline on Spark: streams, jobs, sinks. The only layer that imports pyspark."""
