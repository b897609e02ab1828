"""Streams: what a program is written with, and the graph of steps that it makes."""
