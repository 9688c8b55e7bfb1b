"""Foreign engines' doors to the fabric: one package per engine, none of which names a concrete tier."""
