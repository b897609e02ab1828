"""State that expires, against a dict with expiry, over every backend."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.api.states import TTL
from tests.runtime.bench import OPS, Bench, Model
from tests.runtime.living import Living, answers, epoch, stored
from tests.soak import BACKENDS, examples

WRITES = {
    "set_value": "value", "set_pair": "pair", "add_tag": "tags", "append": "list", "extend": "list", "set_list": "list",
    "put": "map", "reduce": "top", "average": "mean",
}  # fmt: skip
READS: dict[str, tuple[str, ...]] = {
    "get": ("map",), "read_map": ("maps",), "read_list": ("list",),
    "read": ("value", "pair", "tags", "top", "mean", "list", "maps"),
}  # fmt: skip


class ExpiringModel:
    """What Living does: a Model, and when what is in it expires."""

    def __init__(
        self,
        ttl: TTL,
        whole: bool,
        model: Model | None = None,
        expires: dict[Any, float] | None = None,
        elements: dict[str, list[float]] | None = None,
    ) -> None:
        self.ttl = ttl
        self.whole = whole
        self.elements: dict[str, list[float]] = elements or {}
        """By key: when each element of its list expires, if they do on their own."""
        self.duration = ttl.duration_ms / 1000
        self.model = model or Model()
        self.expires: dict[Any, float] = expires or {}

    def copy(self) -> ExpiringModel:
        states = self.model.copy()
        elements = {key: list(times) for key, times in self.elements.items()}
        return ExpiringModel(self.ttl, self.whole, states, dict(self.expires), elements)

    def answer(self, event: Any, now: float, reached: float | None, time: float) -> Any:
        k, op, a, b = event
        passed = reached if self.ttl.time == "event" else now
        base = max(time, reached if reached is not None else time) if self.ttl.time == "event" else now
        state = self.model.keys.setdefault(k, {"list": [], "map": {}})
        for name in [n for n, at in self.expires.items() if n[0] == k and passed is not None and passed >= at]:
            self.forget(state, name)
        self.forget_elements(state, k, passed)
        if self.ttl.refresh == "read":
            for name in READS.get(op, ()):
                self.touch(state, k, name, a, base, reading=True)
        found = self.model.answer(k, op, a, b)
        if op == "clear_list":
            self.elements[k] = []
        if WRITES.get(op) == "list":
            self.add_elements(state, k, op, base)
        if op in WRITES:
            self.touch(state, k, WRITES[op], a, base, reading=False)
        for name in [n for n in self.expires if n[0] == k and not self.there(state, n)]:
            del self.expires[name]
        return found

    def touch(self, state: Any, k: str, name: str, a: int, base: float, *, reading: bool) -> None:
        if name == "list" and not self.whole:
            if reading:
                self.renew_elements(k, base)
            return
        subs = list(state["map"]) if name == "maps" else [a]
        for sub in subs:
            at = (k, "map", sub) if name.startswith("map") else (k, name)
            if not self.there(state, at):
                continue
            renewed = base + self.duration
            if self.ttl.time == "event":
                renewed = max(renewed, self.expires.get(at, renewed))
            if not reading or (renewed - self.expires[at]) * 16 > self.duration:
                self.expires[at] = renewed

    def forget_elements(self, state: Any, k: str, passed: float | None) -> None:
        times = self.elements.get(k, [])
        kept = [at for at, time in enumerate(times) if passed is None or passed < time]
        if not self.whole and len(kept) < len(times):
            state["list"] = [state["list"][at] for at in kept]
            self.elements[k] = [times[at] for at in kept]

    def add_elements(self, state: Any, k: str, op: str, base: float) -> None:
        times = [] if op == "set_list" else self.elements.get(k, [])
        self.elements[k] = times + [base + self.duration] * (len(state["list"]) - len(times))

    def renew_elements(self, k: str, base: float) -> None:
        renewed = base + self.duration
        self.elements[k] = [
            renewed if (renewed - time) * 16 > self.duration else time for time in self.elements.get(k, [])
        ]

    def there(self, state: Any, at: Any) -> bool:
        return at[2] in state["map"] if at[1] == "map" else bool(state["list"]) if at[1] == "list" else at[1] in state

    def forget(self, state: Any, at: Any) -> None:
        del self.expires[at]
        if at[1] == "map":
            del state["map"][at[2]]
        elif at[1] == "list":
            state["list"] = []
        else:
            del state[at[1]]


events_at = st.tuples(
    st.tuples(st.sampled_from(["x", "y"]), st.sampled_from(OPS), st.integers(0, 2), st.integers(0, 3)),
    st.integers(-10, 10),
)
epochs_at = st.lists(
    st.tuples(
        st.integers(0, 9),
        st.lists(events_at, max_size=6),
        st.sampled_from(["keep", "keep", "abort", "snapshot", "write", "restore"]),
    ),
    min_size=1,
    max_size=25,
)
ttls = st.builds(
    TTL, st.just("16s"), refresh=st.sampled_from(["write", "read"]), time=st.sampled_from(["processing", "event"])
)


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize("expires", ["element", "list"])
@examples(15)
@given(ttl=ttls, epochs=epochs_at, cache_bytes=st.sampled_from([1, 1 << 20]))
def test_against_a_dict_with_expiry(
    tmp_path_factory: pytest.TempPathFactory, kind: str, expires: str, ttl: TTL, epochs: Any, cache_bytes: int
) -> None:
    timed = ttl.time == "event"
    bench = Bench(kind, tmp_path_factory.mktemp("ttl"), Living(ttl, expires), cache_bytes=cache_bytes, timed=timed)
    model = ExpiringModel(ttl, expires == "list")
    files, then, number, now = bench.snapshot(), model.copy(), 0, 1000
    for passes, events, end in epochs:
        now += passes
        after = model.copy()
        watermark = now if timed else None
        wanted = [repr(after.answer(event, now, watermark, now + offset)) for event, offset in events]
        rows = epoch(
            bench, [event for event, _ in events], now_s=now, watermark_s=watermark, abort=end == "abort",
            times_s=[now + offset for _, offset in events],
        )  # fmt: skip
        assert answers(rows) == wanted
        model = model if end == "abort" else after
        if end == "snapshot":
            files, then, number = bench.snapshot(), model.copy(), bench.epoch
        if end == "write":
            bench.write(bench.freeze())
        if end == "restore":
            bench.restore(files, number)
            model = then.copy()
    epoch(bench, now_s=now + 1000, watermark_s=now + 1000 if timed else None)
    assert stored(bench) == {}
    bench.close()
