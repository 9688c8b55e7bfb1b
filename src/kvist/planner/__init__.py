"""KV memory arithmetic: what fits, and what it would take; pure."""
