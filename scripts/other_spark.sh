#!/bin/sh
# Run tests with another version of PySpark, in an environment of its own: scripts/other_spark.sh 4.1.4 [PYTEST-ARGUMENT...]
set -eu

version=${1:?name a version of PySpark, such as 4.1.4}
shift
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd -P)
venv=$root/build/pyspark-$version
stamp=$(cksum <"$root/pyproject.toml")
if [ "$(cat "$venv/stamp" 2>/dev/null || true)" != "$stamp" ]; then
  rm -rf "$venv"
  "$root/.venv/bin/python" -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet --editable "$root[dev]" "pyspark==$version"
  printf '%s\n' "$stamp" >"$venv/stamp"
fi
PATH=$venv/bin:$PATH
export PATH
cd "$root"
# PySpark 4.1 leaves its connections to be collected.
exec python -m pytest -p no:cacheprovider -W ignore::pytest.PytestUnraisableExceptionWarning -W ignore::ResourceWarning "$@"
