from dataclasses import FrozenInstanceError, fields

import pytest

from fakes.shape import groups_of
from kvist.base.units import Bytes
from kvist.engine.settings import EngineSettings


def settings() -> EngineSettings:
    return EngineSettings(groups=groups_of((None,)), kv_bytes=Bytes(1), kv_bytes_per_token=Bytes(1))


def test_settings_never_change() -> None:
    for each in fields(EngineSettings):
        with pytest.raises(FrozenInstanceError):
            setattr(settings(), each.name, None)


def test_what_is_not_said_works_together() -> None:
    assert settings().step_tokens >= settings().sequences_max
    assert settings().step_tokens >= settings().block_tokens
    assert settings().overcommit == 1.0
    assert settings().retention.checkpoint_tokens % settings().block_tokens == 0
    assert settings().retention.slack_tokens >= settings().block_tokens


def test_every_setting_is_explained() -> None:
    assert all(f"        {each.name}: " in (EngineSettings.__doc__ or "") for each in fields(EngineSettings))
