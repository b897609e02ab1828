"""Write bytes.json: the encoded form of values and keys. The format is version 1: the bytes must never change.

Run by hand, from the repository's root, only to ADD samples: python -m tests.format.golden.make_bytes
"""

from __future__ import annotations

import json
from pathlib import Path

from strandline.format.keys import KeyCodec
from strandline.format.values import ValueCodec
from strandline.types.datatypes import parse_type
from tests.format.samples import KEYS, VALUES

TARGET = Path(__file__).with_name("bytes.json")


def main() -> None:
    values = [[ddl, [ValueCodec(parse_type(ddl)).encode(v).hex() for v in samples]] for ddl, samples in VALUES]
    keys = [[ddls, [KeyCodec([parse_type(d) for d in ddls]).encode(258, k).hex() for k in some]] for ddls, some in KEYS]
    lines = [json.dumps({"type": ddl, "hex": found}) for ddl, found in values]
    key_lines = [json.dumps({"types": ddls, "hex": found}) for ddls, found in keys]
    TARGET.write_text('{"values": [\n' + ",\n".join(lines) + '\n], "keys": [\n' + ",\n".join(key_lines) + "\n]}\n")


if __name__ == "__main__":
    main()
