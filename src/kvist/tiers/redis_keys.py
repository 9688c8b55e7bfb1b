"""What records are called in a Redis server, and back.

    prefix:tenant:namespace:group:kind:hash        as in  kvist:<32 hex>:<64 hex>:0:prefix:<64 hex>

All in hexadecimal digits, so that no key or pattern has a letter that a glob reads otherwise, and an ACL rule such as
``~kvist:<tenant>:*`` covers one tenant and nobody else.
"""

import re
from collections.abc import Sequence
from typing import cast, get_args

from kvist.base.ids import BlockHash, GroupId
from kvist.blocks.keys import BlockKey, Kind, Namespace, TenantTag
from kvist.tiers.ports import Address

_HEX = rb"((?:[0-9a-f]{2}){1,64})"


class RedisKeys:
    """Writes and reads the keys under one prefix."""

    def __init__(self, prefix: str) -> None:
        """Takes a prefix that `RedisSettings` has checked."""
        self._prefix = prefix
        kinds = "|".join(get_args(Kind)).encode()
        self._form = re.compile(
            rb"%b:%b:%b:([0-9]{1,5}):(%b):%b" % (re.escape(prefix.encode()), _HEX, _HEX, kinds, _HEX)
        )

    def encode(self, addresses: Sequence[Address]) -> list[bytes]:
        """The key of each record."""
        # Thousands of blocks of one sequence share all but the hash.
        heads: dict[tuple[TenantTag, Namespace, GroupId, Kind], str] = {}
        keys = []
        for address in addresses:
            namespace, group, kind, block_hash = address.key
            shared = (address.tenant, namespace, group, kind)
            head = heads.get(shared)
            if head is None:
                head = f"{self._prefix}:{address.tenant.hex()}:{namespace.hex()}:{group}:{kind}:"
                heads[shared] = head
            keys.append((head + block_hash.hex()).encode())
        return keys

    def decode(self, key: bytes) -> Address | None:
        """Which record a key names; None: it is not one of ours."""
        match = self._form.fullmatch(key)
        if match is None:
            return None
        tenant, namespace, group, kind, block_hash = match.groups()
        return Address(
            key=BlockKey(
                Namespace(_unhex(namespace)),
                GroupId(int(group)),
                cast("Kind", kind.decode()),  # one of those in the pattern
                BlockHash(_unhex(block_hash)),
            ),
            tenant=TenantTag(_unhex(tenant)),
        )

    def pattern(self, tenant: TenantTag | None) -> bytes:
        """A glob for all keys, or those of one tenant."""
        return f"{self._prefix}:{'' if tenant is None else tenant.hex() + ':'}*".encode()


def _unhex(digits: bytes) -> bytes:
    return bytes.fromhex(digits.decode())
