"""The embedded engine: which tokens run in which step, over which blocks."""
