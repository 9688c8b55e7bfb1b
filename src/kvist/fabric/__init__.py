"""Orchestrates the tiers: what to keep, where, how long, and whether loading beats recomputing."""
