"""Keys, block pool, prefix index, eviction and ledger; pure."""
