"""From a model's published configuration to its KV groups, shapes and bytes; pure."""
