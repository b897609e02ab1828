"""Finds outputs and operators of a program that no job runs, to warn of them: without a sink, a stream does nothing."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from strandline.plan.graph import OperatorNode, SourceNode, with_ancestors
from strandline.spark.streams.frames import all_sources
from strandline.spark.streams.stream import Output

_in_jobs: weakref.WeakSet[Any] = weakref.WeakSet()
"""The outputs, operators and sources of all jobs of this process."""


def mark_used(outputs: Sequence[Output]) -> None:
    """Mark a job's outputs, and the operators and sources above them, as used."""
    nodes = with_ancestors(*(output.stream._node for output in outputs))
    _in_jobs.update([*outputs, *(node for node in nodes if isinstance(node, OperatorNode | SourceNode))])


def find_unused(sources: Sequence[SourceNode]) -> list[str]:
    """Return warnings about outputs and operators of a program that lead to no sink of any job.

    The program is a job's sources, and others of the same file.
    """
    if not _warnings(sources):
        return []
    # Cells of a notebook that ran again, and tests, leave garbage.
    gc.collect()
    return _warnings(sources)


def _warnings(sources: Sequence[SourceNode]) -> list[str]:
    uids = {node.uid for node in _in_jobs if isinstance(node, OperatorNode)}
    warnings, reported = [], set[OperatorNode]()
    for output in _of(sources, "outputs"):
        kind = type(output.sink).__name__.removesuffix("Sink").lower()
        where = f"'{output.sink.name}'" if output.sink.name else f"({kind})"
        warnings.append(f"the output to the sink {where} ({output.line}) is in no job's sinks=[…]: it never runs")
        reported |= {node for node in with_ancestors(output.stream._node) if isinstance(node, OperatorNode)}
    for operator in _of(sources, "operators"):
        if operator not in reported and operator.uid not in uids:
            warnings.append(
                f"the operator '{operator.uid}' ({operator.name}, {operator.line}) leads to no sink of a job: it never "
                "runs"
            )
    return warnings


def _of(sources: Sequence[SourceNode], kind: str) -> Iterator[Any]:
    return (each for source in _program_of(sources) for each in getattr(source, kind) if each not in _in_jobs)


def _program_of(sources: Sequence[SourceNode]) -> Iterable[SourceNode]:
    """Return the sources, and those that other lines of the same file create and no job reads."""
    files, lines = {_file_of(source) for source in sources}, {source.line for source in sources}
    others = {
        source
        for source in list(all_sources)
        if source not in _in_jobs and source.line not in lines and _file_of(source) in files
    }
    return dict.fromkeys([*sources, *sorted(others, key=lambda source: source.line)])


def _file_of(source: SourceNode) -> str:
    return source.line.rpartition(":")[0]
