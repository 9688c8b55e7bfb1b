from hypothesis import given
from hypothesis import strategies as st

from kvist.connectors.vllm.counts import apportioned

Weights = st.dictionaries(st.sampled_from(["dram", "disk", "pool"]), st.integers(0, 5000), min_size=1)


@given(Weights, st.integers(1, 10_000))
def test_parts_sum_to_the_whole_and_are_as_near_as_can_be(weights: dict[str, int], total: int) -> None:
    parts = apportioned(list(weights.items()), total)
    whole = sum(weights.values())
    assert sum(parts.values()) == (total if whole else 0)
    for name, share in parts.items():
        assert abs(share - total * weights[name] / whole) < 1


@given(Weights, st.integers(-5, 0))
def test_nothing_is_divided_into_nothing(weights: dict[str, int], total: int) -> None:
    assert apportioned(list(weights.items()), total) == {}
    assert apportioned([], 5) == {}
