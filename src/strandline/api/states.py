"""State declarations: class attributes of a process function, typed by Spark DDL, named by the attribute.

When the function runs, a handle to the state of the current key replaces each declaration on the instance. The
Protocols here describe the handles.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Protocol, TypedDict, Unpack, overload

from strandline.core.errors import ConfigurationError, UserCodeError
from strandline.core.settings import Duration, parse_duration_ms
from strandline.types.hints import Hints
from strandline.types.spark_schema import SparkType, type_text

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from typing_extensions import TypeVar

    H = TypeVar("H")
    K = TypeVar("K", default=Any)
    T = TypeVar("T", default=Any)
else:
    from typing import TypeVar

    H, K, T = map(TypeVar, ("H", "K", "T"))

Whole = Literal["tinyint", "smallint", "int", "bigint"]
Fraction = Literal["float", "double"]
Lives = Literal["element", "list"]
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
        """Return the keys at the indices."""
        ...


class ValueState(Protocol[T]):
    """One value for each key. Assigning None clears it. A KeyedBatchProcess uses `get_many` and `put_many` instead."""

    @property
    def value(self) -> T:
        """The value; the default, or None, for a key without one."""
        ...

    @value.setter
    def value(self, value: T | None) -> None: ...

    def get_many(self, keys: Keys) -> pa.Array:
        """Return the values of many keys, in their order; for a key without one, the default, or null."""
        ...

    def put_many(self, keys: Keys, values: Any, *, last: bool = False) -> None:
        """Set the values of many keys: an Arrow or numpy array, or a list; null clears.

        Equal keys are refused, since only one of their values would be kept; with `last`, the last one counts.
        """
        ...

    def exists(self) -> bool:
        """Whether the key has a value."""
        ...

    def clear(self) -> None:
        """Forget the key's value."""
        ...


class ListState(Protocol[T]):
    """A list for each key. Appending does not read the list."""

    def append(self, element: T) -> None:
        """Add one element at the end."""
        ...

    def extend(self, elements: Iterable[T]) -> None:
        """Add elements at the end."""
        ...

    def get(self) -> list[T]:
        """Return a copy of the whole list."""
        ...

    def set(self, elements: Iterable[T]) -> None:
        """Replace the whole list."""
        ...

    def clear(self) -> None:
        """Delete the list."""
        ...

    def __iter__(self) -> Iterator[T]: ...

    def __len__(self) -> int: ...

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...


MapState = MutableMapping[K, T]
"""A dict for each key. Each entry is stored, read and written separately."""


class ReducingState(Protocol[T]):
    """One value for each key: the reduction of all added elements."""

    @property
    def value(self) -> T:
        """The value; None for a key without one."""
        ...

    @value.setter
    def value(self, value: T | None) -> None: ...

    def add(self, element: T) -> None:
        """Reduce the element into the value."""
        ...

    def clear(self) -> None:
        """Forget the value."""
        ...


class AggregatingState(Protocol):
    """An accumulator for each key, and a result computed from it."""

    def add(self, element: Any) -> None:
        """Add the element to the accumulator."""
        ...

    def result(self) -> Any:
        """Return the result, or None when nothing was added."""
        ...

    def clear(self) -> None:
        """Delete the accumulator."""
        ...


@dataclass(frozen=True, slots=True)
class TTL:
    """The time to live of a state's contents after the last write. Expired values are never returned.

    Each key's value, each entry of a map and each element of a list expires separately. With `refresh="read"`, a read
    counts as a write, unless it would extend the life by less than a sixteenth of the duration. With `time="event"`,
    the watermark is the clock; otherwise it is the processing time, as in `ctx.now`.

    >>> seen = Value("bigint", ttl=TTL("1h"))
    """

    duration: Duration
    refresh: Literal["write", "read"] = "write"
    time: Literal["processing", "event"] = "processing"

    def __post_init__(self) -> None:
        if not 0 < self.duration_ms <= _LONGEST_TTL_MS:
            raise ConfigurationError(
                f"TTL: its duration is {self.duration!r}, expected more than 0 and at most 100 years",
                hint="write it like '30 min', '12h' or '90 days'; leave the TTL out for state that never expires",
            )
        for option, value, known in (
            ("refresh", self.refresh, ("write", "read")),
            ("time", self.time, ("processing", "event")),
        ):
            if value not in known:
                raise ConfigurationError(f"TTL: {option} is {value!r}, expected '{known[0]}' or '{known[1]}'")

    @property
    def duration_ms(self) -> int:
        """The duration in milliseconds."""
        return parse_duration_ms(self.duration, "TTL: its duration")


class Migration(TypedDict, total=False):
    """Options of a declaration for state that an older version of the program stored.

    Paths are those of the current type: `price`, `address.city`, `items[].price`, `prices{}.net`.
    """

    was: str
    """The former name of the attribute."""
    renamed: Mapping[str, str]
    """Former names of fields in the same struct, by path."""
    fill: Mapping[str, Any]
    """Values of new fields in values that are stored without them, by path; else null."""


class State:
    """Root of all declarations."""

    kind: ClassVar[str]
    change: ClassVar[str]
    """Code that changes the state, for the error of an assignment to the attribute."""

    def __init__(
        self,
        value_type: str | SparkType,
        key_type: str | SparkType = "",
        ttl: TTL | None = None,
        **migration: Unpack[Migration],
    ) -> None:
        if ttl is not None and not isinstance(ttl, TTL):
            raise ConfigurationError(
                f"{type(self).__name__}: its ttl is {ttl!r}, expected a TTL", hint="write it like ttl=TTL('1h')"
            )
        self.value_type = type_text(value_type, f"{type(self).__name__}: its type")
        self.key_type = type_text(key_type, f"{type(self).__name__}: its key type") if key_type else ""
        self.ttl = ttl
        self.name = ""
        self._check_migration(migration)
        self.was = migration.get("was", "")
        self.hints = Hints(migration.get("renamed", {}), migration.get("fill", {}))

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def _check_migration(self, migration: Migration) -> None:
        kind = type(self).__name__
        unknown = sorted(set(migration) - Migration.__annotations__.keys())
        if unknown:
            raise TypeError(f"{kind}() got an unexpected keyword argument '{unknown[0]}'")
        was = migration.get("was", "unsaid")
        if not isinstance(was, str) or not was.strip():
            raise ConfigurationError(
                f"{kind}: was is {was!r}, expected the attribute that the state was declared as",
                hint='write it like was="seen"',
            )
        for option, example in (("renamed", '{"city": "town"}'), ("fill", '{"city": "unknown"}')):
            paths: Any = migration.get(option, {})
            texts = [*paths, *(paths.values() if option == "renamed" else ())] if isinstance(paths, Mapping) else [None]
            if not all(isinstance(text, str) and text for text in texts):
                raise ConfigurationError(
                    f"{kind}: {option} is {paths!r}, expected a dict by fields' paths", hint=f"write {option}={example}"
                )

    def assigned(self, value: Any) -> UserCodeError:
        """Return the error for a function that assigns to the attribute, which would replace the handle."""
        return UserCodeError(
            f"state '{self.name}' was assigned {value!r}, which would replace the state itself",
            hint=f"write {self.change.format(self.name)}",
        )


class Declaration(State, Generic[H]):
    """A state that a handle replaces in a running function."""

    def __get__(self, instance: object, owner: type) -> H:
        if instance is None:
            return self  # type: ignore[return-value]
        raise ConfigurationError(
            f"state '{self.name}' was used outside of a running job",
            hint="use it in on_event or on_batch; a process function has state only while a job runs it",
        )


class Options(Migration, total=False):
    """Options that all states with a time to live have."""

    ttl: TTL | None


class Value(Declaration[ValueState[T]], Generic[T]):
    """One value of a Spark type for each key.

    >>> class Count(KeyedProcess):
    ...     seen = Value("bigint", default=0)
    """

    kind = "value"
    change = "self.{0}.value = …, or self.{0}.put_many(keys, …) in a KeyedBatchProcess"

    @overload
    def __init__(self: Value[int], type: Whole, *, default: int, **options: Unpack[Options]) -> None: ...
    @overload
    def __init__(self: Value[float], type: Fraction, *, default: float, **options: Unpack[Options]) -> None: ...
    @overload
    def __init__(self: Value[str], type: Literal["string"], *, default: str, **options: Unpack[Options]) -> None: ...
    @overload
    def __init__(self: Value[bool], type: Literal["boolean"], *, default: bool, **options: Unpack[Options]) -> None: ...
    @overload
    def __init__(self: Value[int | None], type: Whole, **options: Unpack[Options]) -> None: ...
    @overload
    def __init__(self: Value[float | None], type: Fraction, **options: Unpack[Options]) -> None: ...
    @overload
    def __init__(self: Value[str | None], type: Literal["string"], **options: Unpack[Options]) -> None: ...
    @overload
    def __init__(self: Value[bool | None], type: Literal["boolean"], **options: Unpack[Options]) -> None: ...
    @overload
    def __init__(self: Value[dt.datetime | None], type: Literal["timestamp"], **options: Unpack[Options]) -> None: ...
    @overload
    def __init__(self: Value[dt.date | None], type: Literal["date"], **options: Unpack[Options]) -> None: ...
    @overload
    def __init__(self: Value[bytes | None], type: Literal["binary"], **options: Unpack[Options]) -> None: ...
    @overload
    def __init__(self, type: str | SparkType, *, default: Any = None, **options: Unpack[Options]) -> None: ...
    def __init__(
        self, type: str | SparkType, *, default: Any = None, ttl: TTL | None = None, **migration: Unpack[Migration]
    ) -> None:
        super().__init__(type, ttl=ttl, **migration)
        self.default = default


class List(Declaration[ListState[T]], Generic[T]):
    """A list of elements of a Spark type for each key.

    With a `ttl`, each element expires that long after it was added. With `expires="list"`, the list expires as a
    whole, and each added element extends the life of all.

    >>> class Recent(KeyedProcess):
    ...     history = List("struct<ts: timestamp, v: int>")
    """

    kind = "list"
    change = "self.{0}.set(…), or self.{0}.append(…)"

    @overload
    def __init__(self: List[int], type: Whole, *, expires: Lives = "element", **options: Unpack[Options]) -> None: ...
    @overload
    def __init__(
        self: List[float], type: Fraction, *, expires: Lives = "element", **options: Unpack[Options]
    ) -> None: ...
    @overload
    def __init__(
        self: List[str], type: Literal["string"], *, expires: Lives = "element", **options: Unpack[Options]
    ) -> None: ...
    @overload
    def __init__(
        self: List[bool], type: Literal["boolean"], *, expires: Lives = "element", **options: Unpack[Options]
    ) -> None: ...
    @overload
    def __init__(
        self: List[dt.datetime], type: Literal["timestamp"], *, expires: Lives = "element", **options: Unpack[Options]
    ) -> None: ...
    @overload
    def __init__(
        self: List[dt.date], type: Literal["date"], *, expires: Lives = "element", **options: Unpack[Options]
    ) -> None: ...
    @overload
    def __init__(
        self: List[bytes], type: Literal["binary"], *, expires: Lives = "element", **options: Unpack[Options]
    ) -> None: ...
    @overload
    def __init__(self, type: str | SparkType, *, expires: Lives = "element", **options: Unpack[Options]) -> None: ...
    def __init__(
        self,
        type: str | SparkType,
        *,
        ttl: TTL | None = None,
        expires: Lives = "element",
        **migration: Unpack[Migration],
    ) -> None:
        super().__init__(type, ttl=ttl, **migration)
        if expires not in ("element", "list"):
            raise ConfigurationError(
                f"List: expires is {expires!r}, expected 'element' or 'list'",
                hint="write 'list' if each added element is to extend the life of the whole list",
            )
        if expires == "list" and ttl is None:
            raise ConfigurationError("List: expires was given, and no ttl", hint="write ttl=TTL('1h'), or leave it out")
        self.expires = expires


class Map(Declaration[MapState[K, T]], Generic[K, T]):
    """A map from one Spark type to another for each key. The order of entries is undefined.

    >>> class PerType(KeyedProcess):
    ...     by_type = Map("string", "bigint")
    """

    kind = "map"
    change = "self.{0}[key] = …"

    def __init__(
        self, key: str | SparkType, value: str | SparkType, *, ttl: TTL | None = None, **migration: Unpack[Migration]
    ) -> None:
        super().__init__(value, key, ttl, **migration)


class Reducing(Declaration[ReducingState[T]], Generic[T]):
    """One value for each key, computed by `reduce(value, element)`.

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
        **migration: Unpack[Migration],
    ) -> None:
        super().__init__(type, ttl=ttl, **migration)
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
        **migration: Unpack[Migration],
    ) -> None:
        super().__init__(type, ttl=ttl, **migration)
        self.create = create
        self.add = add
        self.result = result


def declared_states(process: object) -> dict[str, State]:
    """Return the states of a process function or its class by name, those of base classes included.

    Built-in operators, whose types depend on the stream, declare theirs on the instance as `own_states`.
    """
    states: dict[str, State] = {}
    kind = process if isinstance(process, type) else type(process)
    for base in reversed(kind.__mro__):
        for name, attribute in vars(base).items():
            if isinstance(attribute, State):
                states[name] = attribute
            else:
                states.pop(name, None)
    return {**states, **getattr(process, "own_states", {})}
