"""Seconds: what a load and a prefill are expected to take; pure."""
