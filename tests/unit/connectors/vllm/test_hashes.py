from hypothesis import given
from hypothesis import strategies as st

from kvist.base.ids import TenantId
from kvist.blocks.keys import foreign_hasher, tenant_key
from kvist.connectors.vllm.hashes import ForeignChain

KEY = tenant_key(b"secret", TenantId("default"))

Fine = st.lists(st.binary(min_size=4, max_size=32), max_size=20)


def chain_of(hashes: list[bytes], stride: int = 1, adapter: bytes = b"", scheme: bytes = b"sha256") -> list[bytes]:
    return list(ForeignChain(KEY, scheme, adapter=adapter, stride=stride).extend_to(hashes))


@given(Fine, st.integers(1, 5))
def test_a_block_is_its_last_fine_hash(hashes: list[bytes], stride: int) -> None:
    hashed = foreign_hasher(KEY, b"sha256", b"")
    expected = [hashed(hashes[last]) for last in range(stride - 1, len(hashes), stride)]
    assert chain_of(hashes, stride) == expected


@given(Fine, st.integers(1, 3), st.lists(st.integers(0, 20), max_size=6))
def test_a_chain_that_grows_is_the_chain_made_at_once(hashes: list[bytes], stride: int, cuts: list[int]) -> None:
    chain = ForeignChain(KEY, b"sha256", adapter=b"", stride=stride)
    for cut in [*sorted(cuts), len(hashes)]:
        assert list(chain.extend_to(hashes[:cut])) == chain_of(hashes[:cut], stride)


@given(Fine, Fine)
def test_a_sequence_that_was_taken_back_is_hashed_anew(first: list[bytes], second: list[bytes]) -> None:
    first, second = [b"a" + each for each in first], [b"b" + each for each in second]
    chain = ForeignChain(KEY, b"sha256", adapter=b"", stride=2)
    chain.extend_to(first)
    assert list(chain.extend_to(second)) == chain_of(second, 2)


def test_tenant_scheme_and_adapter_part_the_same_hashes() -> None:
    red = tenant_key(b"secret", TenantId("red"))
    other = list(ForeignChain(red, b"sha256", adapter=b"", stride=1).extend_to([b"x"]))
    chains = [other, chain_of([b"x"]), chain_of([b"x"], scheme=b"xxhash"), chain_of([b"x"], adapter=b"digest")]
    assert len({chain[0] for chain in chains}) == 4
