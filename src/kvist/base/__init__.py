"""Ids, units, errors and ports: what every other package may name."""
