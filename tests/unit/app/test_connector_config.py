"""What an engine's extra configuration says to Kvist: a file, a list of tiers, both, or what makes no sense."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvist.app.connector_config import ConnectorConfig, read_connector_config
from kvist.app.tier_specs import DiskSpec, DramSpec
from kvist.base.errors import ConfigError

Written = Callable[[str], str]

TIERS = '[tiers.dram]\nbytes = "1GiB"\n[tiers.disk]\npath = "/var/lib/kvist"\nbytes = "4GiB"\n'


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """Writes a configuration, and says where."""

    def write(text: str) -> str:
        path = tmp_path / "kvist.toml"
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


def refused(fields: dict[str, object]) -> str:
    with pytest.raises(ConfigError) as caught:
        read_connector_config(fields)
    message = str(caught.value)
    assert len(message) < 400
    return message


def test_a_file_says_all_that_can_be_said(written: Written) -> None:
    settings = """
        staging_memory = "128MiB"
        cache_ttl_seconds = 3600
        load_when = "always"
        cache_secret_file = "/etc/kvist/key"
        offload_prompt_only = true
        window_checkpoint_tokens = 512
        weights_revision = "main@2026-11-29"
        weights_epoch = "7"
    """
    config = read_connector_config({"kvist_config": written(settings + TIERS)})
    assert config == ConnectorConfig(
        tiers=(DramSpec(name="dram", bytes=2**30), DiskSpec(name="disk", path="/var/lib/kvist", bytes=2**32)),
        staging_memory=2**27,
        cache_ttl_seconds=3600,
        load_when="always",
        cache_secret_file="/etc/kvist/key",  # noqa: S106  where it is, not what it is
        offload_prompt_only=True,
        window_checkpoint_tokens=512,
        weights_revision="main@2026-11-29",
        weights_epoch="7",
    )


def test_a_list_of_tiers_is_enough_and_what_is_the_engines_own_is_left_alone() -> None:
    config = read_connector_config(
        {"kvist_tiers": ["disk=/d:2GiB", "dram=1GiB"], "shared_storage_path": "/x", "lmcache.chunk": 3}
    )
    assert [tier.name for tier in config.tiers] == ["dram", "disk"], "fastest first"
    assert config == ConnectorConfig(tiers=config.tiers)


def test_a_tier_in_the_list_replaces_the_files_of_the_same_name(written: Written) -> None:
    config = read_connector_config({"kvist_config": written(TIERS), "kvist_tiers": ["dram=2GiB"]})
    assert config.tiers[0] == DramSpec(name="dram", bytes=2**31)
    assert [tier.name for tier in config.tiers] == ["dram", "disk"]


@pytest.mark.parametrize(
    "fields", [{}, {"kvist_tiers": []}, {"kvist_tiers": None}, {"kvist_config": None}, {"other": "dram=1GiB"}]
)
def test_without_tiers_there_is_nothing_to_do_and_the_remedy_is_told(fields: dict[str, object]) -> None:
    if fields == {"kvist_tiers": None}:
        assert refused(fields) == 'kvist_tiers is of the wrong kind (NoneType); give a list, as in ["dram=8GiB"]'
        return
    assert 'kvist_tiers": ["dram=8GiB"]' in refused(fields)


def test_a_file_without_tiers_is_no_better(written: Written) -> None:
    assert "there is nowhere to keep KV" in refused({"kvist_config": written('load_when = "always"')})
    assert read_connector_config({"kvist_config": written(""), "kvist_tiers": ["dram=1GiB"]}).tiers


@pytest.mark.parametrize("name", ["kvist", "kvist_tier", "kvist_configs", "kvist.config", "kvistle" * 50])
def test_a_name_that_begins_like_ours_and_is_none_is_refused_with_those_there_are(name: str) -> None:
    message = refused({name: "x", "kvist_tiers": ["dram=1GiB"]})
    assert message == f"{name[:60]!r}: there is no such setting; there are kvist_config and kvist_tiers"


@pytest.mark.parametrize("value", [3, True, [], ["dram=1GiB"], {}, b"x", "", 1.5])
def test_what_is_no_path_is_refused(value: object) -> None:
    assert refused({"kvist_config": value}).startswith("kvist_config is of the wrong kind")


@pytest.mark.parametrize("value", [3, True, "dram=1GiB", {"dram": "1GiB"}, [3], [None], ["dram=1GiB", []], b"x"])
def test_what_is_no_list_of_tiers_is_refused(value: object) -> None:
    assert refused({"kvist_tiers": value}).startswith("kvist_tiers is of the wrong kind")


@pytest.mark.parametrize("text", ["", "dram", "dram=", "dram=many", "tape=1GiB", "disk=/d", "pool=http://x", "\0"])
def test_what_is_no_tier_is_refused_under_its_name_here(text: str) -> None:
    message = refused({"kvist_tiers": [text]})
    assert message.startswith("kvist_tiers ")
    assert "--tier" not in message


def test_a_password_is_never_repeated(written: Written) -> None:
    url = "pool=redis://user:hunter2@nowhere:99999999"
    assert "hunter2" not in refused({"kvist_tiers": [url], "kvist_config": 3})
    assert "hunter2" not in refused({"kvist_tiers": [url, 3]})
    assert "hunter2" not in refused({"kvist_tiers": {"pool": url}})
    assert "hunter2" not in refused({"kvist_config": written('pasword = "hunter2"\n' + TIERS)})


def test_twice_the_same_name_is_refused_under_its_name_here() -> None:
    assert refused({"kvist_tiers": ["dram=1GiB", "dram=2GiB"]}).startswith("kvist_tiers dram is given twice")


@pytest.mark.parametrize("line", ["model = 'x'", "port = 1", "weights = 'x'", "staging = '1GiB'"])
def test_a_setting_that_is_not_the_connectors_is_refused_with_its_file(written: Written, line: str) -> None:
    path = written(f"{line}\n{TIERS}")
    assert refused({"kvist_config": path}) == f"{path}: {line.partition(' ')[0]}: there is no such setting"


@pytest.mark.parametrize(
    "line",
    [
        "weights_revision = ''",
        "weights_revision = 3",
        f"weights_epoch = '{'x' * 256}'",
        "weights_epoch = 1",
        "staging_memory = 'x'",
        "staging_memory = 1",
        "cache_ttl_seconds = 0",
        "cache_ttl_seconds = nan",
        "load_when = 'never'",
        "cache_secret_file = ''",
        "offload_prompt_only = 'perhaps'",
        "window_checkpoint_tokens = 0",
    ],
)
def test_a_value_that_cannot_be_is_refused_with_its_file_and_name(written: Written, line: str) -> None:
    path = written(f"{line}\n{TIERS}")
    assert refused({"kvist_config": path}).startswith(f"{path}: {line.partition(' ')[0]} ")


@pytest.mark.parametrize("path", ["/no/such/file.toml", ".", "a\0b", "x" * 5000])
def test_a_file_that_cannot_be_read_is_refused(path: str) -> None:
    with pytest.raises(ConfigError, match="cannot read the configuration"):
        read_connector_config({"kvist_config": path, "kvist_tiers": ["dram=1GiB"]})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(["kvist_tiers", "kvist_config", "kvist_x", "x"]), JSON))
def test_whatever_is_given_is_settings_or_an_error_of_ours(fields: dict[str, object]) -> None:
    with suppress(ConfigError):
        assert read_connector_config(fields).tiers
