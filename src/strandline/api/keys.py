"""The keys that vectorised functions hand to their states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa


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
