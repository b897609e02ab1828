"""State declarations: class attributes of a process function, typed by Spark DDL, named by the attribute.

Declaring costs nothing. When the function runs, each declaration is replaced on the instance by a handle to the
state of the current key; the Protocols here say what the handles can do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Protocol, TypedDict, TypeVar, Unpack

from strandline.core.errors import ConfigurationError, UserCodeError
from strandline.core.settings import parse_duration_ms
from strandline.types.hints import Hints
from strandline.types.spark_schema import SparkType, type_text

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

H = TypeVar("H")
_LONGEST_TTL_MS = 100 * 366 * 24 * 3600 * 1000


class Keys(Protocol):
    """The keys of a batch's rows, for `get_many` and `put_many`."""

    def __len__(self) -> int: ...

    @property
    def columns(self) -> Sequence[pa.Array]:
        """The key columns."""
        ...

    def unique(self) -> tuple[Keys, np.ndarray[Any, Any]]:
        """Return the distinct keys, and for each row the index of its key among them."""
        ...

    def take(self, indices: Any) -> Keys:
        """Return the keys at these rows."""
        ...


class ValueState(Protocol):
    """One value a key. Assigning None clears it. In a KeyedBatchProcess: `get_many` and `put_many` instead."""

    value: Any

    def get_many(self, keys: Keys) -> pa.Array:
        """Return the values of many keys, in order; the default, or null, where there is none."""
        ...

    def put_many(self, keys: Keys, values: Any, *, last: bool = False) -> None:
        """Set the values of many keys: an Arrow or numpy array, or a list; null clears.

        Equal keys are refused, since only one of their values would be kept; with `last`, the last one counts.
        """
        ...

    def exists(self) -> bool:
        """Return whether the key has a value."""
        ...

    def clear(self) -> None:
        """Forget the key's value."""
        ...


class ListState(Protocol):
    """A list a key. Appending reads nothing, however long the list is."""

    def append(self, element: Any) -> None:
        """Add one element at the end."""
        ...

    def extend(self, elements: Iterable[Any]) -> None:
        """Add elements at the end."""
        ...

    def get(self) -> list[Any]:
        """Return a copy of the whole list."""
        ...

    def set(self, elements: Iterable[Any]) -> None:
        """Replace the whole list."""
        ...

    def clear(self) -> None:
        """Forget the list."""
        ...

    def __iter__(self) -> Iterator[Any]: ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: int | slice) -> Any: ...


MapState = MutableMapping[Any, Any]
"""A dict a key: each entry is stored, read and written on its own."""


class ReducingState(Protocol):
    """One value a key, made by reducing everything that was added."""

    value: Any

    def add(self, element: Any) -> None:
        """Reduce the element into the value."""
        ...

    def clear(self) -> None:
        """Forget the value."""
        ...


class AggregatingState(Protocol):
    """An accumulator a key, and a result computed from it."""

    def add(self, element: Any) -> None:
        """Add the element to the accumulator."""
        ...

    def result(self) -> Any:
        """Return the result, or None when nothing was added."""
        ...

    def clear(self) -> None:
        """Forget the accumulator."""
        ...


@dataclass(frozen=True, slots=True)
class TTL:
    """What a state holds expires this long after it was last written; expired values are never returned.

    Each key's value, each entry of a map and each element of a list expires on its own. `refresh="read"`: reading a
    value counts as writing it, unless that would prolong it by less than a sixteenth of the duration. `time="event"`:
    the time is the stream's event time and passes with the watermark; else it is the processing time, as in `ctx.now`.

    >>> seen = Value("bigint", ttl=TTL("1h"))
    """

    duration: str
    refresh: Literal["write", "read"] = "write"
    time: Literal["processing", "event"] = "processing"

    def __post_init__(self) -> None:
        if not 0 < self.duration_ms <= _LONGEST_TTL_MS:
            raise ConfigurationError(
                f"TTL: its duration is {self.duration!r}, expected more than 0 and at most 100 years",
                hint="write it like '30 min', '12h' or '90 days'; leave the TTL out for state that never expires",
            )
        for what, given, known in (
            ("refresh", self.refresh, ("write", "read")),
            ("time", self.time, ("processing", "event")),
        ):
            if given not in known:
                raise ConfigurationError(f"TTL: {what} is {given!r}, expected '{known[0]}' or '{known[1]}'")

    @property
    def duration_ms(self) -> int:
        """The duration in milliseconds."""
        return parse_duration_ms(self.duration, "TTL: its duration")


class Before(TypedDict, total=False):
    """What a declaration may say about what is stored already, as an older version of the program declared it.

    Paths are those of the present type: `price`, `address.city`, `items[].price`, `prices{}.net`.
    """

    was: str
    """The attribute that the state was declared as."""
    renamed: Mapping[str, str]
    """By path: what a field was called, in the same struct."""
    fill: Mapping[str, Any]
    """By path: what a field that is new has in values that are stored without it; else null."""


class State:
    """Root of all declarations."""

    kind: ClassVar[str]
    change: ClassVar[str]
    """How its handle is told a new value, for people who assign to the attribute."""

    def __init__(
        self,
        value_type: str | SparkType,
        key_type: str | SparkType = "",
        ttl: TTL | None = None,
        **before: Unpack[Before],
    ) -> None:
        if ttl is not None and not isinstance(ttl, TTL):
            raise ConfigurationError(
                f"{type(self).__name__}: its ttl is {ttl!r}, expected a TTL", hint="write it like ttl=TTL('1h')"
            )
        self.value_type = type_text(value_type, f"{type(self).__name__}: its type")
        self.key_type = type_text(key_type, f"{type(self).__name__}: its key type") if key_type else ""
        self.ttl = ttl
        self.name = ""
        self._check_before(before)
        self.was = before.get("was", "")
        self.hints = Hints(before.get("renamed", {}), before.get("fill", {}))

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def _check_before(self, before: Before) -> None:
        kind = type(self).__name__
        unknown = sorted(set(before) - Before.__annotations__.keys())
        if unknown:
            raise TypeError(f"{kind}() got an unexpected keyword argument '{unknown[0]}'")
        was = before.get("was", "unsaid")
        if not isinstance(was, str) or not was.strip():
            raise ConfigurationError(
                f"{kind}: was is {was!r}, expected the attribute that the state was declared as",
                hint='write it like was="seen"',
            )
        for what, example in (("renamed", '{"city": "town"}'), ("fill", '{"city": "unknown"}')):
            given: Any = before.get(what, {})
            texts = [*given, *(given.values() if what == "renamed" else ())] if isinstance(given, Mapping) else [None]
            if not all(isinstance(text, str) and text for text in texts):
                raise ConfigurationError(
                    f"{kind}: {what} is {given!r}, expected a dict by fields' paths", hint=f"write {what}={example}"
                )

    def assigned(self, value: Any) -> UserCodeError:
        """Return the error of a function that assigns to the attribute: that would replace the handle."""
        return UserCodeError(
            f"state '{self.name}' was assigned {value!r}, which would replace the state itself",
            hint=f"write {self.change.format(self.name)}",
        )


class Declaration(State, Generic[H]):
    """A state in whose place a running function finds a handle."""

    def __get__(self, instance: object, owner: type) -> H:
        if instance is None:
            return self  # type: ignore[return-value]
        raise ConfigurationError(
            f"state '{self.name}' was used outside of a running job",
            hint="use it in on_event or on_batch; a process function has state only while a job runs it",
        )


class Value(Declaration[ValueState]):
    """One value of a Spark type for each key.

    >>> class Count(KeyedProcess):
    ...     seen = Value("bigint", default=0)
    """

    kind = "value"
    change = "self.{0}.value = …, or self.{0}.put_many(keys, …) in a KeyedBatchProcess"

    def __init__(
        self, type: str | SparkType, *, default: Any = None, ttl: TTL | None = None, **before: Unpack[Before]
    ) -> None:
        super().__init__(type, ttl=ttl, **before)
        self.default = default


class List(Declaration[ListState]):
    """A list of elements of a Spark type for each key.

    With a `ttl`, each element expires on its own, so long after it was added; with `expires="list"`, the list does as a
    whole, and whatever is added to it prolongs all of it.

    >>> class Recent(KeyedProcess):
    ...     history = List("struct<ts: timestamp, v: int>")
    """

    kind = "list"
    change = "self.{0}.set(…), or self.{0}.append(…)"

    def __init__(
        self,
        type: str | SparkType,
        *,
        ttl: TTL | None = None,
        expires: Literal["element", "list"] = "element",
        **before: Unpack[Before],
    ) -> None:
        super().__init__(type, ttl=ttl, **before)
        if expires not in ("element", "list"):
            raise ConfigurationError(
                f"List: expires is {expires!r}, expected 'element' or 'list'",
                hint="say 'list' if whatever is added is to prolong the whole list",
            )
        if expires == "list" and ttl is None:
            raise ConfigurationError("List: expires was given, and no ttl", hint="write ttl=TTL('1h'), or leave it out")
        self.expires = expires


class Map(Declaration[MapState]):
    """A map from one Spark type to another for each key; in no order that is promised.

    >>> class PerType(KeyedProcess):
    ...     by_type = Map("string", "bigint")
    """

    kind = "map"
    change = "self.{0}[key] = …"

    def __init__(
        self, key: str | SparkType, value: str | SparkType, *, ttl: TTL | None = None, **before: Unpack[Before]
    ) -> None:
        super().__init__(value, key, ttl, **before)


class Reducing(Declaration[ReducingState]):
    """One value for each key, made by `reduce(value, element)`.

    >>> class Top(KeyedProcess):
    ...     highest = Reducing("double", max)
    """

    kind = "reducing"
    change = "self.{0}.add(…), or self.{0}.value = …"

    def __init__(
        self,
        type: str | SparkType,
        reduce: Callable[[Any, Any], Any],
        *,
        ttl: TTL | None = None,
        **before: Unpack[Before],
    ) -> None:
        super().__init__(type, ttl=ttl, **before)
        self.reduce = reduce


class Aggregating(Declaration[AggregatingState]):
    """An accumulator of a Spark type for each key: `create()`, `add(acc, element) -> acc`, `result(acc)`.

    >>> class Mean(KeyedProcess):
    ...     mean = Aggregating("struct<n: bigint, total: double>", create=lambda: (0, 0.0),
    ...                        add=lambda acc, x: (acc[0] + 1, acc[1] + x), result=lambda acc: acc[1] / acc[0])
    """

    kind = "aggregating"
    change = "self.{0}.add(…)"

    def __init__(
        self,
        type: str | SparkType,
        *,
        create: Callable[[], Any],
        add: Callable[[Any, Any], Any],
        result: Callable[[Any], Any] = lambda accumulator: accumulator,
        ttl: TTL | None = None,
        **before: Unpack[Before],
    ) -> None:
        super().__init__(type, ttl=ttl, **before)
        self.create = create
        self.add = add
        self.result = result


def declared_states(process: object) -> dict[str, State]:
    """Return the states of a process function, or its class, by name: the class's, its bases' included.

    And those that an instance declares as `own_states`: of functions that we make, whose types depend on the stream.
    """
    found: dict[str, State] = {}
    kind = process if isinstance(process, type) else type(process)
    for base in reversed(kind.__mro__):
        for name, attribute in vars(base).items():
            if isinstance(attribute, State):
                found[name] = attribute
            else:
                found.pop(name, None)
    return {**found, **getattr(process, "own_states", {})}
