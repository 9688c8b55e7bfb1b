"""What vLLM is told about its connector, right and wrong."""

import json
import re
from pathlib import Path

import pytest

from kvist.app.doctor_transfer import read_transfer
from kvist.base.errors import ConfigError

RIGHT: dict[str, object] = {
    "kv_connector": "KvistConnector",
    "kv_connector_module_path": "kvist.app.vllm",
    "kv_role": "kv_both",
    "kv_load_failure_policy": "recompute",
    "kv_connector_extra_config": {"kvist_config": "/etc/kvist.toml"},
}


def problems(**changes: object) -> list[str]:
    fields = {name: value for name, value in (RIGHT | changes).items() if value is not ...}
    return [each.text for each in read_transfer(json.dumps(fields)).findings if each.status == "problem"]


def test_the_right_one_is_right() -> None:
    found = read_transfer(json.dumps(RIGHT))
    assert [each.status for each in found.findings] == ["ok"]
    assert found.extra == {"kvist_config": "/etc/kvist.toml"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kv_connector", "LMCacheConnectorV1"),
        ("kv_connector", ...),
        ("kv_connector", 7),
        ("kv_connector_module_path", ...),
        ("kv_connector_module_path", "kvist.app.vlm"),
        ("kv_role", ...),
        ("kv_role", "both"),
        ("kv_role", ["kv_both"]),
        ("kv_role", "kv_producer"),
        ("kv_role", "kv_consumer"),
        ("kv_load_failure_policy", ...),
        ("kv_load_failure_policy", "fail"),
        ("kv_load_failure_policy", None),
        ("kvist_config", "/etc/kvist.toml"),
        ("kv_connector_extra_config", ["kvist_config"]),
    ],
    ids=str,
)
def test_each_mistake_is_one_problem_that_names_it(name: str, value: object) -> None:
    (text,) = problems(**{name: value})
    assert name in text


def test_settings_are_only_read_where_they_are_for_kvist() -> None:
    assert read_transfer(json.dumps(RIGHT | {"kv_connector": "X"})).extra is None
    assert read_transfer(json.dumps(RIGHT | {"kv_connector_extra_config": 3})).extra is None
    assert read_transfer(json.dumps({"kv_connector": "KvistConnector"})).extra == {}


def test_one_of_several_connectors_is_found_and_advised_against() -> None:
    several = {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"connectors": ["x", {"kv_connector": "ExampleConnector"}, RIGHT]},
    }
    found = read_transfer(json.dumps(several))
    assert found.extra == {"kvist_config": "/etc/kvist.toml"}
    assert [each.status for each in found.findings] == ["problem"]
    for connectors in ([], None, {"kv_connector": "KvistConnector"}, [["KvistConnector"]]):
        none = several | {"kv_connector_extra_config": {"connectors": connectors}}
        assert read_transfer(json.dumps(none)).extra is None


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", '"KvistConnector"', "NaN", "{'kv_role': 'kv_both'}", "[" * 100_000, " " * 2**21, "\x00"],
    ids=lambda text: repr(text[:12]),
)
def test_what_is_no_object_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--kv-transfer-config") as caught:
        read_transfer(text)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("name", ["README.md", "docs/how-to/run-under-vllm.md", "docs/how-to/come-from-lmcache.md"])
def test_what_the_documents_show_is_right(name: str) -> None:
    text = (Path(__file__).parents[3] / name).read_text(encoding="utf-8")
    shown = re.findall(r'\{\s*"kv_connector":.*?\}\s*\}', text, re.DOTALL)
    assert shown
    for each in shown:
        assert [found.status for found in read_transfer(each).findings] == ["ok"]
