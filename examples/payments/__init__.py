"""Card payments and fraud alerts: a seeded generator, a process function with state per card, and a batch oracle.

`model` holds the records and the fraud rules' numbers, `generator` makes payments, `files` writes them as a stream of
files, `detector` finds fraud as a `strandline.KeyedProcess`, and `oracle` finds the same in plain Python.
"""
