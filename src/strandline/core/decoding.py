"""A decorator for msgspec structs that several threads decode.

When two threads decode a struct type for the first time, msgspec 0.22 lets one see the fields that the other has
collected so far, and the process may end with SIGSEGV. So the type information is built where the type is defined.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

T = TypeVar("T")


def decodable(kind: type[T]) -> type[T]:
    """Build msgspec's type information for a struct and the structs in it, before threads start; return the struct."""
    msgspec.json.Decoder(kind)
    return kind
