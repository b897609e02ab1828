"""Queries that are refused: the whole message of each, with the place in the text that the user wrote."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import strandline as sl
from strandline.core.errors import IncompatibleStateError
from strandline.core.ids import CheckpointId, Epoch, Generation
from strandline.format.manifest import Manifest
from strandline.plan.parallelism import Parallelism
from strandline.plan.pipeline import Pipeline
from strandline.spark.job.compat import check_compatible
from tests.mistakes.table import Mistake, Stage, mistake

_TABLES = {
    "orders": "id bigint, room string, v double, at timestamp",
    "rates": "room string, rate double, at timestamp",
}
QUERIES = """
## an unknown column
SELECT idd FROM orders
=>
the query is refused by Spark: A column, variable, or function parameter with name `idd` cannot be resolved
  line 1, column 8:
    SELECT idd FROM orders
           ^
  next step: did you mean `id`, `v`, `at`, `room`?

## an unknown column in the third line
SELECT room,
       TUMBLE_END(at, INTERVAL '1' HOUR),
       nope
FROM orders GROUP BY TUMBLE(at, INTERVAL '1' HOUR), room
=>
the query is refused by Spark: A column, variable, or function parameter with name `nope` cannot be resolved
  line 3, column 8:
           nope
           ^
  next step: did you mean `window`, `orders`.`v`, `orders`.`at`, `orders`.`id`, `orders`.`room`?

## an unknown column of time
SELECT * FROM TABLE(TUMBLE(TABLE orders, DESCRIPTOR(att), INTERVAL '1' HOUR))
=>
the query is refused by Spark: A column, variable, or function parameter with name `att` cannot be resolved
  line 1, column 53:
    SELECT * FROM TABLE(TUMBLE(TABLE orders, DESCRIPTOR(att), INTERVAL '1' HOUR))
                                                        ^
  next step: did you mean `at`, `v`, `id`, `room`?

## an unknown table
SELECT * FROM ordrs, rates
=>
there is no table 'ordrs': did you mean 'orders'?
  line 1, column 15:
    SELECT * FROM ordrs, rates
                  ^
  next step: sql() was given orders, rates; give it this one by its name, or create it in the Spark session

## an unknown table behind a window
SELECT * FROM TABLE(HOP(TABLE ordr, DESCRIPTOR(at), INTERVAL '1' HOUR, INTERVAL '1' HOUR))
=>
there is no table 'ordr': did you mean 'orders'?
  line 1, column 31:
    SELECT * FROM TABLE(HOP(TABLE ordr, DESCRIPTOR(at), INTERVAL '1' HOUR, INTERVAL '1' HOUR))
                                  ^
  next step: sql() was given orders, rates; give it this one by its name, or create it in the Spark session

## an unknown alias
SELECT o.id FROM orders WHERE o.id > 1
=>
the query is refused by Spark: A column, variable, or function parameter with name `o`.`id` cannot be resolved
  line 1, column 31:
    SELECT o.id FROM orders WHERE o.id > 1
                                  ^
  next step: did you mean `orders`.`id`, `orders`.`v`, `orders`.`at`, `orders`.`room`?

## an unknown function
SELECT date_trunk('hour', at) FROM orders
=>
the query is refused by Spark: Cannot resolve routine `date_trunk`: did you mean 'date_trunc'?
  line 1, column 8:
    SELECT date_trunk('hour', at) FROM orders
           ^

## a column of two tables
SELECT room FROM orders o JOIN rates r ON o.room = r.room
=>
the query is refused by Spark: Reference `room` is ambiguous, could be: [`o`.`room`, `r`.`room`]
  line 1, column 8:
    SELECT room FROM orders o JOIN rates r ON o.room = r.room
           ^

## USING a column that is on one side
SELECT * FROM orders JOIN rates USING (rate)
=>
the query is refused by Spark: USING column `rate` cannot be resolved on the left side of the join. The left-side columns: [`at`, `id`, `room`, `v`]
  line 1, column 40:
    SELECT * FROM orders JOIN rates USING (rate)
                                           ^

## a query that ends too early
SELECT room, count(*) FROM orders
GROUP BY
=>
the query is refused by Spark: Syntax error at or near 'BY': extra input 'BY'
  line 2, column 7:
    GROUP BY
          ^

## a quote without an end
SELECT 'abc FROM orders
=>
the query is refused by Spark: Syntax error at or near '''
  line 1, column 8:
    SELECT 'abc FROM orders
           ^

## a column that is not grouped
SELECT id, count(*) FROM orders GROUP BY room
=>
the query is refused by Spark: The non-aggregating expression "id" is based on columns which are not participating in the GROUP BY clause
  line 1, column 8:
    SELECT id, count(*) FROM orders GROUP BY room
           ^
  next step: add the columns or the expression to the GROUP BY, aggregate the expression, or use "any_value(id)" if you do not care which of the values within a group is returned

## an aggregate in WHERE
SELECT id FROM orders WHERE sum(v) > 1
=>
the query is refused by Spark: The WHERE condition "(sum(v) > 1)" contains invalid expressions: sum(orders.v)
  line 1, column 29:
    SELECT id FROM orders WHERE sum(v) > 1
                                ^
  next step: rewrite the query to avoid window functions, aggregate functions, and generator functions in the WHERE clause

## a condition that is a text
SELECT * FROM orders WHERE room
=>
the query is refused by Spark: Cannot resolve "room" due to data type mismatch: Filter expression "room" of type "STRING" is not a boolean
  line 1, column 28:
    SELECT * FROM orders WHERE room
                               ^

## a text that is no number
SELECT * FROM orders WHERE id = 'x'
=>
the query is refused by Spark: The value 'x' of the type "STRING" cannot be cast to "BIGINT" because it is malformed
  line 1, column 28:
    SELECT * FROM orders WHERE id = 'x'
                               ^
  next step: correct the value as per the syntax, or change its target type; use `try_cast` to tolerate malformed input and return NULL instead

## a sum of a number and a time
SELECT id + at FROM orders
=>
the query is refused by Spark: Cannot resolve "(id + at)" due to data type mismatch: the left and right operands of the binary operator have incompatible types ("BIGINT" and "TIMESTAMP")
  line 1, column 8:
    SELECT id + at FROM orders
           ^

## UNION of other columns
SELECT id FROM orders UNION SELECT room, rate FROM rates
=>
the query is refused by Spark: UNION can only be performed on inputs with the same number of columns, but the first input has 1 columns and the second input has 2 columns
  line 1, column 23:
    SELECT id FROM orders UNION SELECT room, rate FROM rates
                          ^

## a function of windows without OVER
SELECT id, ntile(4) FROM orders
=>
the query is refused by Spark: Window function "ntile(4)" requires an OVER clause
  line 1, column 12:
    SELECT id, ntile(4) FROM orders
               ^

## CHAR without a length
SELECT cast(id AS CHAR) FROM orders
=>
the query is refused by Spark: DataType "CHAR" requires a length parameter, for example "CHAR"(10)
  line 1, column 19:
    SELECT cast(id AS CHAR) FROM orders
                      ^
  next step: specify the length

## a division by zero
SELECT 1 / 0 FROM orders
=>
the query is refused by Spark: Division by zero
  line 1, column 8:
    SELECT 1 / 0 FROM orders
           ^
  next step: use `try_divide` to tolerate divisor being 0 and return NULL instead

## a random number
SELECT id, rand() AS r FROM orders
=>
the query has rand(), which is not the same each time: a row could not be taken back as it was given
  line 1, column 12:
    SELECT id, rand() AS r FROM orders
               ^
  next step: compute it before, as a column of the stream; or use a hash of the row's columns

## a random number beside an aggregate
SELECT room, sum(v) + rand() FROM orders GROUP BY room
=>
the query has rand(), which is not the same each time: a row could not be taken back as it was given
  line 1, column 23:
    SELECT room, sum(v) + rand() FROM orders GROUP BY room
                          ^
  next step: compute it before, as a column of the stream; or use a hash of the row's columns

## the present time
SELECT id FROM orders WHERE at > now()
=>
the query has the present time, as now() or current_date(): it would be the start's for ever
  line 1, column 34:
    SELECT id FROM orders WHERE at > now()
                                     ^
  next step: compare times of the rows with each other; or add the time of arrival as a column of the stream

## a function of the session that looks like a column
SELECT room, max(user) AS last FROM orders GROUP BY room
=>
the query has current_user(), a function of Spark's session: it would be the start's for ever
  line 1, column 18:
    SELECT room, max(user) AS last FROM orders GROUP BY room
                     ^
  next step: write its value; if a column of this name was meant, no table of the query has it

## ORDER BY without LIMIT
SELECT *
FROM orders
ORDER BY at
=>
the query has ORDER BY without LIMIT: a result that changes has no order
  line 3, column 1:
    ORDER BY at
    ^
  next step: leave ORDER BY out and sort where you read; or add LIMIT n for the first n rows

## LIMIT without ORDER BY
SELECT * FROM (SELECT * FROM orders LIMIT 3) JOIN rates USING (room)
=>
the query has LIMIT without ORDER BY: which rows they are is not defined, and would change
  line 1, column 37:
    SELECT * FROM (SELECT * FROM orders LIMIT 3) JOIN rates USING (room)
                                        ^
  next step: add ORDER BY; if any row will do, aggregate with any_value()

## a sample
SELECT * FROM orders TABLESAMPLE (10 PERCENT)
=>
the query has TABLESAMPLE: each epoch would draw other rows
  line 1, column 22:
    SELECT * FROM orders TABLESAMPLE (10 PERCENT)
                         ^
  next step: filter by a hash: WHERE abs(hash(id)) % 10 = 0

## a recursive query
WITH RECURSIVE x(n) AS (SELECT id FROM orders UNION ALL SELECT n + 1 FROM x WHERE n < 5) SELECT * FROM x
=>
the query has WITH RECURSIVE over a stream: it cannot be kept up to date
  next step: write the query without it

## a subquery in a join's condition
SELECT * FROM orders o JOIN rates r ON o.v > r.rate + (SELECT max(id) FROM orders)
=>
the query has a scalar subquery in the condition of a join: Spark does not say of which side it is
  line 1, column 55:
    SELECT * FROM orders o JOIN rates r ON o.v > r.rate + (SELECT max(id) FROM orders)
                                                          ^
  next step: write it in WHERE

## a statement
DROP TABLE orders
=>
sql() was given a statement that begins with DROP, expected a query
  line 1, column 1:
    DROP TABLE orders
    ^
  next step: give it a SELECT; spark.sql() executes other statements

## an INSERT behind WITH
WITH x AS (SELECT id FROM orders) INSERT INTO y SELECT * FROM x
=>
sql() was given a statement that begins with INSERT, expected a query
  line 1, column 35:
    WITH x AS (SELECT id FROM orders) INSERT INTO y SELECT * FROM x
                                      ^
  next step: give it a SELECT; spark.sql() executes other statements

## a window of a month
SELECT count(*) FROM orders GROUP BY TUMBLE(at, INTERVAL '1' MONTH)
=>
INTERVAL '1' MONTH is no length of a window: a month has no fixed length
  line 1, column 49:
    SELECT count(*) FROM orders GROUP BY TUMBLE(at, INTERVAL '1' MONTH)
                                                    ^
  next step: write INTERVAL '10' MINUTES; a window is a fixed number of days, hours, minutes or seconds long

## a window whose length is a number
SELECT * FROM tumble(orders, at, 3600)
=>
3600 is no length of a window: it is no literal of an interval
  line 1, column 34:
    SELECT * FROM tumble(orders, at, 3600)
                                     ^
  next step: write INTERVAL '10' MINUTES; a window is a fixed number of days, hours, minutes or seconds long

## a window of no length
SELECT * FROM hop(orders, at, INTERVAL '0 minutes', INTERVAL '1 hour')
=>
HOP: a window is longer than 0
  line 1, column 31:
    SELECT * FROM hop(orders, at, INTERVAL '0 minutes', INTERVAL '1 hour')
                                  ^
  next step: write a longer one

## the end of another window
SELECT TUMBLE_END(at, INTERVAL '2' HOURS) FROM orders GROUP BY TUMBLE(at, INTERVAL '1' HOUR)
=>
TUMBLE_END(…): GROUP BY has another window
  line 1, column 8:
    SELECT TUMBLE_END(at, INTERVAL '2' HOURS) FROM orders GROUP BY TUMBLE(at, INTERVAL '1' HOUR)
           ^
  next step: write GROUP BY TUMBLE(…) with the same arguments, in the same SELECT

## a time of processing
SELECT HOP_PROCTIME(at, INTERVAL '1' HOUR, INTERVAL '1' HOUR) FROM orders GROUP BY HOP(at, INTERVAL '1' HOUR, INTERVAL '1' HOUR)
=>
HOP_PROCTIME(…): a view has no time of processing, since a restart would give other results
  line 1, column 8:
    SELECT HOP_PROCTIME(at, INTERVAL '1' HOUR, INTERVAL '1' HOUR) FROM orders GROUP BY HOP(at, INTERVAL
           ^
  next step: write HOP_END(…) of a column with the events' time

## two windows
SELECT count(*) FROM orders GROUP BY TUMBLE(at, INTERVAL '1' HOUR), SESSION(at, INTERVAL '1' HOUR)
=>
the query groups by two windows: each row would be in all pairs of them
  line 1, column 69:
    SELECT count(*) FROM orders GROUP BY TUMBLE(at, INTERVAL '1' HOUR), SESSION(at, INTERVAL '1' HOUR)
                                                                        ^
  next step: group by one window in a SELECT, and join the results

## a slide after the size
SELECT * FROM TABLE(HOP(TABLE orders, DESCRIPTOR(at), INTERVAL '1' HOUR, INTERVAL '5' MINUTES))
=>
HOP: windows of 5 minutes, one each 1 hour, would leave rows out
  line 1, column 74:
    SELECT * FROM TABLE(HOP(TABLE orders, DESCRIPTOR(at), INTERVAL '1' HOUR, INTERVAL '5' MINUTES))
                                                                             ^
  next step: write the slide first, then the size

## a step that does not fit
SELECT * FROM TABLE(CUMULATE(TABLE orders, DESCRIPTOR(at), INTERVAL '7' MINUTES, INTERVAL '1' HOUR))
=>
CUMULATE: 1 hour is no multiple of 7 minutes
  line 1, column 82:
    SELECT * FROM TABLE(CUMULATE(TABLE orders, DESCRIPTOR(at), INTERVAL '7' MINUTES, INTERVAL '1' HOUR))
                                                                                     ^
  next step: write the step first, then the size, a multiple of it

## a computed time of a window
SELECT * FROM TABLE(TUMBLE(TABLE orders, DESCRIPTOR(date(at)), INTERVAL '1' HOUR))
=>
the time of a window is the name of a column
  line 1, column 53:
    SELECT * FROM TABLE(TUMBLE(TABLE orders, DESCRIPTOR(date(at)), INTERVAL '1' HOUR))
                                                        ^
  next step: compute it in a query before: WITH t AS (SELECT …)

## PARTITION BY of a tumbling window
SELECT * FROM TABLE(TUMBLE(TABLE orders PARTITION BY room, DESCRIPTOR(at), INTERVAL '1' HOUR))
=>
PARTITION BY in TUMBLE(…): its windows are the same for all rows
  line 1, column 41:
    SELECT * FROM TABLE(TUMBLE(TABLE orders PARTITION BY room, DESCRIPTOR(at), INTERVAL '1' HOUR))
                                            ^
  next step: leave it out, and GROUP BY the columns

## sessions of a subquery
SELECT * FROM TABLE(SESSION((SELECT * FROM orders), DESCRIPTOR(at), INTERVAL '1' HOUR))
=>
SESSION(…) of rows that have no name
  line 1, column 29:
    SELECT * FROM TABLE(SESSION((SELECT * FROM orders), DESCRIPTOR(at), INTERVAL '1' HOUR))
                                ^
  next step: name them before: WITH t AS (SELECT …), and write TABLE t

## an argument with another name
SELECT * FROM TABLE(TUMBLE(TABLE orders, DESCRIPTOR(at), GAP => INTERVAL '1' HOUR))
=>
TUMBLE(…) has 3 arguments, expected DATA, TIMECOL, SIZE, [OFFSET]
  line 1, column 21:
    SELECT * FROM TABLE(TUMBLE(TABLE orders, DESCRIPTOR(at), GAP => INTERVAL '1' HOUR))
                        ^
  next step: write GROUP BY TUMBLE(at, INTERVAL '1' HOUR), or FROM TABLE(TUMBLE(TABLE t, DESCRIPTOR(at), INTERVAL '1' HOUR))

## a temporal join
SELECT * FROM orders o JOIN rates FOR SYSTEM_TIME AS OF o.at AS r ON o.room = r.room
=>
FOR SYSTEM_TIME AS OF a column: the table does not say since when each of its rows is valid
  line 1, column 35:
    SELECT * FROM orders o JOIN rates FOR SYSTEM_TIME AS OF o.at AS r ON o.room = r.room
                                      ^
  next step: its stream needs watermark("at"), and sl.table order_by="at"; or name the column: o LEFT ASOF JOIN r MATCH_CONDITION (o.at >= r.at) ON o.currency = r.currency

## a hint of state without pairs
SELECT /*+ STATE_TTL('1 day') */ count(*) AS n FROM orders
=>
STATE_TTL has no pairs of a table and a duration
  line 1, column 12:
    SELECT /*+ STATE_TTL('1 day') */ count(*) AS n FROM orders
               ^
  next step: write /*+ STATE_TTL('orders'='1 day', 'c'='30 days') */, with names or aliases of tables

## a hint of state for a duration that is none
SELECT /*+ STATE_TTL('orders'='long') */ count(*) AS n FROM orders
=>
STATE_TTL is 'long', expected a duration
  line 1, column 32:
    SELECT /*+ STATE_TTL('orders'='long') */ count(*) AS n FROM orders
                                   ^

## a hint of state that is kept for no time
SELECT /*+ STATE_TTL('o'='0s') */ count(*) AS n FROM orders o
=>
STATE_TTL is '0s', expected more than 0 and at most 100 years
  line 1, column 27:
    SELECT /*+ STATE_TTL('o'='0s') */ count(*) AS n FROM orders o
                              ^
  next step: leave it out for state that is kept for ever

## a hint of state for a table that the query has not
SELECT /*+ STATE_TTL('order'='1 day') */ count(*) AS n FROM orders o
=>
STATE_TTL is of 'order', which is no table of the query, and no alias
  line 1, column 23:
    SELECT /*+ STATE_TTL('order'='1 day') */ count(*) AS n FROM orders o
                          ^
  next step: it has o, orders

## a look-up join
SELECT * FROM orders o JOIN rates FOR SYSTEM_TIME AS OF PROCTIME() AS r ON o.room = r.room
=>
FOR SYSTEM_TIME AS OF the time of processing: after a restart, rows would be joined with others
  line 1, column 35:
    SELECT * FROM orders o JOIN rates FOR SYSTEM_TIME AS OF PROCTIME() AS r ON o.room = r.room
                                      ^
  next step: leave it out: a join is kept up to date with the newest rows; or join as of a column with ASOF JOIN

## an ASOF join without times
SELECT * FROM orders o ASOF JOIN rates r ON o.room = r.room
=>
ASOF JOIN has 0 comparisons of times in ON, expected one
  line 1, column 42:
    SELECT * FROM orders o ASOF JOIN rates r ON o.room = r.room
                                             ^
  next step: write ON o.currency = r.currency AND o.at >= r.at

## an ASOF join by what is not equal
SELECT * FROM orders o ASOF JOIN rates r MATCH_CONDITION (o.at >= r.at) ON o.v < r.rate
=>
the query has an ASOF JOIN ON (o.v < r.rate), expected columns of both sides that are equal
  line 1, column 76:
    SELECT * FROM orders o ASOF JOIN rates r MATCH_CONDITION (o.at >= r.at) ON o.v < r.rate
                                                                               ^
  next step: select the rows before, in a subquery, or after it, in WHERE

## matches of rows without a watermark
SELECT * FROM orders MATCH_RECOGNIZE (ORDER BY at MEASURES A.id AS id PATTERN (A B))
=>
MATCH_RECOGNIZE: ORDER BY at, which has no watermark: when the rows before one are all there is not known
  line 1, column 48:
    SELECT * FROM orders MATCH_RECOGNIZE (ORDER BY at MEASURES A.id AS id PATTERN (A B))
                                                   ^
  next step: give its stream one, .watermark("at", "10 s"), or write the column that has one first

## all rows of a match
SELECT * FROM orders MATCH_RECOGNIZE (ORDER BY at ALL ROWS PER MATCH PATTERN (A B))
=>
ALL ROWS PER MATCH: a match gives one row here
  line 1, column 51:
    SELECT * FROM orders MATCH_RECOGNIZE (ORDER BY at ALL ROWS PER MATCH PATTERN (A B))
                                                      ^
  next step: leave it out, and join the matches with the table: … ON t.k = m.k AND t.at BETWEEN m.first AND m.last

## a pattern of no rows
SELECT * FROM orders MATCH_RECOGNIZE (ORDER BY at PATTERN (A* B?))
=>
the pattern matches no row at all, too, and such a match has no place among the rows
  line 1, column 59:
    SELECT * FROM orders MATCH_RECOGNIZE (ORDER BY at PATTERN (A* B?))
                                                              ^
  next step: have a variable that takes a row: A+ in place of A*

## a condition of a variable that no pattern has
SELECT * FROM orders MATCH_RECOGNIZE (ORDER BY at PATTERN (A B) DEFINE C AS v > 1)
=>
DEFINE C: the pattern has no such variable
  line 1, column 72:
    SELECT * FROM orders MATCH_RECOGNIZE (ORDER BY at PATTERN (A B) DEFINE C AS v > 1)
                                                                           ^
  next step: it has A, B

## matches of a table with an alias in front
SELECT * FROM orders o MATCH_RECOGNIZE (ORDER BY at PATTERN (A B))
=>
MATCH_RECOGNIZE stands directly behind a table, or behind a query in parentheses
  line 1, column 24:
    SELECT * FROM orders o MATCH_RECOGNIZE (ORDER BY at PATTERN (A B))
                           ^
  next step: write the alias behind it: FROM t MATCH_RECOGNIZE (…) AS m

## what Spark's optimizer fails at
SELECT string_agg(DISTINCT room, ',') WITHIN GROUP (ORDER BY room) AS rooms, count(DISTINCT id) AS n FROM orders
=>
Spark's optimizer fails at the query: ClassCastException: class AttributeReference cannot be cast to class SortOrder
  next step: spark.sql() fails at it as well: write it otherwise

## DISTINCT ON without an order
SELECT DISTINCT ON (room) * FROM orders
=>
DISTINCT ON: which row of each is not defined without ORDER BY
  line 1, column 8:
    SELECT DISTINCT ON (room) * FROM orders
           ^
  next step: write QUALIFY row_number() OVER (PARTITION BY … ORDER BY …) = 1

## DISTINCT ON in the order of a number
SELECT DISTINCT ON (room) * FROM orders ORDER BY 1
=>
DISTINCT ON: ORDER BY the number of a column
  line 1, column 50:
    SELECT DISTINCT ON (room) * FROM orders ORDER BY 1
                                                     ^
  next step: write the column's name
"""
"""After ## the name of the mistake, then the query, and after => what is said."""


def table(stage: Stage, name: str) -> Any:
    """Return a stream."""
    schema = stage.spark.createDataFrame([], _TABLES[name]).schema
    return sl.files_source(stage.directory, schema=schema, format="parquet", name=name, spark=stage.spark)


def refused(text: str) -> Mistake:
    """Return the mistake of a query over those tables that it names, or over all if it names another one."""
    name, rest = text.split("\n", 1)
    query, message = rest.split("\n=>\n")
    names = [*_TABLES] if re.search(r"\bordrs?\b", query) else [each for each in _TABLES if each in query]

    def write(stage: Stage) -> None:
        sl.sql(query, **{each: table(stage, each) for each in names})

    return mistake(name, "declaration", write, message.strip("\n"))


def given(name: str, query: str, names: dict[str, str], *said: str) -> Mistake:
    """Return the mistake of a query with tables by these names."""
    return mistake(
        name, "declaration", lambda s: sl.sql(query, **{each: table(s, of) for each, of in names.items()}), *said
    )


def into(name: str, query: str, make: Callable[[], Any], *said: str) -> Mistake:
    """Return the mistake of a query over orders whose view does not go into a sink."""

    def write(stage: Stage) -> None:
        sl.sql(query, orders=table(stage, "orders")).to(make())

    return mistake(name, "declaration", write, *said)


def of_match(name: str, condition: str, *said: str) -> Mistake:
    """Return the mistake of a condition of MATCH_RECOGNIZE."""
    query = (
        f"SELECT * FROM orders MATCH_RECOGNIZE (ORDER BY at MEASURES A.id AS id PATTERN (A B)\nDEFINE B AS {condition})"
    )

    def write(stage: Stage) -> None:
        sl.sql(query, orders=table(stage, "orders").watermark("at"))

    return mistake(name, "declaration", write, *said)


_TOTALS = "SELECT room, count(*) AS n FROM orders GROUP BY room"
_KAFKA = partial(sl.sinks.kafka, "one:9092", "totals")


def pinned(name: str, query: str, *said: str) -> Mistake:
    """Return the mistake of a query with a uid."""
    return mistake(name, "declaration", lambda s: sl.sql(query, uid="totals", orders=table(s, "orders")), *said)


def changed(name: str, before: str, now: str, *said: str, uid: str = "", **more: Any) -> Mistake:
    """Return the mistake of a view that is started where another query has left its state."""

    def program(stage: Stage) -> None:
        old, new = (
            Pipeline([sl.sql(query, uid=uid, orders=table(stage, "orders")).changes()._node]).settle(
                Parallelism(default=2)
            )
            for query in (before, now)
        )
        manifest = Manifest(
            job="j", generation=Generation(1), checkpoint=CheckpointId(17), epoch=Epoch(5), mode="full", created_ms=0,
            engine_version="1", life="l", operators=[operator.info("rocksdb") for operator in old],
        )  # fmt: skip
        stage.place = "start"
        check_compatible(manifest, new, {}, [], **more)

    said = "job 'j' cannot go on from checkpoint 17", *said
    return mistake(name, "start", program, *said, error=IncompatibleStateError)


_COUNTS = "SELECT room, count(*) AS n FROM orders GROUP BY room"
MISTAKES = [
    changed(
        "an aggregate that is new",
        _COUNTS,
        "SELECT room, count(*) AS n, sum(v) AS total FROM orders GROUP BY room",
        "the aggregate 'sum(orders.v)' is new: of groups that are stored, it would have the rows from now on alone",
        'from_now=["totals-',
        "compute the view anew",
    ),
    changed(
        "an average of values that were counted before",
        "SELECT room, count(v) AS n FROM orders GROUP BY room",
        "SELECT room, count(v) AS n, avg(v) AS mean FROM orders GROUP BY room",
        "the aggregate 'avg(orders.v)' is new: it would divide the sum of what comes from now on by the number of all",
    ),
    changed(
        "a condition that is another one",
        f"{_COUNTS} HAVING n > 1",
        _COUNTS.replace("GROUP", "WHERE v > 1 GROUP"),
        "the program has no operator with uid 'totals-",
        'drop=["totals-',
    ),
    changed(
        "a view of a view that goes on",
        _COUNTS,
        f"SELECT n, count(*) AS rooms FROM ({_COUNTS}) GROUP BY n",
        "it is new, and rows that 'totals-",
        "have a view that is new in a job of its own",
    ),
    changed(
        "another key under the same uid",
        _COUNTS,
        "SELECT id, count(*) AS n FROM orders GROUP BY id",
        "operator 'totals': its key is struct<k0:bigint>, was struct<k0:string>",
        uid="totals",
    ),
    changed(
        "another function under the same name",
        _COUNTS,
        "SELECT room, max(v) AS n FROM orders GROUP BY room",
        "operator 'totals': the aggregate 'max(orders.v)': it is max, was count: give it another name",
        uid="totals",
    ),
    changed(
        "other rows under the same uid",
        "SELECT id FROM orders ORDER BY v LIMIT 3",
        "SELECT id, room FROM orders ORDER BY v LIMIT 3",
        "operator 'totals': the type of state",
        "the rows that a view holds lack a column",
        uid="totals",
    ),
    pinned(
        "a uid without an operator",
        "SELECT room FROM orders WHERE v > 1",
        "uid 'totals' is for the last operator with state, and there is none, or several",
        "leave uid out",
    ),
    pinned(
        "a uid of several operators",
        "SELECT a.id FROM orders a LEFT JOIN orders b ON a.room = b.room AND a.v < b.v",
        "uid 'totals' is for one operator, and an outer join with a condition beside equal values is several",
        "have a view with the join's equal values alone",
    ),
    of_match(
        "a function of rows of a match",
        "upper(A.room) = B.room",
        "MATCH_RECOGNIZE: a condition has upper() of a value of the match\n  line 2, column 13:",
        "next step: conditions that compare a row with others of the match have =, <, >",
    ),
    of_match(
        "a column that the rows of a match have not",
        "B.nope > A.v",
        "the query is refused by Spark: A column, variable, or function parameter with name `nope` cannot be resolved\n"
        "  line 2, column 15:",
        "did you mean",
    ),
    of_match(
        "a condition that is a number",
        "B.v + A.v",
        "DEFINE has a value that is DOUBLE, expected a condition\n  line 2, column 15:",
        "write a comparison",
    ),
    of_match(
        "the row after the current one",
        "NEXT(B.v) > 1",
        "MATCH_RECOGNIZE: NEXT is not supported\n  line 2, column 13:",
        "give the next row a variable, PATTERN (A B), and compare with A in the condition of B",
    ),
    *(refused(text) for text in QUERIES.split("\n## ")[1:]),
    given(
        "a table with a name that is no name",
        "SELECT id FROM `my orders`",
        {"my orders": "orders"},
        "sql() was given a table named 'my orders', expected letters, digits and underscores",
        "give it another name, and use that in the query",
    ),
    given(
        "two tables of the same name",
        "SELECT id FROM orders",
        {"orders": "orders", "Orders": "orders"},
        "sql() was given 'orders' and 'Orders', which are the same name in SQL",
    ),
    into(
        "changes into files",
        _TOTALS,
        lambda: sl.sinks.files("out"),
        "the view changes rows that it has given, and FileSink only adds rows",
        "write to a sink with a key, as sl.sinks.postgres, sqlite, delta, iceberg or kafka with key=…; write the changes, "
        "view.changes().to(sink), with 1 and -1 in _change; or make the query one that only adds rows",
    ),
    into(
        "changes into a table without a key",
        _TOTALS,
        lambda: sl.sinks.delta("lake"),
        "the view changes rows that it has given, and without a key, DeltaSink only adds rows",
    ),
    into(
        "a key that is not the query's",
        _TOTALS,
        partial(_KAFKA, key="n"),
        "several rows may have the same n; its key is room",
    ),
    into(
        "a key of messages that may be null",
        _TOTALS,
        partial(_KAFKA, key="room"),
        "sinks.kafka(): the key 'room' may be null: a message without a key replaces no other one, and a compacted topic "
        "refuses it",
        "in the query, WHERE room IS NOT NULL leaves such rows out, and coalesce(room, …) gives them a key; or set "
        "on_error='skip' or 'dead-letter'; or give a key of several columns, which is JSON",
    ),
    into(
        "a key of messages that is null in some totals",
        "SELECT room, count(*) AS n FROM orders WHERE room IS NOT NULL GROUP BY ROLLUP (room)",
        partial(_KAFKA, key="room"),
        "may be null",
    ),
    into(
        "messages of a key in several topics",
        "SELECT coalesce(room, '') AS room, max(v) AS v, max_by(CAST(id AS STRING), v) AS best FROM orders GROUP BY 1",
        lambda: sl.sinks.kafka("one:9092", topic_column="best", key="room"),
        "sinks.kafka(): topic_column='best' is not in the key: if a row's best changes, its former message would stay "
        "where it is",
        "add it to the key, key=['room', 'best']",
    ),
    mistake(
        "state that is kept for no duration",
        "declaration",
        lambda s: sl.sql("SELECT id FROM orders", state_ttl="a day", orders=table(s, "orders")),
        "sql(): state_ttl is 'a day', expected a duration",
    ),
    mistake(
        "a time to live of a table that is not there",
        "declaration",
        lambda s: sl.sql("SELECT id FROM orders", state_ttl={"customers": "1d"}, orders=table(s, "orders")),
        "sql(): state_ttl is of 'customers', which is no table of the query",
        "it was given orders",
    ),
    mistake(
        "a right join as of a time",
        "declaration",
        lambda s: sl.sql(
            "SELECT * FROM o RIGHT JOIN orders FOR SYSTEM_TIME AS OF o.at AS r ON o.room = r.room",
            o=table(s, "orders"),
            orders=table(s, "orders").watermark("at"),
        ),
        "FOR SYSTEM_TIME AS OF a column needs JOIN or LEFT JOIN before the table",
        "line 1, column 35",
    ),
]
