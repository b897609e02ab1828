"""Bytes on disk: types, values, keys, frames and manifests. Described in docs/format.md."""
