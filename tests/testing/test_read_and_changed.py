"""What a function has read of its state and holds, it may change. What it changes and does not hold: see tests/mistakes."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import strandline as sl
from strandline.testing import Harness


class Changing(sl.KeyedProcess):
    """Changes what it has read, and holds it meanwhile."""

    tags = sl.Value("array<string>", default=["a"])
    by = sl.Map("string", "struct<ns: array<int>>")
    lists = sl.List("array<int>")

    def on_event(self, event: Any, ctx: Any) -> Any:
        tags = self.tags.value
        tags.append("b")
        tags.sort(reverse=True)
        tags[0] += "!"
        self.tags.value = tags
        self.tags.value += ["c"]
        entry = self.by.get("k", ([],))
        entry[0].append(len(tags))
        self.by["k"] = entry
        lists = self.lists.get()
        lists.append([1])
        for each in lists:
            each.append(2)
        self.lists.set(lists)
        kept = {"read": self.tags.value}
        kept["read"].pop()
        read = self.tags.value
        assert (type(copy.deepcopy(read)), type(pickle.loads(pickle.dumps(read)))) == (list, list)
        assert read == json.loads(json.dumps(read))
        yield ctx.key, read, self.by["k"].ns, self.lists[-1]


def test_what_was_read_and_is_held_may_be_changed() -> None:
    output = "key string, tags array<string>, ns array<int>, last array<int>"
    with Harness(Changing(), schema="key string", key="key", output=output) as harness:
        assert harness.push(("x",)) == [("x", ["b!", "a", "c"], [2], [1, 2])]
        harness.snapshot()
        harness.crash()
        assert harness.push(("x",)) == [("x", ["c!", "b!", "b", "a", "c"], [2, 4], [1, 2])]
