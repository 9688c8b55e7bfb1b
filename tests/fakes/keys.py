"""Keys of blocks by number, for tests that do not care which tokens they stand for."""

from kvist.base.ids import BlockHash, GroupId
from kvist.blocks.keys import BlockKey, Namespace, TenantTag

NAMESPACE = Namespace(bytes(32))
TENANT = TenantTag(b"t" * 16)
OTHER = TenantTag(b"o" * 16)


def key(number: int, group: int = 0) -> BlockKey:
    """The key of block `number`."""
    return BlockKey(NAMESPACE, GroupId(group), "prefix", BlockHash(number.to_bytes(32, "little")))
