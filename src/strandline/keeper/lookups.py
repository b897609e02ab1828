"""Look-ups of keys in a running job: the driver's requests to keepers, and the values in their answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from strandline.core.errors import ConfigurationError, NotFoundError, StateTypeError
from strandline.core.ids import Epoch, Partition
from strandline.core.keygroups import partition_of
from strandline.core.times import as_datetime
from strandline.format.keys import KeyCodec
from strandline.format.manifest import OperatorInfo, StateInfo
from strandline.format.names import StatePath, matching_names, name_in
from strandline.format.values import ValueCodec
from strandline.runtime.state.lookups import (
    KNOWN,
    MAX_KEYS,
    TIME,
    VALUES,
    Entries,
    LookupEntries,
    LookupRequest,
    looked_up_type,
)
from strandline.types.coercion import MisfitError
from strandline.types.datatypes import Field, StructType, parse_schema, parse_type
from strandline.types.jsonforms import from_text
from strandline.types.murmur import key_group

MOST_LISTED = 500
"""The most keys of a list."""
_BROADCAST_PARTITION = Partition(0)
"""The partition that answers look-ups of broadcast state: each has a copy."""


@dataclass(frozen=True)
class LookupResult:
    """The state of keys in a running job."""

    table: str
    epoch: Epoch
    """The last epoch whose writes `value` includes. A partition that is ahead may include writes of the next one."""
    value: Any
    """For one key: its value, or None; a dict for a map; a list for a list; the times of timers; for windowed
    aggregates, a dict from ends of panes to accumulators. For a list of keys: a list of these, in its order."""


@dataclass(frozen=True)
class FirstKeys:
    """Some keys of a state in a running job, with what a look-up of each returns."""

    table: str
    epoch: Epoch
    """As of a look-up."""
    keys: list[tuple[Any, ...]]
    """The columns of each key."""
    values: list[Any]
    has_more: bool
    """Whether the state has, or may have, other keys."""


class LookupTable:
    """One state of a keyed operator of a running job: finds the partitions of keys, and decodes values."""

    def __init__(self, operator: OperatorInfo, state: StateInfo) -> None:
        self.name = f"{operator.uid}.{state.name}"
        self.uid = operator.uid
        self._operator, self._state = operator, state
        fields = list(parse_schema(operator.key_schema).fields)
        self._decode: Callable[[bytes], Any] = bytes
        if state.kind != "timers":
            self._decode = ValueCodec(looked_up_type(state, len(fields))).decode
        self._sub_keys = KeyCodec([parse_type(state.key_type)]) if state.key_type else None
        self.key_columns = [Field("key", parse_type(state.key_type))] if state.kind == "broadcast" else fields
        """The columns of a key; for broadcast state, of the map's key."""
        self._types = [field.type for field in self.key_columns]
        self._keys = KeyCodec(self._types)

    def requests(self, keys: Sequence[Any], now_us: int) -> dict[Partition, tuple[list[int], LookupRequest]]:
        """Return for each partition the positions of its keys, and a request. Raises StateTypeError for a bad key."""
        requests: dict[Partition, tuple[list[int], LookupRequest]] = {}
        for position, key in enumerate(keys):
            partition, encoded = self._locate(key)
            request = LookupRequest(state=self._state.name, keys=[], now_us=now_us)
            positions, request = requests.setdefault(partition, ([], request))
            positions.append(position)
            request.keys.append(encoded)
        return requests

    def read(
        self, requests: Mapping[Partition, tuple[list[int], LookupRequest]], answers: Mapping[Partition, LookupEntries]
    ) -> tuple[Epoch, list[Any]]:
        """Return the last epoch that all answers include, and the values of all keys in order."""
        values = {
            position: self._decode_entries(entries)
            for partition, (positions, _) in requests.items()
            for position, entries in zip(positions, answers[partition].entries, strict=True)
        }
        return min(answer.epoch for answer in answers.values()), [values[position] for position in range(len(values))]

    @property
    def kind(self) -> str:
        """The kind of the state."""
        return self._state.kind

    @property
    def partitions(self) -> int:
        """The number of partitions that have keys of their own."""
        return 1 if self._state.kind == "broadcast" else self._operator.parallelism

    def first_requests(self, most: int, partition: int | None, now_us: int) -> dict[Partition, LookupRequest]:
        """Return the requests for the first keys: `most`, divided among all partitions or of one of them.

        Raises ConfigurationError for too many keys, and NotFoundError for an unknown partition.
        """
        if not 1 <= most <= MOST_LISTED:
            raise ConfigurationError(
                f"table '{self.name}': {most} keys are to be listed, expected 1 to {MOST_LISTED}",
                hint="read many keys from a checkpoint: strandline.state.read, or `strandline state`",
            )
        partitions = [Partition(at) for at in range(self.partitions)]
        if partition is not None and partition not in partitions:
            raise NotFoundError(
                f"operator '{self.uid}' has no partition {partition}", hint=f"it has 0 to {len(partitions) - 1}"
            )
        partitions = partitions if partition is None else [Partition(partition)]
        request = LookupRequest(state=self._state.name, keys=[], now_us=now_us, most=-(-most // len(partitions)))
        return dict.fromkeys(partitions, request)

    def read_first(self, most: int, answers: Mapping[Partition, LookupEntries]) -> FirstKeys:
        """Return the keys in the answers to `first_requests`, by partition, and their values."""
        keys, values = list[tuple[Any, ...]](), list[Any]()
        for _, answer in sorted(answers.items()):
            keys += map(self._columns, answer.keys)
            values += map(self._decode_entries, answer.entries)
        has_more = len(keys) > most or any(answer.has_more for answer in answers.values())
        epoch = min(answer.epoch for answer in answers.values())
        return FirstKeys(self.name, epoch, keys[:most], values[:most], has_more)

    def _columns(self, encoded: bytes) -> tuple[Any, ...]:
        if self._state.kind == "broadcast":
            return (self._keys.decode_sub(encoded, 0),)
        _, key, _ = self._keys.decode(encoded)
        return (key,) if len(self._types) == 1 else tuple(key)

    def key_of(self, text: str) -> Any:
        """Parse a key: JSON or, for one column, plain text. Raises StateTypeError."""
        kind = self._types[0] if len(self._types) == 1 else StructType(tuple(self.key_columns))
        try:
            return self._codec_key(from_text(text, kind))
        except MisfitError as misfit:
            raise self._misfit(str(misfit)) from None

    def _locate(self, key: Any) -> tuple[Partition, bytes]:
        ordered = self._codec_key(key)
        try:
            plain = self._keys.coerce(ordered)
        except StateTypeError as error:
            raise self._misfit(error.message) from None
        if self._state.kind == "broadcast":
            return _BROADCAST_PARTITION, self._keys.encode_sub(plain)
        parts = [plain] if len(self._types) == 1 else plain
        group = key_group(parts, self._types, self._operator.max_parallelism)
        partition = partition_of(group, self._operator.max_parallelism, self._operator.parallelism)
        return partition, self._keys.encode(group, plain)

    def _codec_key(self, key: Any) -> Any:
        """Return a key in the form that key codecs take: a dict of its columns becomes a value or a tuple."""
        names = [field.name for field in self.key_columns]
        if not isinstance(key, Mapping) or (len(names) == 1 and isinstance(self._types[0], StructType)):
            return key
        if sorted(map(str, key)) != sorted(names):
            raise self._misfit(f"it has the columns {', '.join(map(str, key))}")
        return key[names[0]] if len(names) == 1 else tuple(key[name] for name in names)

    def _misfit(self, why: str) -> StateTypeError:
        columns = ", ".join(f"{field.name} {field.type.ddl}" for field in self.key_columns)
        return StateTypeError(
            f"table '{self.name}': a key is not ({columns}): {why}",
            hint="give a value, or for several columns a tuple or a dict; a list is several keys",
        )

    def _decode_entries(self, entries: Entries) -> Any:
        kind, decode = self._state.kind, self._decode
        if kind in VALUES:
            return decode(entries[0][1]) if entries else None
        if kind == "list":
            return [decode(element) for _, element in entries]
        if self._sub_keys is not None:
            return {self._sub_keys.decode_sub(sub, 0): decode(value) for sub, value in entries}
        values = {as_datetime(time_us): decode(value) for time_us, value in sorted(map(_timed_entry, entries))}
        return list(values) if kind == "timers" else values


def _timed_entry(entry: tuple[bytes, bytes]) -> tuple[int, bytes]:
    return TIME.unpack(entry[0])[0], entry[1]


def tables_of(operators: Sequence[OperatorInfo]) -> dict[str, LookupTable]:
    """Return the tables of a job by their names."""
    states = _states_of(operators)
    return {name_in([*states], path): LookupTable(*of) for path, of in states.items()}


def table_of(operators: Sequence[OperatorInfo], name: str) -> LookupTable:
    """Return the table named `uid.state`. Raises NotFoundError, which lists the tables."""
    tables = _states_of(operators)
    matches = matching_names(name, [*tables])
    if len(matches) != 1:
        known = ", ".join(name_in([*tables], path) for path in matches or tables)
        raise NotFoundError(
            f"there is no table '{name}' in this job" if not matches else f"'{name}' may be any of {known}",
            hint=f"a table is an operator's uid and a state's name: {known or 'the job has none'}",
        )
    return LookupTable(*tables[matches[0]])


def _states_of(operators: Sequence[OperatorInfo]) -> dict[StatePath, tuple[OperatorInfo, StateInfo]]:
    return {
        StatePath(op.uid, state.name): (op, state) for op in operators for state in op.states if state.kind in KNOWN
    }


def look_up(
    table: LookupTable,
    key: Any,
    now_us: int,
    ask: Callable[[str, Mapping[Partition, LookupRequest]], Mapping[Partition, LookupEntries]],
) -> LookupResult:
    """Look up a key, or a list of keys; `ask` sends requests to the keepers of an operator.

    Raises ConfigurationError for more than MAX_KEYS.
    """
    keys = key if isinstance(key, list) else [key]
    if not 1 <= len(keys) <= MAX_KEYS:
        raise ConfigurationError(
            f"table '{table.name}': {len(keys)} keys are to be looked up, expected 1 to {MAX_KEYS}",
            hint="read many keys from a checkpoint: strandline.state.read, or `strandline state`",
        )
    requests = table.requests(keys, now_us)
    answers = ask(table.uid, {partition: request for partition, (_, request) in requests.items()})
    epoch, values = table.read(requests, answers)
    return LookupResult(table.name, epoch, values if isinstance(key, list) else values[0])


def list_first(
    table: LookupTable,
    most: int,
    partition: int | None,
    now_us: int,
    ask: Callable[[str, Mapping[Partition, LookupRequest]], Mapping[Partition, LookupEntries]],
) -> FirstKeys:
    """Return the first keys of a table with their values; `ask` as in `look_up`."""
    return table.read_first(most, ask(table.uid, table.first_requests(most, partition, now_us)))
