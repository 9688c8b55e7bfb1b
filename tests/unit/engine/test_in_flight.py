from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from kvist.base.ids import BlockHash, RequestId
from kvist.engine.in_flight import InFlight

A, B = map(RequestId, "AB")


def blocks(*numbers: int) -> list[BlockHash]:
    return [BlockHash(bytes([number] * 32)) for number in numbers]


def there(in_flight: InFlight, numbers: Iterable[int]) -> set[int]:
    return {number for number in numbers if blocks(number)[0] in in_flight}


def test_nothing_is_in_flight_at_first() -> None:
    in_flight = InFlight()
    assert (len(in_flight), None in in_flight, there(in_flight, range(9))) == (0, False, set())


def test_what_is_claimed_is_in_flight_until_it_is_computed() -> None:
    in_flight = InFlight()
    in_flight.claim(A, blocks(1, 2, 3))
    assert there(in_flight, range(9)) == {1, 2, 3}
    in_flight.settle(A, 0)
    in_flight.settle(A, 2)
    assert there(in_flight, range(9)) == {3}
    in_flight.settle(A, 1)
    assert len(in_flight) == 0


def test_blocks_beyond_the_claims_do_not_matter() -> None:
    in_flight = InFlight()
    in_flight.claim(A, blocks(1))
    in_flight.settle(A, 5)
    in_flight.settle(A, 5)
    assert len(in_flight) == 0


def test_the_first_to_claim_a_block_has_it() -> None:
    in_flight = InFlight()
    in_flight.claim(A, blocks(1, 2))
    in_flight.claim(B, blocks(2, 3))
    in_flight.settle(B, 2)
    assert there(in_flight, range(9)) == {1, 2}
    in_flight.drop(A)
    assert len(in_flight) == 0


def test_who_leaves_takes_only_its_own_claims_along() -> None:
    in_flight = InFlight()
    in_flight.claim(A, blocks(1, 2, 3))
    in_flight.claim(B, blocks(3, 4))
    in_flight.settle(A, 1)
    in_flight.drop(B)
    assert there(in_flight, range(9)) == {2, 3}
    in_flight.drop(A)
    assert len(in_flight) == 0


def test_who_left_may_claim_again() -> None:
    in_flight = InFlight()
    for _ in range(2):
        in_flight.claim(A, blocks(1))
        in_flight.drop(A)
    in_flight.claim(B, blocks(1))
    assert there(in_flight, [1]) == {1}


@given(
    st.lists(st.tuples(st.sampled_from(["claim", "settle", "drop"]), st.integers(0, 3), st.integers(0, 9)), max_size=40)
)
def test_against_a_list_of_claims(operations: list[tuple[str, int, int]]) -> None:
    """Each owner's claims in a list; a block is in flight while the first who claimed it has not computed it."""
    in_flight = InFlight()
    claims: dict[RequestId, list[int]] = {}
    first: dict[int, RequestId] = {}
    for operation, who, number in operations:
        owner = RequestId(str(who))
        if operation == "claim" and owner not in claims:
            claims[owner] = list(range(number, 10))
            in_flight.claim(owner, blocks(*claims[owner]))
            first = dict.fromkeys(claims[owner], owner) | first
        elif operation != "claim" and owner in claims:
            count = len(claims[owner]) if operation == "drop" else number % 4
            done, claims[owner] = claims[owner][:count], claims[owner][count:]
            first = {block: has for block, has in first.items() if block not in done or has != owner}
            if operation == "drop":
                del claims[owner]
                in_flight.drop(owner)
            else:
                in_flight.settle(owner, count)
        assert there(in_flight, range(10)) == set(first)
        assert len(in_flight) == len(first)
