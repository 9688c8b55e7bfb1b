"""Releases are told apart by their number, and held to the signatures that were recorded of them."""

import json
import re
from pathlib import Path

import pytest

from kvist.base.errors import ConfigError
from kvist.connectors.vllm.versions import SUPPORTED, check_release, minor_release, signature_in

RECORDED = Path(__file__).parents[3] / "recorded"


def recorded(release: str) -> dict[str, dict[str, str]]:
    """By class and member: what scripts/record-vllm-signatures found in a release."""
    content = json.loads((RECORDED / f"vllm-signatures-{release}.json").read_text(encoding="utf-8"))
    assert isinstance(content, dict)
    return content


def built(name: str, members: dict[str, str]) -> type:
    """A class with such members."""
    lines = [f"class {name}:"]
    for member, signature in members.items():
        kind, _, rest = signature.rpartition("method ")
        if signature == "property":
            lines += ["    @property", f"    def {member}(self): ..."]
        else:
            lines += [f"    @{kind}method"] if kind else []
            lines += [f"    def {member}({re.sub('=(?=,|$)', '=None', rest)}): ..."]
    space: dict[str, type] = {}
    exec("\n".join(lines), space)  # noqa: S102  a class made of recorded signatures, as vLLM itself is not installed here
    return space[name]


def bases(release: str, **changed: str) -> tuple[type, ...]:
    """A release's classes, some members changed."""
    classes = recorded(release)
    return tuple(
        built(name, {member: changed.get(member, signature) for member, signature in members.items()})
        for name, members in classes.items()
    )


@pytest.mark.parametrize("release", list(SUPPORTED))
def test_a_supported_release_is_accepted_with_any_suffix(release: str) -> None:
    for suffix in ("", ".0", ".1", ".0+cpu", ".2.dev31+g1234567"):
        check_release(f"{release}{suffix}", *bases(release))


@pytest.mark.parametrize("release", list(SUPPORTED))
def test_what_is_supported_is_what_was_recorded(release: str) -> None:
    found = {name: signature for members in recorded(release).values() for name, signature in members.items()}
    assert SUPPORTED[release].items() <= found.items()


@pytest.mark.parametrize("version", ["0.31.2", "0.34.0", "1.0", "", "dev", "0", "0.x.1", "0.\u0663\u0662"])
def test_any_other_release_is_refused_with_the_list(version: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(", ".join(SUPPORTED))) as refused:
        check_release(version, *bases("0.32"))
    assert version in str(refused.value)


@pytest.mark.parametrize(
    ("member", "changed"),
    [
        ("reset_cache", "self, epoch"),
        ("get_num_new_matched_tokens", "self, request, num_computed_tokens, *, hints"),
        ("build_kv_connector_stats", "self, data="),
        ("build_kv_connector_stats", "classmethod cls, data"),
        ("requires_kv_delivery", "self"),
        ("request_finished_all_groups", "self, request, *block_ids"),
    ],
)
def test_a_release_that_was_changed_is_refused_and_says_where(member: str, changed: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"{member}({changed})")):
        check_release("0.32.0", *bases("0.32", **{member: changed}))


def test_a_member_that_is_gone_is_named() -> None:
    with pytest.raises(ConfigError, match=r"on_new_request\(absent\)"):
        check_release("0.33.0", *(type("Empty", (), {}),))


def test_members_of_ancestors_count_and_those_of_every_class_do_not() -> None:
    (first, _) = bases("0.32")
    assert signature_in((type("Heir", (first,), {}),), "request_finished_all_groups") == "self, request, block_ids"
    assert signature_in((type("Plain", (), {}),), "__init__") == "absent"
    assert signature_in((type("Odd", (), {"on_new_request": 5}),), "on_new_request") == "int"


@pytest.mark.parametrize(("version", "release"), [("0.32.0+cpu", "0.32"), ("10.4", "10.4"), ("nightly", "nightly")])
def test_the_minor_release_is_what_counts(version: str, release: str) -> None:
    assert minor_release(version) == release
