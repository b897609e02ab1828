"""Types that are decoded in several threads.

Of two threads that decode a struct for the first time, msgspec 0.22 shows one the fields that the other has found so
far, and the process may end with SIGSEGV. So a type is looked into where it is defined.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

T = TypeVar("T")


def decodable(kind: type[T]) -> type[T]:
    """Have msgspec know a struct, and those in it, before there are threads: a decorator."""
    msgspec.json.Decoder(kind)
    return kind
