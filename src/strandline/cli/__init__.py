"""The `strandline` command. Only its `run` imports Spark: everything else starts in moments."""
