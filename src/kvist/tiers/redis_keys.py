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

_GROUPS = 2**16


def _digits(count: int) -> bytes:
    return rb"([0-9a-f]{%d})" % count


class RedisKeys:
    """Writes and reads the keys under one prefix."""

    def __init__(self, prefix: str) -> None:
        """Takes a prefix that `RedisSettings` has checked."""
        self._prefix = prefix
        kinds = "|".join(get_args(Kind)).encode()
        tenant, namespace, block_hash = _digits(32), _digits(64), _digits(64)
        self._form = re.compile(
            rb"%b:%b:%b:(0|[1-9][0-9]{0,4}):(%b):%b"
            % (re.escape(prefix.encode()), tenant, namespace, kinds, block_hash)
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
        """Which record a key names; None: it is not one of ours.

        A key is ours only as `encode` would write it: what is listed can then be deleted by its address.
        """
        match = self._form.fullmatch(key)
        if match is None or int(match[3]) >= _GROUPS:
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
