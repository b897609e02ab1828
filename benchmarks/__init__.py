"""Benchmarks: `make bench NAME=keyed_counter`, or `python -m benchmarks.keyed_counter --help`.

Standard output holds one JSON object a line and nothing else; progress goes to standard error.
"""
