"""The identity of a block: which computation produced it, up to floating-point order.

Knows how tokens become chained hashes and hashes become keys; does not know where blocks live.

Laws:
    * Two blocks have one key only if the same model read the same tokens for the same tenant.
    * Every field that enters a digest is tagged and length-prefixed, so that no two field lists collide.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple, NewType

from blake3 import blake3

from kvist.base.ids import BlockHash, GroupId, TenantId, TokenId

Namespace = NewType("Namespace", bytes)
TenantKey = NewType("TenantKey", bytes)
TenantTag = NewType("TenantTag", bytes)
"""16 bytes that stand for a tenant in headers and keys of stores; who lacks the secret cannot tell whose."""

Kind = Literal["prefix"]

_CHAIN_START = BlockHash(bytes(32))


class BlockKey(NamedTuple):
    """Names the KV of one block of one group: equal keys, equal content."""

    namespace: Namespace
    group: GroupId
    kind: Kind
    hash: BlockHash


def _fields(fields: Iterable[tuple[str, bytes]]) -> bytes:
    parts: list[bytes] = []
    for tag, value in fields:
        name = tag.encode()
        parts += [len(name).to_bytes(4, "little"), name, len(value).to_bytes(8, "little"), value]
    return b"".join(parts)


def namespace_of(facts: Mapping[str, str]) -> Namespace:
    """Digest of everything that must be equal before KV may be shared at all.

    Args:
        facts: named facts such as weights digest, dtypes, geometry, rope, block_tokens; order is irrelevant.
    """
    ordered = sorted(facts.items())
    return Namespace(blake3(_fields((name, value.encode()) for name, value in ordered)).digest())


def tenant_key(secret: bytes, tenant: TenantId) -> TenantKey:
    """The 32-byte key under which all hashes of one tenant are made.

    Without the secret nobody can tell which tokens a hash stands for, nor make another tenant's hash.
    """
    material = _fields((("secret", secret), ("tenant", tenant.encode("utf-8", "surrogatepass"))))
    return TenantKey(blake3(material, derive_key_context="kvist 2026 tenant key v1").digest())


def tenant_tag(key: TenantKey) -> TenantTag:
    """What a stored block says of whose it is."""
    return TenantTag(blake3(b"tag", key=key).digest(16))


class HashChain:
    """The hashes of one sequence's full blocks, grown as tokens arrive.

    ``hash_i = BLAKE3-keyed(tenant key; hash_{i-1} || tokens_i || extras)``, so that a hash stands for its
    block and for everything before it. Costs about 2 microseconds per block.
    """

    def __init__(self, key: TenantKey, *, block_tokens: int, extras: Sequence[tuple[str, bytes]] = ()) -> None:
        """Starts an empty chain.

        Args:
            key: of the tenant on whose behalf the tokens are read.
            block_tokens: tokens per block.
            extras: tagged digests of whatever else shaped the computation (adapter, media).
        """
        self._key = key
        self._block_tokens = block_tokens
        self._extras = tuple(extras)
        self._hashes: list[BlockHash] = []

    def extend_to(self, tokens: Sequence[TokenId]) -> Sequence[BlockHash]:
        """Hashes every block that `tokens` fills, and returns the whole chain.

        Args:
            tokens: the sequence from its first token on; what was hashed before must not have changed.
        """
        size = self._block_tokens
        for index in range(len(self._hashes), len(tokens) // size):
            packed = b"".join(token.to_bytes(4, "little") for token in tokens[index * size : (index + 1) * size])
            previous = self._hashes[-1] if self._hashes else _CHAIN_START
            data = _fields((("previous", previous), ("tokens", packed), *self._extras))
            self._hashes.append(BlockHash(blake3(data, key=self._key).digest()))
        return self._hashes
