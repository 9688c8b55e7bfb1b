"""Keys name records and nothing else, and no tenant's pattern reaches another's."""

from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvist.base.ids import BlockHash, GroupId
from kvist.blocks.keys import BlockKey, Namespace, TenantTag
from kvist.tiers.ports import Address
from kvist.tiers.redis_keys import RedisKeys

KEYS = RedisKeys("kvist")
Addresses = st.builds(
    lambda tenant, namespace, group, block_hash: Address(
        key=BlockKey(Namespace(namespace), GroupId(group), "prefix", BlockHash(block_hash)), tenant=TenantTag(tenant)
    ),
    st.binary(min_size=16, max_size=16),
    st.binary(min_size=32, max_size=32),
    st.integers(0, 2**16 - 1),
    st.binary(min_size=32, max_size=32),
)


@given(st.lists(Addresses, max_size=6))
def test_a_key_names_one_record(addresses: list[Address]) -> None:
    names = KEYS.encode(addresses)
    assert [KEYS.decode(name) for name in names] == addresses
    assert len(set(names)) == len(set(addresses))


@given(Addresses, Addresses)
def test_a_pattern_covers_its_tenant_and_nobody_else(mine: Address, other: Address) -> None:
    name = KEYS.encode([mine])[0].decode()
    assert set(name) <= set("kvistprefix:0123456789abcdef")
    assert fnmatchcase(name, KEYS.pattern(None).decode())
    assert fnmatchcase(name, KEYS.pattern(mine.tenant).decode())
    assert fnmatchcase(name, KEYS.pattern(other.tenant).decode()) == (mine.tenant == other.tenant)


def test_other_prefixes_are_other_worlds() -> None:
    address = Address(
        key=BlockKey(Namespace(bytes(32)), GroupId(0), "prefix", BlockHash(bytes(32))), tenant=TenantTag(bytes(16))
    )
    for prefix in ("kvist2", "k.ist", "-", "KVIST"):
        keys = RedisKeys(prefix)
        assert KEYS.decode(keys.encode([address])[0]) is None
        assert keys.decode(keys.encode([address])[0]) == address
    assert RedisKeys("k.ist").decode(KEYS.encode([address])[0]) is None


SHA = "0f" * 32
RIGHT = ("kvist", "a1" * 16, SHA, "0", "prefix", SHA)


def of_parts(**changed: str) -> bytes:
    names = ("kvist", "tenant", "namespace", "group", "kind", "hash")
    return ":".join(changed.get(name, part) for name, part in zip(names, RIGHT, strict=True)).encode()


@pytest.mark.parametrize("group", ["0", "1", "9", "10", "65535"])
def test_what_names_a_record_is_written_in_one_way(group: str) -> None:
    name = of_parts(group=group)
    address = KEYS.decode(name)
    assert address is not None
    assert KEYS.encode([address]) == [name]


@pytest.mark.parametrize(
    "changed",
    [
        *({"group": group} for group in ("", "00", "00000", "01", "65536", "99999", "100000", "+1", "-1", "1_0", " 1")),
        *(
            {name: part}
            for name in ("tenant", "namespace", "hash")
            for part in ("", "0f", "0f" * 15, "0f" * 33, "0f" * 64)
        ),
        {"tenant": SHA},
        {"namespace": "a1" * 16},
        {"hash": "a1" * 16},
        {"hash": SHA.upper()},
        {"hash": SHA[:-1]},
        {"hash": SHA + "\n"},
        {"hash": SHA + ":"},
    ],
)
def test_another_way_to_write_it_names_nothing(changed: dict[str, str]) -> None:
    assert KEYS.decode(of_parts(**changed)) is None


@pytest.mark.parametrize(
    "name",
    [
        b"",
        b"kvist",
        b"kvist:00:00:0:prefix:0",
        b"kvist:00:00:0:other:00",
        b"kvist:00:00:-1:prefix:00",
        b"kvist:00:00:999999:prefix:00",
        b"kvist:00:00:0:prefix:AA",
        b"kvist:00:00:0:prefix:00\n",
        b"kvist:00:00:0:prefix:00:00",
        b" kvist:00:00:0:prefix:00",
        b"kvist:0*:00:0:prefix:00",
        b"kvist::00:0:prefix:00",
        b"kvist:00:00:0:prefix:" + b"00" * 65,
        "kvist:00:00:\N{ARABIC-INDIC DIGIT ONE}:prefix:00".encode(),
        bytes(range(256)),
    ],
)
def test_what_is_no_key_of_ours_names_nothing(name: bytes) -> None:
    assert KEYS.decode(name) is None
