"""Ids, key groups, settings, errors and the clock, which every other layer may import."""
