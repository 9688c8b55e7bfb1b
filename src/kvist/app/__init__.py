"""Composition root: reads configuration, names concrete classes, starts things."""
