"""Samples the threads of each Python process of a job, forked ones too; Python imports this at its start.

Every few milliseconds, the processor time that a thread has used since is added to the layer of its innermost frame of
this project, or of the benchmark's function. The rest of the process, as RocksDB's threads, has no frames.
"""

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

_EVERY_S = 0.005
_WRITE_S = 0.3
_LAYERS = (
    ("/benchmarks/", "function"),
    ("/strandline/runtime/state/", "state"),
    ("/strandline/backends/", "state"),
    ("/strandline/format/", "state"),
    ("/strandline/runtime/operators/", "operator"),
    ("/strandline/types/", "arrow"),
    ("/strandline/runtime/task/outputs", "arrow"),
    ("/strandline/runtime/output_rows", "arrow"),
    ("/strandline/runtime/", "task"),
    ("/strandline/ends/", "end"),
    ("/strandline/storage/", "end"),
    ("/strandline/checkpoint/", "checkpoint"),
    ("/strandline/keeper/snapshots", "checkpoint"),
    ("/strandline/keeper/", "transfer"),
    ("/strandline/spark/keepers/", "transfer"),
    ("/pyspark/", "transfer"),
)


def _layer(frame: Any) -> str:
    while frame is not None:
        name = frame.f_code.co_filename
        for part, layer in _LAYERS:
            if part in name:
                return layer
        frame = frame.f_back
    return "other"


def _sample(directory: Path) -> None:
    begin, end, mine = directory / "begin", directory / "end", threading.get_ident()
    out = directory / f"python-{os.getpid()}.json"
    totals: dict[str, float] = {}
    clocks: dict[int, float] = {}
    process_s, written = 0.0, 0.0
    has_begun = False
    while not end.exists():
        time.sleep(_EVERY_S)
        if not has_begun:
            if not begin.exists():
                continue
            has_begun, process_s = True, time.process_time()
        for ident, frame in sys._current_frames().items():
            if ident == mine:
                continue
            try:
                used = time.clock_gettime(time.pthread_getcpuclockid(ident))
            except OSError:
                continue
            layer = _layer(frame)
            totals[layer] = totals.get(layer, 0.0) + used - clocks.get(ident, used)
            clocks[ident] = used
        if (now := time.monotonic()) - written > _WRITE_S:
            written = now
            known = sum(totals.values()) + time.thread_time()
            native = max(0.0, time.process_time() - process_s - known)
            text = json.dumps({"layers": totals | {"native": native}})
            temporary = out.with_suffix(f".{os.getpid()}")
            temporary.write_text(text)
            temporary.replace(out)


def _start() -> None:
    directory = os.environ.get("STRANDLINE_LAYERS")
    if directory:
        threading.Thread(target=_sample, args=(Path(directory),), name="layers", daemon=True).start()


os.register_at_fork(after_in_child=_start)
_start()
