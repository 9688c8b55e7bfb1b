"""What may follow `--tier` or stand in a tier's table: each kind, and one clear error for everything else."""

from pathlib import Path
from traceback import format_exception

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvist.app.config import read_config
from kvist.app.tier_specs import DiskSpec, DramSpec, PoolSpec, read_tier_flag, read_tier_table
from kvist.base.errors import ConfigError


def test_the_flags_of_the_readme() -> None:
    assert read_tier_flag("dram=4GiB") == DramSpec(name="dram", bytes=4 * 2**30)
    assert read_tier_flag("disk=/var/lib/kvist:40GiB") == DiskSpec(name="disk", path="/var/lib/kvist", bytes=40 * 2**30)
    pool = read_tier_flag("pool=redis://127.0.0.1:6379")
    assert pool == PoolSpec(name="pool", url="redis://127.0.0.1:6379")


def test_a_path_may_hold_colons_and_equal_signs() -> None:
    spec = read_tier_flag("disk=/a:b=c:1GiB")
    assert isinstance(spec, DiskSpec)
    assert (spec.path, spec.bytes) == ("/a:b=c", 2**30)


BAD_FLAGS = (
    "", "=", "dram", "dram=", "dram=x", "dram=-1GiB", "dram=0B", "dram=9" + "9" * 40, "Dram=1GiB", "gpu=1GiB",
    "disk=/x", "disk=/x:", "disk=:1GiB", "disk=/a\0b:1GiB", "disk=/x:1GiB:y", "pool=127.0.0.1:6379", "pool=http://h",
    "pool=", "pool=redis:/h", "dram=1GiB,2GiB", "dram=\udc80",
)  # fmt: skip  # one value per line would fill a screen


@pytest.mark.parametrize("text", BAD_FLAGS)
def test_a_bad_flag_is_one_short_error(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_tier_flag(text)
    assert str(caught.value).startswith("--tier ")
    assert len(str(caught.value)) < 300
    assert "\n" not in str(caught.value)


def outcome(text: str) -> str:
    """What a flag's value led to: how the error begins, or the kind that was read."""
    try:
        return read_tier_flag(text).kind + "="
    except ConfigError as error:
        return str(error)[: len("--tier ")]


@given(st.text())
def test_any_text_is_a_tier_or_a_config_error(text: str) -> None:
    found = outcome(text)
    assert found == "--tier " or text.startswith(found)


SECRET = "hunter2hunter2"  # noqa: S105  it is looked for in messages


@pytest.mark.parametrize(
    "url", [f"http://u:{SECRET}@h", f"redis://u:{SECRET}@h" + "x" * 3000, f"redis//u:{SECRET}@h", f"u:{SECRET}@h"]
)
def test_no_error_repeats_a_password(url: str) -> None:
    with pytest.raises(ConfigError) as flag:
        read_tier_flag(f"pool={url}")
    with pytest.raises(ConfigError) as table:
        read_tier_table("pool", {"url": url})
    for caught in (flag, table):
        assert SECRET not in str(caught.value)
        assert caught.value.__cause__ is None
    assert SECRET not in repr(read_tier_flag(f"pool=redis://u:{SECRET}@h"))


def test_a_table_says_more_and_may_have_a_name_of_its_own() -> None:
    table = {"kind": "disk", "path": "/x", "bytes": "2GiB", "tenant_bytes": "1GiB"}
    spec = read_tier_table("scratch", table)
    assert spec == DiskSpec(name="scratch", path="/x", bytes=2**31, tenant_bytes=2**30, free_min=2**30)


@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("dram", 4),
        ("dram", []),
        ("dram", {}),
        ("dram", {"bytes": True}),
        ("dram", {"bytes": 1.5}),
        ("dram", {"bytes": "1GiB", "path": "/x"}),
        ("dram", {"bytes": "1GiB", "tenant_bytes": float("nan")}),
        ("dram", {"bytes": "1GiB", "tenant_bytes": -1}),
        ("dram", {"bytes": 2**70}),
        ("other", {"bytes": "1GiB"}),
        ("x" * 40, {"kind": "dram", "bytes": "1GiB"}),
        ("a b", {"kind": "dram", "bytes": "1GiB"}),
        ("", {"kind": "dram", "bytes": "1GiB"}),
        ("pool", {"url": "redis://h", "prefix": "a:*"}),
        ("pool", {"url": 3}),
        ("disk", {"path": "", "bytes": "1GiB"}),
        ("dram", {"kind": ["dram"], "bytes": "1GiB"}),
        ("dram", {"bytes": "1GiB", "faults": 3}),
        ("dram", {"bytes": "1GiB", "faults": {"one_in": 0}}),
        ("dram", {"bytes": "1GiB", "faults": {"one_in": 2, "delay_s": float("inf")}}),
    ],
)
def test_a_bad_table_is_one_short_error(name: str, table: object) -> None:
    with pytest.raises(ConfigError) as caught:
        read_tier_table(name, table)
    assert str(caught.value).startswith("[tiers.")
    assert len(str(caught.value)) < 300


MISSPELT: list[tuple[str, dict[str, object]]] = [
    *(
        ("pool", {"url": "redis://h", name: value})
        for name in ("passwrd", "password", "Password", "pass word", "")
        for value in (SECRET, {"x": SECRET}, [SECRET], {SECRET: 1})
    ),
    ("pool", {"passwrd": SECRET}),
    ("pool", {"url": 3, "passwrd": SECRET}),
    ("disk", {"passwrd": SECRET}),
    ("dram", {"bytes": {"passwrd": SECRET}}),
    ("dram", {"bytes": "1GiB", "faults": {"passwrd": SECRET}}),
    ("dram", {"bytes": "1GiB", "faults": {"one_in": 1, "passwrd": SECRET}}),
]


@pytest.mark.parametrize(("name", "table"), MISSPELT)
def test_what_stands_in_a_field_that_nobody_knows_is_never_shown(
    tmp_path: Path, name: str, table: dict[str, object]
) -> None:
    with pytest.raises(ConfigError) as caught:
        read_tier_table(name, table)
    assert SECRET not in "".join(format_exception(caught.value))
    config = tmp_path / "kvist.toml"
    config.write_text(f'passwrd = "{SECRET}"\n')
    with pytest.raises(ConfigError, match="passwrd") as whole:
        read_config({"config": str(config)})
    assert SECRET not in "".join(format_exception(whole.value))
