"""Staging is cut so that every group finds room, however little there is."""

import pytest

from fakes.fabric import NAMESPACE, STAGING, form_of
from kvist.base.units import Tokens
from kvist.cost.prefill import Work, prefill_model
from kvist.fabric.settings import FabricSettings


@pytest.mark.parametrize(
    ("payloads", "records", "expected"), [((3584,), 256, 16), ((3584,), 16, 2), ((3584,), 1, 1), ((3584, 512), 64, 4)]
)
def test_an_extent_has_room_for_a_piece_and_there_are_several(
    payloads: tuple[int, ...], records: int, expected: int
) -> None:
    settings = FabricSettings(
        namespace=NAMESPACE,
        block_tokens=16,
        windows=(None,) * len(payloads),
        forms=tuple(form_of(size) for size in payloads),
        tiers=(),
        prefill=prefill_model(Work(parameters=1, attention_width=1), step_tokens=Tokens(1)),
        staging=STAGING,
        staging_bytes=records * 4096,
    )
    assert settings.staging_extent_bytes == expected * 4096
