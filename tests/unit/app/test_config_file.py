"""A configuration file: the flags' names, tiers as tables, flags before the file, and files that are none."""

import contextlib
from pathlib import Path

import pytest

from kvist.app.administration_offline import offline_tiers, offline_verbs, secret_of
from kvist.app.config import read_config
from kvist.app.config_file import read_config_file
from kvist.app.secret import load_secret
from kvist.app.tier_specs import DiskSpec, DramSpec
from kvist.base.errors import ConfigError

TEXT = """
model = "smollm2"
port = 8001
kv_memory = "3GiB"
offload_prompt_only = true

[tiers.disk]
path = "/var/lib/kvist"
bytes = "40GiB"
tenant_bytes = "1GiB"

[tiers.dram]
bytes = "8GiB"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "kvist.toml"
    path.write_text(TEXT)
    return path


def test_a_file_says_what_flags_say_and_more(file: Path) -> None:
    config = read_config({"config": str(file)})
    assert (config.model, config.port, config.kv_memory, config.offload_prompt_only) == (
        "smollm2",
        8001,
        3 * 2**30,
        True,
    )
    assert config.tiers == (
        DramSpec(name="dram", bytes=8 * 2**30),
        DiskSpec(name="disk", path="/var/lib/kvist", bytes=40 * 2**30, tenant_bytes=2**30),
    )


def test_flags_count_more_than_the_file(file: Path) -> None:
    config = read_config({"config": str(file), "port": "9", "kv_memory_fraction": "0.5", "tier": ["dram=1GiB"]})
    assert (config.port, config.kv_memory, config.kv_memory_fraction) == (9, None, 0.5)
    assert config.tiers[0] == DramSpec(name="dram", bytes=2**30)
    assert config.tiers[1].name == "disk"


@pytest.mark.parametrize(
    "text",
    [
        "port = 1\nport = 2",
        "port =",
        "\x00",
        "tiers = 3",
        "[tiers]\ndram = 3",
        "[tiers.dram]\nbytes = 'x'",
        "[tiers.a]\nkind='disk'\npath='/x'\nbytes='1GiB'\n[tiers.b]\nkind='disk'\npath='/x/../x'\nbytes='1GiB'",
        "port = 99999",
        "nonsense = 1",
        "tier = 3",
        "config = 'other.toml'",
        "a = " + "[" * 5000,
        "# " + "x" * 2**20,
    ],
)
def test_a_file_that_cannot_be_is_one_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "kvist.toml"
    path.write_text(text)
    with pytest.raises(ConfigError):
        read_config({"config": str(path)})


def test_a_file_that_cannot_be_read_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    for path in (tmp_path / "missing", tmp_path, tmp_path / "binary", Path("a\0b")):
        with pytest.raises(ConfigError, match="cannot read"):
            read_config_file(path)


def test_one_name_twice_on_the_command_line_is_refused() -> None:
    with pytest.raises(ConfigError, match="given twice"):
        read_config({"tier": ["dram=1GiB", "dram=2GiB"]})


WHERE_NOTHING_CAN_BE = ("x" * 256, "é" * 128, "loop", "loop/below", "file/below")


@pytest.mark.parametrize("name", WHERE_NOTHING_CAN_BE)
def test_a_directory_that_cannot_be_is_an_error_and_no_accident(tmp_path: Path, name: str) -> None:
    (tmp_path / "loop").symlink_to("pool")
    (tmp_path / "pool").symlink_to("loop")
    (tmp_path / "file").touch()
    flag = f"disk={tmp_path / name}:1GiB"
    with contextlib.suppress(ConfigError):  # or when it is opened
        assert read_config({"tier": [flag]}).tiers[0].path == str(tmp_path / name)
    with pytest.raises(ConfigError), offline_verbs(offline_tiers([flag], None), tmp_path / "secret"):
        raise AssertionError("it is open")
    with pytest.raises(ConfigError):
        secret_of(str(tmp_path / name), {})
    with pytest.raises(ConfigError):
        load_secret(tmp_path / name)
    with pytest.raises(ConfigError):
        read_config_file(tmp_path / name)
