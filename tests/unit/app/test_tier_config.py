"""The settings of tiers that servers and connectors share are the same settings, checked alike."""

import pytest

from kvist.app.config import ServeConfig, read_config
from kvist.app.connector_config import ConnectorConfig
from kvist.app.tier_config import TierConfig, checked
from kvist.base.errors import ConfigError


@pytest.mark.parametrize("kind", [ServeConfig, ConnectorConfig])
def test_who_has_tiers_has_all_their_settings_with_the_same_defaults(kind: type[TierConfig]) -> None:
    own = TierConfig().model_dump()
    other = kind().model_dump()
    assert own.keys() <= other.keys()
    assert {name for name in own if own[name] != other[name]} <= {"staging_memory"}


def test_only_staging_is_left_open_where_a_model_decides_it() -> None:
    assert read_config({}).staging_memory == 2**26
    assert ConnectorConfig().staging_memory is None


def test_the_setting_is_called_what_the_operator_calls_it() -> None:
    for given, complaint in (
        ({"staging_memory": "much"}, r"^<staging_memory> 'much' is not a size"),
        ({"staging_memory": "1KiB"}, r"^<staging_memory> 1024: "),
        ({"load_when": "x" * 100}, r"^<load_when> 'x{59}\.\.\.: "),
        ({"passwrod": "secret"}, r"^<passwrod>: there is no such setting$"),
        ({"x" * 10_000: 1}, r"^<x{60}>: there is no such setting$"),
    ):
        with pytest.raises(ConfigError, match=complaint) as caught:
            checked(TierConfig, given, ("staging_memory",), lambda name: f"<{name}>")
        assert "secret" not in str(caught.value)


def test_what_was_given_is_left_as_it_was() -> None:
    given: dict[str, object] = {"staging_memory": "64MiB"}
    assert checked(TierConfig, given, ("staging_memory",), str).staging_memory == 2**26
    assert given == {"staging_memory": "64MiB"}
