"""Where torch lives: weights, attention over the paged pool, sampling, conversion."""
