#!/bin/sh
# Remove everything that a build, a test or a run leaves inside the checkout. What git tracks stays.
set -eu
cd "$(dirname "$0")/.."
rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build dist \
  spark-warehouse metastore_db derby.log src/*.egg-info
find . -path ./.git -prune -o -type d -name __pycache__ -prune -exec rm -rf {} +
