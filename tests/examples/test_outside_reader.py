"""A checkpoint read by what docs/format.md says and nothing else: no part of Strandline is used for reading."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import struct
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import rocksdict

import strandline as sl
from examples import two_operators
from examples._inputs import write_json

pytestmark = pytest.mark.spark


class Purchases(sl.KeyedProcess):
    spent = sl.Value("bigint")
    by_size = sl.Map("string", "bigint")
    amounts = sl.List("bigint")

    def on_event(self, event: Any, ctx: sl.Context) -> None:
        self.spent.value = (self.spent.value or 0) + event.amount
        size = "big" if event.amount > 30 else "small"
        self.by_size[size] = self.by_size.get(size, 0) + 1
        self.amounts.append(event.amount)


@pytest.mark.parametrize(
    ("backend", "mode"),
    [*((each, "incremental") for each in ("rocksdb", "filesystem", "memory")), ("rocksdb", "changelog")],
)
def test_outside_reader(spark, tmp_path, local_dir, backend, mode):
    orders = two_operators.orders()
    write_json(tmp_path / "in", orders)
    df = spark.readStream.schema("customer string, amount bigint").option("maxFilesPerTrigger", 1)
    stream = sl.stream(df.json(str(tmp_path / "in"))).key_by("customer")
    job = sl.Job(
        "outside",
        sinks=[stream.process(Purchases(), output="x int", uid="purchases").to(sl.sinks.noop())],
        checkpoints=sl.Checkpoints(tmp_path / "ck", every="1ms" if mode == "changelog" else "1h", mode=mode),
        trigger="available-now",
        settings=sl.Settings(backend=backend, parallelism=2, local_dir=local_dir),
    )
    job.start(spark).await_termination(120)

    amounts: dict[str, list[int]] = defaultdict(list)
    for order in orders:
        amounts[order["customer"]].append(order["amount"])
    sizes = {c: dict(Counter("big" if a > 30 else "small" for a in spent)) for c, spent in amounts.items()}
    found = read_newest(tmp_path / "ck" / "outside", tmp_path / "db")
    assert found["spent"] == {c: sum(spent) for c, spent in amounts.items()}
    assert found["by_size"] == sizes
    assert {c: sorted(a) for c, a in found["amounts"].items()} == {c: sorted(a) for c, a in amounts.items()}


def read_newest(folder: Path, scratch: Path) -> dict[str, dict[str, Any]]:
    path = max(folder.glob("chk-*/_metadata"), key=lambda p: int(p.parent.name[4:]))
    manifest = json.loads(unframed(path.read_bytes(), b"SLMANIF1"))
    (operator,) = manifest["operators"]
    assert operator["key_schema"] == "`customer` string"
    found: dict[str, dict[str, Any]] = {state["name"]: {} for state in operator["states"]}
    for partition in operator["partitions"]:
        files = {f["name"]: content(folder, f) for f in partition["files"]}
        assert any(name.endswith(".log") for name in files) == (manifest["mode"] == "changelog")
        read = read_heap if "state.heap" in files else read_rocksdb
        for state, key, value in read(files, scratch / str(partition["index"])):
            group, customer, rest = key_of(key)
            assert partition["first_key_group"] <= group <= partition["last_key_group"]
            assert value[:2] == b"\x00\x00"
            if state == "spent":
                (found[state][customer],) = struct.unpack("<q", value[2:])
            elif state == "by_size":
                size, _ = text_of(rest)
                found[state].setdefault(customer, {})[size] = struct.unpack("<q", value[2:])[0]
            else:
                found[state].setdefault(customer, []).extend(integers_of(value[2:]))
    return found


def unframed(data: bytes, magic: bytes) -> bytes:
    found, version, length = struct.unpack_from("<8sIQ", data)
    assert (found, version, len(data)) == (magic, 1, 20 + length + 32)
    assert hashlib.sha256(data[:-32]).digest() == data[-32:]
    return data[20:-32]


def content(folder: Path, file: dict[str, Any]) -> bytes:
    data = base64.b64decode(file["inline"]) if "inline" in file else (folder / file["path"]).read_bytes()
    assert (len(data), hashlib.sha256(data).hexdigest()) == (file["size"], file["sha256"])
    return data


def read_heap(files: dict[str, bytes], _: Path) -> Iterator[tuple[str, bytes, bytes]]:
    data = files["state.heap"]
    assert data[:12] == b"SLHEAPS1" + struct.pack("<I", 1)
    assert struct.unpack_from("<I", data, 12)[0] == zlib.crc32(data[:12])
    at, index, count, state = 16, 0, 0, ""
    while True:
        kind, number, length = struct.unpack_from("<BII", data, at)
        payload = data[at + 9 : at + 9 + length]
        (crc,) = struct.unpack_from("<I", data, at + 9 + length)
        assert (number, crc) == (index, zlib.crc32(data[at : at + 9 + length]))
        at, index = at + 13 + length, index + 1
        if kind == 3:
            assert (struct.unpack("<Q", payload)[0], at) == (count, len(data))
            return
        if kind == 1:
            state = payload.decode()
            continue
        inside = 0
        while inside < length:
            key_length, value_length = struct.unpack_from("<II", payload, inside)
            value_at = inside + 8 + key_length
            yield state, payload[inside + 8 : value_at], payload[value_at : value_at + value_length]
            inside, count = value_at + value_length, count + 1


def read_rocksdb(files: dict[str, bytes], directory: Path) -> Iterator[tuple[str, bytes, bytes]]:
    directory.mkdir(parents=True)
    for name, data in sorted(files.items()):
        real = re.sub(r"-[0-9a-f]{16}(-\d+)*(?=\.(sst|blob|log)$|$)", "", name)
        with (directory / real).open("ab") as file:
            file.write(data)
        if real.startswith("MANIFEST") and real != name:
            (directory / "CURRENT").write_text(f"{real}\n")
    options = rocksdict.Options(raw_mode=True)
    states = [name for name in rocksdict.Rdict.list_cf(str(directory), options) if name != "default"]
    families = {name: rocksdict.Options(raw_mode=True) for name in states}
    access = rocksdict.AccessType.read_only()
    db = rocksdict.Rdict(str(directory), options, column_families=families, access_type=access)
    for state in states:
        for key, value in db.get_column_family(state).items():
            yield state, bytes(key), bytes(value)
    db.close()


def key_of(data: bytes) -> tuple[int, str, bytes]:
    text, end = text_of(data[2:])
    return int.from_bytes(data[:2], "big"), text, data[2 + end :]


def text_of(data: bytes) -> tuple[str, int]:
    end = re.search(rb"\x00(?!\xff)\x00", data).start()  # type: ignore[union-attr]
    return data[:end].replace(b"\x00\xff", b"\x00").decode(), end + 2


def integers_of(data: bytes) -> list[int]:
    """The part of msgpack that an array of whole numbers below 128 needs."""
    if data[0] & 0xF0 == 0x90:
        count, at = data[0] & 0x0F, 1
    else:
        assert data[0] == 0xDC
        count, at = int.from_bytes(data[1:3], "big"), 3
    assert len(data) == at + count
    return list(data[at:])
