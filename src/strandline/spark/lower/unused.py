"""What a program has written and no job runs: a stream that leads to no sink does nothing, and says nothing."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from strandline.plan.graph import OperatorNode, SourceNode, with_ancestors
from strandline.spark.streams.frames import sources_made
from strandline.spark.streams.stream import Output

_in_jobs: weakref.WeakSet[Any] = weakref.WeakSet()
"""The outputs, operators and sources of all jobs that this process has made."""


def in_job(outputs: Sequence[Output]) -> None:
    """A job has these outputs, and what leads to them."""
    nodes = with_ancestors(*(output.stream._node for output in outputs))
    _in_jobs.update([*outputs, *(node for node in nodes if isinstance(node, OperatorNode | SourceNode))])


def unused(sources: Sequence[SourceNode]) -> list[str]:
    """Return what was written on a job's sources, or on others of the same program, and leads to no sink of any job."""
    if not _found(sources):
        return []
    # Cells of a notebook that ran again, and tests, leave behind what nobody can see any more.
    gc.collect()
    return _found(sources)


def _found(sources: Sequence[SourceNode]) -> list[str]:
    uids = {node.uid for node in _in_jobs if isinstance(node, OperatorNode)}
    found, said = [], set[OperatorNode]()
    for output in _of(sources, "outputs"):
        kind = type(output.sink).__name__.removesuffix("Sink").lower()
        where = f"'{output.sink.name}'" if output.sink.name else f"({kind})"
        found.append(f"what {output.line} sends into a sink {where} is in no job's sinks=[…]: it never gets there")
        said |= {node for node in with_ancestors(output.stream._node) if isinstance(node, OperatorNode)}
    for operator in _of(sources, "operators"):
        if operator not in said and operator.uid not in uids:
            found.append(
                f"the operator '{operator.uid}' ({operator.name}, {operator.line}) leads to no sink of a job: it never "
                "runs"
            )
    return found


def _of(sources: Sequence[SourceNode], what: str) -> Iterator[Any]:
    return (made for source in _program_of(sources) for made in getattr(source, what) if made not in _in_jobs)


def _program_of(sources: Sequence[SourceNode]) -> Iterable[SourceNode]:
    """Return the sources, and others that the same file has made at other lines and no job reads."""
    files, lines = {_file_of(source) for source in sources}, {source.line for source in sources}
    others = {
        source
        for source in list(sources_made)
        if source not in _in_jobs and source.line not in lines and _file_of(source) in files
    }
    return dict.fromkeys([*sources, *sorted(others, key=lambda source: source.line)])


def _file_of(source: SourceNode) -> str:
    return source.line.rpartition(":")[0]
