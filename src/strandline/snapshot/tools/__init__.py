"""Compares, copies, patches and transforms snapshots."""
