"""Ids are names for a type checker and nothing at run time: they cost nothing and change nothing."""

from kvist.base import ids
from kvist.base.ids import BlockHash, BlockId, GroupId, RequestId, TenantId, TokenId


def test_an_id_is_the_plain_value_it_was_made_from() -> None:
    digest = bytes(32)
    assert BlockHash(digest) is digest
    assert (BlockId(3), GroupId(0), TokenId(49_151)) == (3, 0, 49_151)
    assert (RequestId("r-1"), TenantId("")) == ("r-1", "")


def test_ids_of_one_kind_of_value_are_still_different_names() -> None:
    names = [value.__name__ for value in vars(ids).values() if hasattr(value, "__supertype__")]
    assert sorted(names) == ["BlockHash", "BlockId", "GroupId", "RequestId", "TenantId", "TokenId"]
