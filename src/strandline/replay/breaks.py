"""Conditions on which a replay stops in a debugger, inside of the user's function and with its state at hand."""

from __future__ import annotations

import ast
import builtins
import datetime as dt
import importlib
import pdb
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import CodeType, GeneratorType, TracebackType
from typing import Any, Literal

from strandline.api.process import KeyedBatchProcess, KeyedProcess
from strandline.api.states import declared_states
from strandline.core.errors import ConfigurationError
from strandline.core.ids import Partition
from strandline.core.times import as_datetime
from strandline.runtime.builtin import BuiltinOperator
from strandline.runtime.operators.joins import user_call
from strandline.runtime.output_rows import rows_of
from strandline.runtime.program import Process
from strandline.runtime.state.handles import AggregatingHandle, ListHandle, MapHandle

ERROR = "error"
_KEY = "key="
_METHODS = ("on_event", "on_timer")
DebuggerName = Literal["pdb", "debugpy"]
_NAMES = ("state", "key", "event", "epoch", "watermark", "now")


SetTimer = tuple[dt.datetime, bool]
"""A timer's time, and whether it is of the processing time."""
TimerChange = Literal["set", "deleted"]


@dataclass(frozen=True)
class Call:
    """One call of a user's function."""

    operator: str
    partition: int
    method: str
    number: int
    """Its number among the calls of the partition in the epoch."""
    epoch: int
    key: Any
    event: Any
    """The event; of on_timer, the timer's time."""
    read: Any = field(default=None, compare=False, repr=False)
    """The event as the operator reads it: a pair of rows, if it has two inputs; of on_timer, the timer."""
    timer_changes: list[tuple[TimerChange, SetTimer]] = field(default_factory=list, compare=False, repr=False)
    """The timers that it has set and deleted, in this order, once it has run, if `Breaks.on_call` is set."""
    emitted: list[tuple[str, Any]] = field(default_factory=list, compare=False, repr=False)
    """The rows that it has sent to side outputs, each with the output's name, as above."""

    @property
    def timers(self) -> list[SetTimer]:
        """The timers that it has set."""
        return [timer for change, timer in self.timer_changes if change == "set"]

    @property
    def place(self) -> tuple[int, str, int, int]:
        """Its epoch, operator, partition and number, which no other call shares."""
        return self.epoch, self.operator, self.partition, self.number

    def __str__(self) -> str:
        what = "timer" if self.method == "on_timer" else "event"
        return (
            f"epoch {self.epoch}, operator '{self.operator}', partition {self.partition}, {self.method}, key "
            f"{self.key!r}, {what} {self.event!r}"
        )


class FoundError(BaseException):
    """Ends the run of an epoch whose call was found at which to stop: the epoch runs again."""


@dataclass
class Condition:
    """A condition: an error, a key, or a Python expression that a call makes true."""

    text: str
    key: str | None = None
    code: CodeType | None = None
    states: frozenset[str] = frozenset()
    """The states that the expression names."""

    @property
    def on_error(self) -> bool:
        """Whether it is an error of a function."""
        return self.text.strip() == ERROR

    @classmethod
    def parse(cls, text: str) -> Condition:
        """Parse the argument of --break-on; raise ConfigurationError for an invalid expression."""
        if text.strip() == ERROR:
            return cls(text)
        if text.startswith(_KEY) and not text.startswith(f"{_KEY}="):
            return cls(text, key=text.removeprefix(_KEY))
        try:
            tree = ast.parse(text, mode="eval")
        except SyntaxError as error:
            raise ConfigurationError(
                f"--break-on {text!r}: {error.msg}",
                hint="write error, key=KEY, or a Python expression of state, key, event, epoch, watermark and now, as "
                "in 'state.total > 100'",
            ) from None
        names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        if unknown := sorted(names.difference(_NAMES, dir(builtins))):
            raise ConfigurationError(
                f"--break-on {text!r}: {unknown[0]} is unknown",
                hint=f"an expression may use {', '.join(_NAMES)}, and Python's own functions",
            )
        states = {
            node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "state"
        }
        return cls(text, code=compile(tree, "--break-on", "eval"), states=frozenset(states))


class StateView:
    """The states of the present key, by name, as plain values."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def __getattr__(self, name: str) -> Any:
        return read_handle(vars(self._process)[name])


def read_handle(handle: Any) -> Any:
    """Return the value of a state's handle for the present key."""
    if isinstance(handle, ListHandle):
        return handle.get()
    if isinstance(handle, MapHandle):
        return dict(handle)
    return handle.result() if isinstance(handle, AggregatingHandle) else handle.value


class NotingTimers:
    """The timers of a call (`ctx.timers`), which note those that it sets and deletes."""

    def __init__(self, timers: Any, call: Call) -> None:
        self.plain: Any = timers.plain if isinstance(timers, NotingTimers) else timers
        self._call = call

    def set(self, at: dt.datetime) -> None:
        """Set a timer."""
        self.plain.set(at)
        self._call.timer_changes.append(("set", (at, False)))

    def set_processing(self, at: dt.datetime) -> None:
        """Set a timer of the processing time."""
        self.plain.set_processing(at)
        self._call.timer_changes.append(("set", (at, True)))

    def delete(self, at: dt.datetime) -> None:
        """Delete a timer."""
        self.plain.delete(at)
        self._call.timer_changes.append(("deleted", (at, False)))

    def delete_processing(self, at: dt.datetime) -> None:
        """Delete a timer of the processing time."""
        self.plain.delete_processing(at)
        self._call.timer_changes.append(("deleted", (at, True)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.plain, name)


class NotingOutput:
    """The side outputs of a call, which note the rows that it sends there."""

    def __init__(self, emit: Any, call: Call) -> None:
        self.plain: Any = emit.plain if isinstance(emit, NotingOutput) else emit
        self._call = call

    def __call__(self, side: str, row: Any) -> None:
        self.plain(side, row)
        self._call.emitted.append((side, row))


@dataclass
class Breaks:
    """Wraps the methods of users' functions, and stops in a debugger at the calls that a condition selects."""

    condition: Condition | None
    debugger: DebuggerName = "pdb"
    port: int = 5678
    operator: str = ""
    """The uid of the only operator to stop in; "" for all."""
    on_call: Callable[[Call, StateView], Callable[[list[Any]], None] | None] | None = None
    """Called before each call; what it returns is called after it, with the call's rows."""
    only: Callable[[Call], bool] | None = None
    """Says of each call whether it is made; None: all are."""
    epoch: int = 0
    stopped: list[Call] = field(default_factory=list)
    """The calls at which it stopped."""
    has_quit: bool = False
    """Whether the user has ended the debugger."""
    _target: tuple[str, int, int] | None = None
    """The call to stop at, in an epoch that runs again."""
    _counts: dict[tuple[str, int], int] = field(default_factory=dict)
    _applies: set[str] = field(default_factory=set)
    _known: dict[str, list[str]] = field(default_factory=dict)
    """By operator, its states."""
    _seen: set[tuple[int, str, int, int]] = field(default_factory=set)
    """The places of these calls: an epoch that runs again does not stop there once more."""
    _true: set[tuple[str, Any]] = field(default_factory=set)
    """The keys for which the expression was true after their last call."""
    _connected: bool = False
    failed: Call | None = None
    """The call that has raised an error."""

    def begin(self, epoch: int) -> None:
        """Note that an epoch begins, perhaps again."""
        self.epoch, self.failed = epoch, None
        self._counts.clear()

    def loaded(self, process: Process, uid: str, partition: Partition) -> None:
        """Wrap the methods of a function before it is bound to its state."""
        if isinstance(process, BuiltinOperator | KeyedBatchProcess) or not isinstance(process, KeyedProcess):
            return
        states = list(declared_states(process))
        self._known[uid] = states
        if self.condition is not None and self.operator in ("", uid) and self.condition.states <= {*states}:
            self._applies.add(uid)
        for name in _METHODS:
            original = getattr(process, name)
            vars(process)[name] = self._wrapped(process, uid, partition, name, original)

    def check(self) -> None:
        """Raise ConfigurationError if the condition applies to no operator."""
        if self.condition is None or self._applies:
            return
        if self.operator and self.operator not in self._known:
            raise ConfigurationError(
                f"--operator {self.operator}: there is no process function of this uid",
                hint=f"the functions are {', '.join(self._known) or 'none'}",
            )
        known = "; ".join(f"{uid}: {', '.join(states) or 'none'}" for uid, states in self._known.items())
        raise ConfigurationError(
            f"--break-on {self.condition.text!r}: no operator has the state {', '.join(sorted(self.condition.states))}"
            if self._known
            else "--break-on: the job has no process function, only built-in operators",
            hint=f"the states of process functions are {known}" if known else "leave it out",
        )

    def has_target(self) -> bool:
        """Whether the last run of the epoch has only found where to stop, and the epoch has to run again."""
        return self._target is not None

    def _wrapped(
        self, process: Process, uid: str, partition: Partition, name: str, original: Callable[[Any, Any], Any]
    ) -> Callable[[Any, Any], Any]:
        view = StateView(process)

        def call(event: Any, ctx: Any) -> Any:
            self._counts[uid, partition] = number = self._counts.get((uid, partition), 0) + 1
            method, value = (name, event.timestamp) if name == "on_timer" else user_call(process, name, event)
            this = Call(uid, partition, method, number, self.epoch, ctx.key, value, event)
            if self.only is not None and not self.only(this):
                return None
            after = self._before(this, view, ctx)
            note = None
            if self.on_call is not None:
                ctx.timers = NotingTimers(ctx.timers, this)
                if ctx._emit is not None:
                    ctx._emit = NotingOutput(ctx._emit, this)
                note = self.on_call(this, view)
            try:
                result = original(event, ctx)
                if isinstance(result, GeneratorType) or (note is not None and result is not None):
                    return drive(result, this, after, note)
            except Exception as error:
                self._raised(this, error)
                raise
            after()
            if note is not None:
                note([])
            return result

        def drive(rows: Any, this: Call, after: Callable[[], None], note: Callable[[list[Any]], None] | None) -> Any:
            try:
                if note is None:
                    result = yield from rows
                else:
                    result, seen = None, []
                    for row in rows_of(rows):
                        seen.append(row)
                        yield row
                    note(seen)
            except Exception as error:
                self._raised(this, error)
                raise
            after()
            return result

        return call

    def _before(self, call: Call, view: StateView, ctx: Any) -> Callable[[], None]:
        """Stop if the call is the one to stop at; return what is to be done after it."""
        condition = self.condition
        if condition is None or call.operator not in self._applies or self.has_quit:
            return _nothing
        if self._target is not None:
            if self._target == (call.operator, call.partition, call.number):
                self._target = None
                self._stop(call)
            return _nothing
        if condition.key is not None:
            if is_key(condition.key, call.key):
                self._stop(call)
            return _nothing
        if condition.code is None:
            return _nothing
        names, place = _names(view, call, ctx), (call.operator, call.key)

        def after() -> None:
            if not _is_true(condition, names):
                self._true.discard(place)
            elif place not in self._true:
                self._true.add(place)
                self._target = (call.operator, call.partition, call.number)
                raise FoundError

        return after

    def _raised(self, call: Call, error: BaseException) -> None:
        """Note that a call has failed; stop at the frame that raised the error, or for debugpy in another run."""
        # What it has done is taken back if the epoch goes on.
        call.timer_changes.clear()
        call.emitted.clear()
        if self.failed is not None or self._target is not None or self.has_quit:
            return
        self.failed = call
        condition = self.condition
        if (
            condition is None
            or not condition.on_error
            or call.operator not in self._applies
            or call.place in self._seen
        ):
            return
        if self.debugger == "debugpy":
            self._target = (call.operator, call.partition, call.number)
            raise FoundError
        self.stopped.append(call)
        _say(f"{type(error).__name__}: {error}\nin {call}")
        debugger = Debugger(self)
        debugger.reset()
        assert error.__traceback__ is not None
        debugger.interaction(None, _of_user(error.__traceback__))

    def _stop(self, call: Call) -> None:
        if call.place in self._seen:
            return
        self._seen.add(call.place)
        self.stopped.append(call)
        _say(f"stopped before {call}")
        if self.debugger == "debugpy":
            self._attach()
            return
        Debugger(self).stop_next()

    def _attach(self) -> None:
        try:
            debugpy = importlib.import_module("debugpy")
        except ImportError:
            raise ConfigurationError(
                "--debugger debugpy: debugpy is not installed", hint="pip install debugpy, or leave --debugger out"
            ) from None
        if not self._connected:
            _say(f"waiting for a debugger to attach to 127.0.0.1:{self.port}")
            debugpy.listen(("127.0.0.1", self.port))
            debugpy.wait_for_client()
            self._connected = True
        debugpy.breakpoint()


class Debugger(pdb.Pdb):
    """Python's debugger, which stops in users' code alone."""

    def __init__(self, breaks: Breaks) -> None:
        super().__init__(skip=["strandline.*"], nosigint=True)
        self.prompt = "(replay) "
        self._breaks = breaks

    def stop_next(self) -> None:
        """Stop at the next line of users' code in this thread."""
        self.reset()
        self.set_step()
        sys.settrace(self.trace_dispatch)

    def set_quit(self) -> None:
        """End the debugger: the replay stops nowhere else."""
        self._breaks.has_quit = True
        super().set_quit()


def _is_true(condition: Condition, names: Mapping[str, Any]) -> bool:
    assert condition.code is not None
    try:
        return bool(eval(condition.code, {}, dict(names)))
    except (TypeError, AttributeError, KeyError, IndexError):
        # A state without a value, or an event of another kind.
        return False


def _names(view: StateView, call: Call, ctx: Any) -> dict[str, Any]:
    reached = ctx.watermark_us
    return {
        "state": view,
        "key": call.key,
        "event": call.event,
        "epoch": call.epoch,
        "watermark": None if reached is None else as_datetime(reached),
        "now": as_datetime(ctx.now_us),
    }


def is_key(text: str, key: Any) -> bool:
    """Whether a text means a key; the parts of a key of several columns have commas between."""
    return text in (str(key), repr(key)) or (isinstance(key, tuple) and text == ",".join(map(str, key)))


def _of_user(trace: TracebackType) -> TracebackType:
    """Return a traceback from the user's first frame on."""
    while trace.tb_next is not None and trace.tb_frame.f_globals.get("__name__", "").startswith("strandline."):
        trace = trace.tb_next
    return trace


def _nothing() -> None:
    pass


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
