"""What tests do with a Redis tier, whatever server it is over."""

from collections.abc import Callable, Sequence

import pytest

from fakes.tiers import BLUE, key_of, read_of, write_of
from kvist.base.errors import TierError
from kvist.blocks.keys import TenantTag
from kvist.tiers.ports import Address, Found, Stored
from kvist.tiers.redis import RedisTier

SOON_S = 0.3
HUSH = "pass-word_123456789"


def address_of(number: int, tenant: TenantTag = BLUE) -> Address:
    return Address(key=key_of(number, tenant), tenant=tenant)


def addresses_of(count: int) -> list[Address]:
    return [address_of(number) for number in range(count)]


def expect_works(tier: RedisTier, number: int = 0) -> None:
    """A record goes in, is found and comes back."""
    write = write_of(address_of(number))
    assert list(tier.write([write])) == [Stored()]
    assert list(tier.find([write.address])) == [True]
    read = read_of(write.address)
    assert list(tier.read([read])) == [Found()]
    assert read.into == write.record


def verbs(tier: RedisTier) -> Sequence[Callable[[], object]]:
    """Each way of asking the server."""
    address = address_of(0)
    return [
        lambda: tier.find([address]),
        lambda: tier.read([read_of(address)]),
        lambda: tier.write([write_of(address)]),
        lambda: tier.delete([address]),
        lambda: tier.keep([address], pinned=True, expires_unix_s=None),
        lambda: list(tier.entries()),
    ]


def expect_failure(tier: RedisTier, kind: type[TierError], match: str = "Redis at") -> None:
    """Every verb fails in the same way, and says which tier it was and no password."""
    for verb in verbs(tier):
        with pytest.raises(kind, match=match) as caught:
            verb()
        assert caught.value.tier == "pool"
        assert HUSH not in f"{caught.value}{caught.value!r}{caught.value.__cause__!r}"
