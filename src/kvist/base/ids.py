"""Names for the things Kvist counts, so that a checker can tell them apart.

Knows: nothing but types. A `BlockId` is a place in a pool, a `BlockHash` is what a block holds.
"""

from typing import NewType

BlockId = NewType("BlockId", int)
"""Index of a block within the pool of one KV group."""

BlockHash = NewType("BlockHash", bytes)
"""32-byte keyed digest of a block's tokens and of everything before them."""

GroupId = NewType("GroupId", int)
"""Index of a KV group within a model's geometry."""

TokenId = NewType("TokenId", int)
"""Index into a model's vocabulary."""

RequestId = NewType("RequestId", str)
"""One sequence to generate; unique for the life of an engine."""

TenantId = NewType("TenantId", str)
"""Who may hit whose blocks. Tenants never share unless the operator names a scope."""

TENANT_DEFAULT = TenantId("default")
"""Of whoever sends no salt."""

SALTED = "salt:"
"""Put before a client's salt, so that no salt names the tenant of those who send none."""
