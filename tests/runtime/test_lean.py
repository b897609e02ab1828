"""Processes that handle Arrow's data import pandas when somebody needs it, and then everything is as ever."""

from __future__ import annotations

import subprocess
import sys

import pytest

_DEFERRED = """
import sys
import pyarrow as pa
from strandline.keeper.lean import defer_pandas

defer_pandas()
defer_pandas()
assert pa.array([1, None]).to_numpy(zero_copy_only=False).size == 2
assert pa.RecordBatch.from_pydict({"a": [pa.scalar(1)]}).num_rows == 1
assert "pandas" not in sys.modules
"""

_ARROW_NEEDS_IT = """
assert pa.table({'a': [1]}).to_pandas().a.sum() == 1
assert 'pandas' in sys.modules
"""

_A_USER_IMPORTS_IT = """
import importlib.resources
import pandas.api.types as types

import pandas

assert pa.array(pandas.Series([1.0, float('nan')])).null_count == 1
assert pa.RecordBatch.from_pandas(pandas.DataFrame({'a': [1]})).num_rows == 1
defer_pandas()
assert pa.array(pandas.Series([float('nan')])).null_count == 1
assert all('Deferring' not in type(finder).__name__ for finder in sys.meta_path)
assert importlib.resources.files('pandas').joinpath('__init__.py').is_file()
assert pandas.__spec__.loader.get_filename() == pandas.__file__
"""

_ANOTHER_THREAD_IMPORTS_IT_MEANWHILE = """
import sys
import threading
from strandline.keeper.lean import _Deferring

sys.meta_path.insert(0, _Deferring())
thread = threading.Thread(target=__import__, args=('pandas',))
thread.start()
thread.join()
assert 'pandas' in sys.modules
"""


@pytest.mark.parametrize(
    "program",
    [_DEFERRED + _ARROW_NEEDS_IT, _DEFERRED + _A_USER_IMPORTS_IT, _ANOTHER_THREAD_IMPORTS_IT_MEANWHILE],
    ids=["arrow", "a user", "another thread meanwhile"],
)
def test_who_needs_pandas_has_it(program: str) -> None:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
