"""Streams, with which programs build the graph of a pipeline, and the sources that streams begin with."""
