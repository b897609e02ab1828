"""Random chains of the operators of views against plain Python: python -m tests.views.random_chains --seed N --cases M

A case is an expression, the changes of its tables in some epochs, and what happens between these: checkpoints, restarts
at other parallelisms and on other backends, savepoints, crashes. Each seed is one case; one that fails is made smaller.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path

from tests.views.expressions import (
    Change,
    Collected,
    Groups,
    Maker,
    Newest,
    Node,
    Operator,
    Row,
    Rows,
    Source,
    random_row,
)
from tests.views.operators import Bag, bag, exact
from tests.views.partitions import Partitions

_EVENTS = ["", "", "", "checkpoint", "restart", "restart", "savepoint", "crash", "crash"]
_PLACES = [(1, "filesystem"), (1, "filesystem"), (2, "filesystem"), (3, "filesystem"), (1, "rocksdb"), (2, "rocksdb")]
_SHRINKING_S = 60.0


@dataclass(frozen=True)
class Case:
    """An expression, and what happens to it."""

    seed: int
    root: Node
    epochs: tuple[tuple[tuple[Change, ...], ...], ...]
    """The changes of each table in each epoch. Those of versions have 1 in place of a weight if they delete."""
    events: tuple[str, ...]
    """What happens before each epoch."""
    is_calm: bool = False
    """Whether no epoch is given up and repeated, nothing is evicted, and all is one partition."""

    @staticmethod
    def of(seed: int) -> Case:
        """Return the case of a seed."""
        rng = random.Random(seed)
        maker = Maker(rng)
        root = maker.node(rng.choice([1, 2, 2, 3]))
        count = rng.randint(1, 6)
        tables = [list(_changes(rng, source, count)) for source in maker.sources]
        is_quiet = rng.random() < 0.4
        events = ("" if is_quiet or not number else rng.choice(_EVENTS) for number in range(count))
        return Case(seed, root, tuple(zip(*tables, strict=True)), tuple(events))

    @property
    def nodes(self) -> list[Node]:
        """All nodes, each behind its inputs."""
        found: dict[int, Node] = {}

        def visit(node: Node) -> None:
            for each in node.inputs:
                visit(each)
            found.setdefault(id(node), node)

        visit(self.root)
        return list(found.values())

    def __str__(self) -> str:
        names = {id(node): f"v{number}" for number, node in enumerate(self.nodes)}
        lines = [
            f"  {names[id(node)]} = {node.text()} of {[names[id(each)] for each in node.inputs]}" for node in self.nodes
        ]
        for number, (event, tables) in enumerate(zip(self.events, self.epochs, strict=True), 1):
            lines += [f"  {event}"] * bool(event) + [f"  epoch {number}: {[list(each) for each in tables]}"]
        return "\n".join([f"seed {self.seed}{' (calm)' if self.is_calm else ''}:", *lines])


def _changes(rng: random.Random, source: Node, epochs: int) -> Iterator[tuple[Change, ...]]:
    """Yield the changes of a table in each epoch."""
    pool = [random_row(rng) for _ in range(rng.randint(2, 6))]
    there: list[Row] = []
    for _ in range(epochs):
        found: list[Change] = []
        for _ in range(rng.choice([0, 1, 2, 4, 8])):
            row = rng.choice(pool) if rng.random() < 0.7 else random_row(rng)
            if isinstance(source, Newest):
                found.append((row, int(rng.random() < 0.25)))
            elif there and not source.appends and rng.random() < 0.45:
                found.append((there.pop(rng.randrange(len(there))), -1))
            else:
                there.append(row)
                found.append((row, 1))
        yield tuple(found)


class WrongError(AssertionError):
    """A node gave what its expression does not say."""

    def __init__(self, node: Node, epoch: int, what: str) -> None:
        super().__init__(f"after epoch {epoch}, {node.text()} {what}")
        self.node, self.epoch = node, epoch


class Run:
    """A case that runs."""

    def __init__(self, case: Case, root: Path) -> None:
        self.case = case
        self.jobs = {
            id(node): Partitions(root / str(number), node.shape())
            for number, node in enumerate(case.nodes)
            if isinstance(node, Operator)
        }
        self.sums: dict[int, Bag] = {id(node): Counter() for node in case.nodes}
        self.kept = dict(self.sums)
        """What stood in the newest checkpoint."""
        self.kept_epoch = 0

    def run(self) -> None:
        """Run all epochs; raise WrongError for the first result that is not right."""
        rng = random.Random(f"events {self.case.seed}")
        self._start(rng)
        try:
            for number, event in enumerate(self.case.events, 1):
                if event:
                    self._happen(event, number - 1, rng)
                self._epoch(number)
        finally:
            self._stop()

    def _start(self, rng: random.Random) -> None:
        for job in self.jobs.values():
            job.start(*((1, "filesystem") if self.case.is_calm else rng.choice(_PLACES)))

    def _stop(self) -> None:
        for job in self.jobs.values():
            job.stop()

    def _happen(self, event: str, epoch: int, rng: random.Random) -> None:
        """Do what happens after an epoch."""
        if event != "crash":
            for job in self.jobs.values():
                job.trigger()
            for job in self.jobs.values():
                job.gather()
            self.kept, self.kept_epoch = dict(self.sums), epoch
        if event == "checkpoint":
            return
        self._stop()
        for job in self.jobs.values():
            if event == "savepoint":
                # The canonical form takes processes of its own.
                job.go_through_savepoint("canonical" if rng.random() < 0.02 else "native")
            job.go_back()
        self._start(rng)
        self.sums = dict(self.kept)
        for number in range(self.kept_epoch + 1, epoch + 1):
            self._epoch(number)

    def _epoch(self, number: int) -> None:
        changes: dict[int, list[Change]] = {}
        rows: dict[int, Rows] = {}
        for place, node in enumerate(self.case.nodes):
            of = [changes[id(each)] for each in node.inputs]
            given = [rows[id(each)] for each in node.inputs]
            tables = (
                [epoch[node.number] for epoch in self.case.epochs[:number]] if isinstance(node, Source | Newest) else []
            )
            if isinstance(node, Source):
                changes[id(node)] = list(tables[-1])
                all_rows = {exact(row): row for epoch in tables for row, _ in epoch}
                counts = bag((*row, weight) for epoch in tables for row, weight in epoch)
                rows[id(node)] = [all_rows[text] for text in counts.elements()]
                continue
            if isinstance(node, Operator):
                rng = random.Random(f"{self.case.seed} {number} {place}")
                changes[id(node)] = self._operate(node, [tables[-1]] if isinstance(node, Newest) else of, number, rng)
            else:
                made = [(each, weight) for some in of for row, weight in some for each in node.rows([[row]])]
                changes[id(node)] = made
            if isinstance(node, Collected):
                # What it gives are rows by key; its input's rows are those that the groups are made of.
                rows[id(node)] = given[0]
                continue
            rows[id(node)] = node.of_versions(tables) if isinstance(node, Newest) else node.rows(given)
            self._check(node, number, changes[id(node)], rows[id(node)])

    def _operate(
        self, node: Operator, changes: Sequence[Sequence[Change]], number: int, rng: random.Random
    ) -> list[Change]:
        """Return the changes that an operator makes of those of its inputs."""
        job, rows = self.jobs[id(node)], node.feed(changes, rng)
        if not isinstance(node, Newest):
            rng.shuffle(rows)
        cuts = sorted(rng.randint(0, len(rows)) for _ in range(rng.choice([0, 0, 1, 2])))
        batches = [rows[start:end] for start, end in zip([0, *cuts], [*cuts, len(rows)], strict=True)]
        batches = [each for each in batches if each]
        way = "" if self.case.is_calm else rng.choice(["", "", "again", "partly", "evict", "write"])
        job.keep_nothing_in_memory(way in ("evict", "write"))
        if way in ("again", "partly"):
            first = job.attempt(batches, most=0 if way == "partly" else None)
            job.abort()
        found = job.epoch_of(batches)
        if way == "again" and Counter(map(exact, first)) != Counter(map(exact, found)):
            raise WrongError(node, number, f"gave {first}, and when the epoch was repeated {found}")
        if way == "write":
            job.write_behind()
        if not isinstance(node, Collected | Groups):
            # Groups may take back from one key what another one adds.
            weights: dict[str, set[int]] = {}
            for *row, weight in found:
                weights.setdefault(exact(tuple(row)), set()).add(weight)
            if any(each not in ({1}, {-1}) for each in weights.values()):
                raise WrongError(node, number, f"gave a row with several weights, or none: {found}")
        return node.read(found)

    def _check(self, node: Node, number: int, changes: Sequence[Change], rows: Rows) -> None:
        total = Counter(self.sums[id(node)])
        for row, n in bag((*row, weight) for row, weight in changes).items():
            total[row] += n
        self.sums[id(node)] = Counter({row: n for row, n in total.items() if n})
        wanted = Counter(map(exact, rows))
        if self.sums[id(node)] != wanted:
            found = self.sums[id(node)]
            raise WrongError(node, number, f"misses {dict(wanted - found)}, and has too many {_more(found, wanted)}")
        if node.appends and isinstance(node, Operator) and any(weight < 0 for _, weight in changes):
            raise WrongError(node, number, "took back a row, and its rows only come")


def _more(found: Bag, wanted: Bag) -> dict[str, int]:
    return {row: n - wanted[row] for row, n in found.items() if n > wanted[row] or n < 0}


def failure(case: Case) -> Exception | None:
    """Run a case; return what is wrong."""
    # In memory, if the machine has such a place: nothing of this is about disks.
    shared = Path("/dev/shm")
    root = Path(tempfile.mkdtemp(prefix="chains", dir=shared if os.access(shared, os.W_OK) else None))
    try:
        Run(case, root).run()
    except Exception as error:
        return error
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return None


def smaller(case: Case) -> Iterator[Case]:
    """Yield cases with a part less."""
    if not case.is_calm:
        yield replace(case, is_calm=True)
    if len(case.epochs) > 1:
        yield replace(case, epochs=case.epochs[:-1], events=case.events[:-1])
    for node in case.nodes[:-1]:
        if not isinstance(node, Collected):
            yield replace(case, root=node)
    for node in case.nodes:
        if node.inputs and not isinstance(node, Collected):
            rest = node.inputs[0].inputs[0] if isinstance(node.inputs[0], Collected) else node.inputs[0]
            yield replace(case, root=_without(case.root, node, rest))
    for at, event in enumerate(case.events):
        if event:
            yield replace(case, events=(*case.events[:at], "", *case.events[at + 1 :]))
    for epoch, tables in enumerate(case.epochs):
        for table, changes in enumerate(tables):
            for at in range(len(changes)):
                made = (*tables[:table], (*changes[:at], *changes[at + 1 :]), *tables[table + 1 :])
                yield replace(case, epochs=(*case.epochs[:epoch], made, *case.epochs[epoch + 1 :]))


def _without(root: Node, node: Node, other: Node) -> Node:
    """Return an expression in which another node is in the place of one."""
    made: dict[int, Node] = {id(node): other}

    def again(each: Node) -> Node:
        if id(each) not in made:
            inputs = tuple(map(again, each.inputs))
            same = all(one is another for one, another in zip(inputs, each.inputs, strict=True))
            made[id(each)] = each if same else replace(each, inputs=inputs)
        return made[id(each)]

    return again(root)


def is_possible(case: Case) -> bool:
    """Whether no table loses a row that it does not have."""
    for node in case.nodes:
        if isinstance(node, Source):
            counts = Counter[str]()
            for tables in case.epochs:
                for row, weight in tables[node.number]:
                    counts[exact(row)] += weight
                if min(counts.values(), default=0) < 0:
                    return False
    return True


def smallest(case: Case, error: Exception) -> tuple[Case, Exception]:
    """Return a case that fails, too, of which nothing can be left out."""
    deadline = time.monotonic() + _SHRINKING_S
    found = True
    while found:
        found = False
        for each in smaller(case):
            if time.monotonic() > deadline:
                return case, error
            if is_possible(each) and type(failed := failure(each)) is type(error):
                assert failed is not None
                case, error, found = each, failed, True
                break
    return case, error


def faults(seeds: Sequence[int]) -> list[str]:
    """Run the cases of some seeds; return those that fail, each as small as it can be."""
    found = []
    for seed in seeds:
        case = Case.of(seed)
        error = failure(case)
        if error is not None:
            small, error = smallest(case, error)
            said = str(error) if isinstance(error, WrongError) else "".join(traceback.format_exception(error))
            found.append(f"{small}\n  {said}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--processes", type=int, default=2)
    asked = parser.parse_args()
    parts = [
        range(first, min(first + 100, asked.seed + asked.cases))
        for first in range(asked.seed, asked.seed + asked.cases, 100)
    ]
    wrong, started = 0, time.monotonic()
    with ProcessPoolExecutor(asked.processes, mp_context=get_context("spawn")) as pool:
        for number, (part, found) in enumerate(zip(parts, pool.map(faults, parts), strict=True), 1):
            wrong += len(found)
            for each in found:
                print(each, flush=True)
            if number % 10 == 0 or part is parts[-1] or found:
                print(
                    f"seeds {asked.seed} to {part[-1]}: {wrong} wrong, {time.monotonic() - started:.0f} s", flush=True
                )
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()
