"""A record's form follows from the group: keys then values, as many bytes as the geometry reckons with."""

import pytest

from kvist.base.units import Tokens
from kvist.blocks.form import Part, Plane
from kvist.engine.form import form_of
from kvist.geometry.groups import Dtype, KvGroup


def group(**changes: object) -> KvGroup:
    facts = {"layers": (3, 5, 9), "kv_heads": 2, "head_dim_k": 8, "head_dim_v": 6, "window": Tokens(32)} | changes
    return KvGroup(**facts)


def test_keys_and_values_are_a_plane_each_and_one_part_has_all() -> None:
    form = form_of(group(), "bfloat16", 16)
    assert form.planes == (Plane("k", "bfloat16", (3, 2, 16, 8)), Plane("v", "bfloat16", (3, 2, 16, 6)))
    assert form.part == Part(layers_first=0, layers=3, heads_first=0, heads=2)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("size", [1, 5, 16])
def test_a_payload_has_the_bytes_of_its_tokens(dtype: Dtype, size: int) -> None:
    assert form_of(group(), dtype, size).payload_bytes == group().bytes_per_token(dtype) * size


def test_groups_that_differ_have_forms_that_differ() -> None:
    changed = [{"layers": (1, 2)}, {"kv_heads": 1}, {"head_dim_k": 4}, {"head_dim_v": 8}]
    forms = [form_of(group(**change), "float32", 16) for change in ({}, *changed)]
    forms += [form_of(group(), "bfloat16", 16), form_of(group(), "float32", 8)]
    assert len(set(forms)) == len(forms)
