import pytest

from fakes.vllm_side import HYBRID, SideRig
from kvist.base.units import Tokens
from kvist.connectors.vllm.settings import SchedulerSettings


def test_a_block_of_the_fabric_is_made_of_whole_hashes_and_blocks() -> None:
    settings = SideRig(HYBRID).side._settings
    assert settings.stride == 2
    for hash_tokens, block_tokens in ((24, 32), (16, 48)):
        with pytest.raises(AssertionError, match="is not made of"):
            SchedulerSettings(
                groups=settings.groups,
                shapes=settings.shapes,
                hash_tokens=Tokens(hash_tokens),
                block_tokens=Tokens(block_tokens),
                pool_blocks=10,
            )
