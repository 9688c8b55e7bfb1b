"""How many heads there are and how large, said and unsaid."""

import pytest

from kvist.base.errors import ModelError
from kvist.geometry.fields import Fields
from kvist.geometry.heads import HeadRules, Heads, read_heads


def read(rules: HeadRules, **values: object) -> Heads:
    whole = {"num_attention_heads": 4, "hidden_size": 64} | values
    return read_heads(Fields(values=whole, source="config.json"), rules)


def test_what_is_said_goes_before_what_the_family_assumes() -> None:
    rules = HeadRules(kv_heads_default=1, head_dim_default=8)
    assert read(rules, num_key_value_heads=2, head_dim=20) == Heads(query=4, kv=2, dim=20)
    assert read(rules) == Heads(query=4, kv=1, dim=8)
    assert read(HeadRules()) == Heads(query=4, kv=4, dim=16)


def test_null_means_something_only_where_the_family_says_so() -> None:
    rules = HeadRules(kv_heads_default=1, head_dim_default=8, head_dim_nullable=True)
    assert read(rules, num_key_value_heads=None, head_dim=None) == Heads(query=4, kv=4, dim=16)
    with pytest.raises(ModelError, match="num_key_value_heads is null"):
        read(HeadRules(kv_heads_nullable=False), num_key_value_heads=None)
    with pytest.raises(ModelError, match="head_dim is null"):
        read(HeadRules(), head_dim=None)


@pytest.mark.parametrize(
    ("rules", "values", "complaint"),
    [
        (HeadRules(), {"num_key_value_heads": 3}, "num_attention_heads 4 is not a multiple of num_key_value_heads 3"),
        (HeadRules(kv_heads_default=8), {}, "num_attention_heads 4 is not a multiple of num_key_value_heads 8"),
        (HeadRules(), {"hidden_size": 66}, "hidden_size 66 is not a multiple of num_attention_heads 4"),
        (HeadRules(heads_divide_hidden=True), {"hidden_size": 66, "head_dim": 8}, "hidden_size 66 is not a multiple"),
        (HeadRules(), {"num_attention_heads": 65_537}, "num_attention_heads is 65537"),
        (HeadRules(), {"head_dim": 65_537}, "head_dim is 65537"),
    ],
)
def test_heads_that_do_not_fit_are_refused(rules: HeadRules, values: dict[str, object], complaint: str) -> None:
    with pytest.raises(ModelError, match=complaint):
        read(rules, **values)


def test_a_head_size_of_its_own_need_not_divide() -> None:
    assert read(HeadRules(), hidden_size=66, head_dim=8).dim == 8
