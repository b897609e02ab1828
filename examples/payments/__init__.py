"""Card payments and fraud alerts: a job with state per card, what it must give by plain Python, and a dashboard.

`model` holds the records and the fraud rules' numbers, `generator` makes payments, `files` writes them as a stream of
files, `detector` finds fraud as a `strandline.KeyedProcess` in the job of `job`, and `oracle` finds the same in plain
Python. `dashboard` and `server` are the page of `make demo`, on what `monitor`, `books` and `audit` know.
"""
