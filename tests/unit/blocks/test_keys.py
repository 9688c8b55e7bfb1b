import struct
from collections.abc import Sequence

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from kvist.base.ids import BlockHash, GroupId, TenantId, TokenId
from kvist.blocks.keys import BlockKey, HashChain, Namespace, TenantKey, foreign_hasher, namespace_of, tenant_key

KEY = tenant_key(b"secret", TenantId("blue"))

Tokens = st.lists(st.integers(0, 2**32 - 1).map(TokenId), max_size=24)


def encoded(fields: Sequence[tuple[str, bytes]]) -> bytes:
    """The documented form, written again: each field tagged and length-prefixed."""
    data = b""
    for tag, value in fields:
        name = tag.encode()
        data += struct.pack("<I", len(name)) + name + struct.pack("<Q", len(value)) + value
    return data


def chain(tokens: Sequence[int], *, key: TenantKey = KEY, size: int = 4, extras: Sequence = ()) -> list[BlockHash]:
    return list(HashChain(key, block_tokens=size, extras=extras).extend_to(list(map(TokenId, tokens))))


# Golden vectors, made here from the formulas in the documents


def test_a_namespace_is_the_digest_of_its_facts_by_name() -> None:
    data = encoded([("dtype", b"bfloat16"), ("model", "Björk-1B".encode())])
    assert namespace_of({"model": "Björk-1B", "dtype": "bfloat16"}) == blake3(data).digest()


def test_a_tenant_key_is_derived_from_secret_and_tenant() -> None:
    data = encoded([("secret", b"secret"), ("tenant", b"blue")])
    assert blake3(data, derive_key_context="kvist 2026 tenant key v1").digest() == KEY


@given(Tokens, st.integers(1, 7), st.lists(st.tuples(st.text(max_size=3), st.binary(max_size=5)), max_size=3))
def test_a_hash_is_keyed_and_chained_as_documented(
    tokens: list[TokenId], size: int, extras: list[tuple[str, bytes]]
) -> None:
    expected, previous = [], bytes(32)
    for start in range(0, len(tokens) - size + 1, size):
        packed = b"".join(struct.pack("<I", token) for token in tokens[start : start + size])
        data = encoded([("previous", previous), ("tokens", packed), *extras])
        previous = blake3(data, key=KEY).digest()
        expected.append(previous)
    assert chain(tokens, size=size, extras=extras) == expected


@given(st.binary(max_size=40), st.binary(max_size=40), st.lists(st.binary(max_size=40), max_size=3))
def test_a_foreign_hash_is_keyed_and_tagged_as_documented(scheme: bytes, adapter: bytes, hashes: list[bytes]) -> None:
    hashed = foreign_hasher(KEY, scheme, adapter)
    for each in hashes:
        data = encoded([("scheme", scheme), ("adapter", adapter), ("hash", each)])
        assert hashed(each) == blake3(data, key=KEY).digest()


def test_hashes_are_the_same_for_ever() -> None:
    """Copies outlive a version: a change of the scheme needs another name, not another meaning."""
    assert [each.hex()[:16] for each in chain(range(8))] == ["7e4222bff301b08a", "7a1366897dcd181d"]


# What a hash depends on


@given(Tokens.filter(bool), st.integers(1, 7), st.data())
def test_a_hash_depends_on_every_token_up_to_its_end_and_on_no_later_one(
    tokens: list[TokenId], size: int, data: st.DataObject
) -> None:
    place = data.draw(st.integers(0, len(tokens) - 1))
    other = [*tokens]
    other[place] = TokenId((tokens[place] + data.draw(st.integers(1, 2**32 - 1))) % 2**32)
    before, after = chain(tokens, size=size), chain(other, size=size)
    assert before[: place // size] == after[: place // size]
    assert not set(before[place // size :]) & set(after[place // size :])


def test_order_matters_within_a_block_and_between_blocks() -> None:
    hashes = [
        chain(tokens)[-1] for tokens in ((1, 2, 3, 4, 5, 6, 7, 8), (2, 1, 3, 4, 5, 6, 7, 8), (5, 6, 7, 8, 1, 2, 3, 4))
    ]
    assert len(set(hashes)) == 3


def test_equal_blocks_at_two_places_are_two_blocks() -> None:
    assert len(set(chain([7] * 40))) == 10


@given(Tokens, st.integers(1, 7), st.integers(1, 7))
def test_chains_of_different_block_sizes_share_nothing(tokens: list[TokenId], one: int, two: int) -> None:
    shared = set(chain(tokens, size=one)) & set(chain(tokens, size=two))
    assert bool(shared) == (one == two and len(tokens) >= one)


@given(Tokens, st.text(max_size=5), st.text(max_size=5), st.binary(max_size=5), st.binary(max_size=5))
def test_tenants_and_secrets_are_separate(
    tokens: list[TokenId], one: str, two: str, first: bytes, second: bytes
) -> None:
    keys = [tenant_key(first, TenantId(one)), tenant_key(second, TenantId(two))]
    same = (one, first) == (two, second)
    assert (keys[0] == keys[1]) == same
    assert bool(set(chain(tokens, key=keys[0])) & set(chain(tokens, key=keys[1]))) == (same and len(tokens) >= 4)


def test_a_tenant_is_any_text_a_client_can_send() -> None:
    names = ["", " ", "a", "A", "a\0", "å", "a\u030a", "\ud800", "\udfff", "a" * 10_000, "tenant", "secret"]
    assert len({tenant_key(b"", TenantId(name)) for name in names}) == len(names)


def test_where_secret_ends_and_tenant_begins_matters() -> None:
    assert tenant_key(b"ab", TenantId("c")) != tenant_key(b"a", TenantId("bc"))


Extras = st.lists(st.tuples(st.text(max_size=3), st.binary(max_size=3)), max_size=3)


@given(Extras, Extras)
def test_extras_matter_with_their_tags_values_and_order(
    one: list[tuple[str, bytes]], two: list[tuple[str, bytes]]
) -> None:
    assert (chain(range(4), extras=one) == chain(range(4), extras=two)) == (one == two)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ([("a", b"bc")], [("ab", b"c")]),
        ([("a", b"b"), ("c", b"d")], [("a", b"b" + encoded([("c", b"d")]))]),
        ([("", b"")], []),
        ([("tokens", b"x")], [("previous", b"x")]),
        ([("a", b""), ("b", b"")], [("b", b""), ("a", b"")]),
    ],
)
def test_fields_that_read_alike_do_not_collide(one: list[tuple[str, bytes]], two: list[tuple[str, bytes]]) -> None:
    assert chain(range(4), extras=one) != chain(range(4), extras=two)


@given(
    st.dictionaries(st.text(max_size=3), st.text(max_size=3)), st.dictionaries(st.text(max_size=3), st.text(max_size=3))
)
def test_a_namespace_is_its_facts_and_not_their_order(one: dict[str, str], two: dict[str, str]) -> None:
    assert (namespace_of(one) == namespace_of(two)) == (one == two)
    assert namespace_of(one) == namespace_of(dict(reversed(one.items())))


# How a chain grows


@given(Tokens, st.integers(1, 7), st.lists(st.integers(0, 24)))
def test_a_chain_grown_bit_by_bit_is_the_chain_made_at_once(tokens: list[TokenId], size: int, stops: list[int]) -> None:
    grown = HashChain(KEY, block_tokens=size)
    for stop in stops:  # a shorter look back changes nothing
        assert list(grown.extend_to(tokens[:stop]))[: len(tokens[:stop]) // size] == chain(tokens[:stop], size=size)
    assert list(grown.extend_to(tokens)) == chain(tokens, size=size)
    assert len(chain(tokens, size=size)) == len(tokens) // size


@pytest.mark.parametrize("token", [-1, 2**32])
def test_a_token_that_does_not_fit_is_never_hashed_as_another(token: int) -> None:
    with pytest.raises(OverflowError):
        chain([token, 0, 0, 0])


def test_a_chain_that_refused_a_token_goes_on_from_where_it_was() -> None:
    grown = HashChain(KEY, block_tokens=2)
    grown.extend_to([TokenId(1), TokenId(2)])
    with pytest.raises(OverflowError):
        grown.extend_to([*map(TokenId, (1, 2, 3, 4, 5, -1))])
    right = [TokenId(token) for token in range(1, 7)]
    assert list(grown.extend_to(right)) == chain(right, size=2)


def test_tokens_of_any_sequence_hash_alike() -> None:
    tokens = [TokenId(token) for token in range(9)]
    assert HashChain(KEY, block_tokens=4).extend_to(tuple(tokens)) == chain(tokens)


def test_a_key_is_all_of_its_parts() -> None:
    parts = [
        (Namespace(bytes(32)), Namespace(b"n" * 32)),
        (GroupId(0), GroupId(1)),
        (BlockHash(bytes(32)), BlockHash(b"h" * 32)),
    ]
    keys = {BlockKey(n, g, "prefix", h) for n in parts[0] for g in parts[1] for h in parts[2]}
    assert len(keys) == 8
