"""Sketches: distinct counts and percentiles of any number of values in little memory, with a known error.

An accumulator is two columns: a list of values, and a sketch (bytes of Apache DataSketches, as Spark's own functions
write and read them) of earlier values. Values stay in the list until there are enough of them for a sketch to pay off:
lists are merged by whole columns, sketches one by one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.core.errors import ConfigurationError, CorruptionError
from strandline.runtime.operators.aggregates import grouping
from strandline.runtime.operators.aggregates.grouping import Groups, Numbers, lengths, offsets, valid_rows

try:
    import datasketches
except ImportError:
    datasketches = None

KINDS = DISTINCT, QUANTILES = ("hll", "kll")
_HELD = 32
_LEAST_LG_K, _MOST_LG_K = 7, 21
_LEAST_K, _MOST_K = 8, 65_535
_HLL_ERROR = 1.04
_KLL_ERROR, _KLL_POWER = 2.296, 0.9723


def size_of(how: str, error: float) -> int:
    """Return the parameter of a sketch (lg_k of "hll", k of "kll") that keeps the error within this limit."""
    if how == DISTINCT:
        # The error of merged sketches is 1.04 / sqrt(k).
        return min(max(math.ceil(2 * math.log2(_HLL_ERROR / error)), _LEAST_LG_K), _MOST_LG_K)
    # The formula of DataSketches: for single ranks, with a confidence of 99 %.
    return min(max(math.ceil(math.pow(_KLL_ERROR / error, 1 / _KLL_POWER)), _LEAST_K), _MOST_K)


class Distinct:
    """HyperLogLog sketches of hashes, which estimate the number of distinct ones."""

    joined = staticmethod(grouping.united)

    def __init__(self, lg_k: int) -> None:
        self._lg_k = lg_k

    def read(self, sketches: Sequence[bytes], values: Numbers) -> Any:
        """Merge sketches and values into one sketch."""
        # Four bits a slot: half the memory of eight for about the same time.
        small = datasketches.tgt_hll_type.HLL_4
        load = datasketches.hll_sketch.deserialize
        if len(sketches) > 1:
            union = datasketches.hll_union(self._lg_k)
            for sketch in sketches:
                union.update(load(sketch))
            result = union.get_result(small)
        else:
            result = load(sketches[0]) if sketches else datasketches.hll_sketch(self._lg_k, small)
        update = result.update
        for value in values.tolist():
            update(value)
        return result

    def write(self, sketch: Any) -> bytes:
        """Return a sketch's bytes."""
        return bytes(sketch.serialize_compact())


class Quantiles:
    """KLL sketches of doubles, which estimate their percentiles."""

    joined = staticmethod(grouping.joined)

    def __init__(self, k: int) -> None:
        self._k = k

    def read(self, sketches: Sequence[bytes], values: Numbers) -> Any:
        load = datasketches.kll_doubles_sketch.deserialize
        result = load(sketches[0]) if sketches else datasketches.kll_doubles_sketch(self._k)
        for sketch in sketches[1:]:
            result.merge(load(sketch))
        if len(values):
            result.update(values)
        return result

    def write(self, sketch: Any) -> bytes:
        return bytes(sketch.serialize())


Kind = Distinct | Quantiles


def kind_of(how: str) -> Kind:
    """Return the kind of sketch for a column's merge, "hll_9" or "kll_269".

    Raises ConfigurationError if the library is not installed.
    """
    if datasketches is None:
        raise ConfigurationError(
            "approximate aggregates need the package datasketches, which is not installed for this Python",
            hint="pip install 'strandline[sketches]', on every machine of the cluster",
        )
    name, _, size = how.partition("_")
    return Distinct(int(size)) if name == DISTINCT else Quantiles(int(size))


def merged(how: str, values: pa.Array, sketches: pa.Array, groups: Groups) -> tuple[pa.Array, pa.Array]:
    """Merge the lists and the sketches of each group."""
    kind = kind_of(how)
    lists = kind.joined(values, groups)
    present = valid_rows(sketches)
    of_sketch = groups.of_row[present]
    alone = grouping.edge(sketches, groups, "first", ignore_nulls=True)
    full = lengths(lists) > _HELD
    anew = full | (np.bincount(of_sketch, minlength=groups.count) > 1)
    if not anew.any():
        return lists, alone
    order = present[np.argsort(of_sketch, kind="stable")]
    ordered = sketches.take(pa.array(order[anew[groups.of_row[order]]]))
    counts = np.bincount(of_sketch, minlength=groups.count)[anew]
    encoded = [kind.write(sketch) for sketch in _read(kind, _parts(ordered, counts), lists.filter(pa.array(anew)))]
    return _emptied(lists, anew), pc.replace_with_mask(alone, pa.array(anew), pa.array(encoded, sketches.type))


def distinct_counts(how: str, values: pa.Array, sketches: pa.Array) -> pa.Array:
    """Return the number of distinct hashes in each row: exact, if there is no sketch yet."""
    counts = lengths(values)
    rows = valid_rows(sketches)
    if len(rows):
        at = pa.array(rows)
        read = _read(kind_of(how), [[one] for one in sketches.take(at).to_pylist()], values.take(at))
        counts[rows] = [round(sketch.get_estimate()) for sketch in read]
    return pa.array(counts)


def percentiles(how: str, values: pa.Array, sketches: pa.Array, ranks: Sequence[float]) -> pa.Array:
    """Return the values at some ranks, a list a row; null where there are no values."""
    parts = [[] if one is None else [one] for one in sketches.to_pylist()]
    rows = [_quantiles(sketch, ranks) for sketch in _read(kind_of(how), parts, values)]
    return pa.array(rows, pa.list_(pa.float64()))


def _quantiles(sketch: Any, ranks: Sequence[float]) -> list[float] | None:
    if sketch.is_empty():
        return None
    quantiles: list[float] = sketch.get_quantiles(list(ranks), True)
    for at, rank in enumerate(ranks):
        # A sketch's sample may lack the extremes, which it stores separately.
        if rank in (0.0, 1.0):
            quantiles[at] = sketch.get_max_value() if rank else sketch.get_min_value()
    return quantiles


def _read(kind: Kind, parts: list[list[bytes]], lists: pa.Array) -> Iterator[Any]:
    """Yield a sketch for each row: its sketches and its list merged."""
    bounds = np.append(0, np.cumsum(lengths(lists))).tolist()
    # A copy, since the library refuses read-only arrays.
    values = lists.flatten().to_numpy(zero_copy_only=False, writable=True)
    for sketches, (start, end) in zip(parts, pairwise(bounds), strict=True):
        try:
            yield kind.read(sketches, values[start:end])
        except (ValueError, IndexError, RuntimeError) as error:
            sizes = ", ".join(str(len(sketch)) for sketch in sketches)
            raise CorruptionError(f"a sketch cannot be read: {error} (of {sizes} bytes)") from error


def _parts(column: pa.Array, counts: Numbers) -> list[list[bytes]]:
    sketches = column.to_pylist()
    ends = np.cumsum(counts).tolist()
    return [sketches[end - count : end] for end, count in zip(ends, counts.tolist(), strict=True)]


def _emptied(lists: pa.Array, which: Numbers) -> pa.Array:
    counts = lengths(lists)
    kept = lists.flatten().filter(pa.array(np.repeat(~which, counts)))
    return pa.ListArray.from_arrays(offsets(np.where(which, 0, counts)), kept)
