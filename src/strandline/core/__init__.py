"""Ids, key groups, settings, errors, clock: what every other layer may use."""
