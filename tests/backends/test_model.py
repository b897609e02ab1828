"""Random sequences of writes, snapshots, restores and crashes, compared with plain dicts."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from strandline.backends.base import Base, LocalFile
from tests.soak import examples

from .conftest import KINDS, STATES, Lab

Model = dict[str, dict[bytes, bytes]]

keys = st.binary(max_size=3) | st.sampled_from([b"\0\1", b"\0\1a", b"\0\1ab", b"\xff\xff"])
changes = st.dictionaries(
    st.sampled_from(STATES), st.dictionaries(keys, st.none() | st.binary(max_size=40), max_size=8), max_size=2
)


def applied(model: Model, given: dict[str, dict[bytes, bytes | None]]) -> Model:
    result = {state: dict(entries) for state, entries in model.items()}
    for state, entries in given.items():
        for key, value in entries.items():
            if value is None:
                result[state].pop(key, None)
            else:
                result[state][key] = value
    return result


class BackendMachine(RuleBasedStateMachine):
    """The backend equals the model; a restore brings back exactly what the model was at the snapshot."""

    kind = ""

    @initialize()
    def start(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.lab = Lab(self.kind, Path(self.folder.name))
        self.model: Model = {state: {} for state in STATES}
        self.snapshots: list[tuple[list[LocalFile], Model]] = []
        self.contents: dict[str, bytes] = {}
        self.backend = self.lab.open()
        self.base: Base | None = None

    @rule(given=changes)
    def write(self, given: dict[str, dict[bytes, bytes | None]]) -> None:
        self.backend.write({state: iter(entries.items()) for state, entries in given.items()})
        self.model = applied(self.model, given)

    @rule(given=changes)
    def persist(self, given: dict[str, dict[bytes, bytes | None]]) -> None:
        files = self.backend.persist({state: iter(e.items()) for state, e in given.items()}, self.lab.place())
        self.model = applied(self.model, given)
        self.snapshots.append((files, self.model))
        for file in files:
            if file.shared:
                data = file.path.read_bytes()
                assert self.contents.setdefault(file.name, data) == data

    @rule(data=st.data())
    def restore(self, data: Any) -> None:
        if self.snapshots:
            self.backend.close()
            self.base = None
            files, self.model = data.draw(st.sampled_from(self.snapshots))
            self.backend = self.lab.restore(files)

    @precondition(lambda self: self.backend.changelog is not None)
    @rule()
    def rebase(self) -> None:
        self.base = self.backend.changelog.rebase()

    @precondition(lambda self: self.base is not None)
    @rule()
    def begin_at_the_new_base(self) -> None:
        assert self.base is not None
        self.backend.changelog.begin_at(self.base)
        self.base = None

    @precondition(lambda self: self.backend.changelog is not None)
    @rule(state=st.sampled_from(STATES), seed=st.integers(0, 255))
    def fill_write_buffers(self, state: str, seed: int) -> None:
        """Have RocksDB flush by itself, and changes that wait be too many."""
        given: dict[str, dict[bytes, bytes | None]] = {
            state: {b"\0%c%d" % (seed, number): bytes([seed]) * 200_000 for number in range(30)}
        }
        self.backend.write({state: iter(given[state].items())})
        self.model = applied(self.model, given)

    @rule(state=st.sampled_from(STATES), asked=st.lists(keys, max_size=6))
    def get_many(self, state: str, asked: list[bytes]) -> None:
        assert self.backend.get_many(state, asked) == [self.model[state].get(key) for key in asked]

    @rule(state=st.sampled_from(STATES), prefix=st.binary(max_size=2) | keys)
    def scan(self, state: str, prefix: bytes) -> None:
        expected = sorted(entry for entry in self.model[state].items() if entry[0].startswith(prefix))
        assert list(self.backend.scan(state, prefix)) == expected
        assert self.backend.read_group(state, prefix) == expected

    @invariant()
    def equals_the_model(self) -> None:
        if hasattr(self, "backend"):
            for state in STATES:
                assert dict(self.backend.scan(state)) == self.model[state]

    def teardown(self) -> None:
        if hasattr(self, "lab"):
            self.lab.close()
            self.folder.cleanup()


@pytest.mark.hypothesis
@pytest.mark.parametrize("kind", KINDS)
def test_a_backend_equals_a_dict_through_snapshots_and_restores(kind: str) -> None:
    machine = type(f"{kind}Machine", (BackendMachine,), {"kind": kind})
    case = machine.TestCase
    case.settings = examples(
        15 if kind.startswith("rocksdb") else 60,
        stateful_step_count=20,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    case("runTest").runTest()
