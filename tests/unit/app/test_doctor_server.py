"""What a running vLLM says, asked over a real socket."""

import json

import pytest

from fakes.told import told, vllm_metrics
from kvist.app.doctor_findings import Finding
from kvist.app.doctor_server import Running, ask_server, read_metrics, server_findings
from kvist.base.errors import ConfigError, WireError
from real.redis import free_port

MODELS = {"data": [{"id": "m", "root": "/models/m", "max_model_len": 8192}]}


def answers(metrics: str = "", models: object = MODELS, version: object = "0.32.0") -> dict[str, tuple[int, bytes]]:
    return {
        "/version": (200, json.dumps({"version": version}).encode()),
        "/metrics": (200, (metrics or vllm_metrics()).encode()),
        "/v1/models": (200, json.dumps(models).encode()),
    }


def asked(answered: dict[str, tuple[int, bytes]]) -> Running:
    with told(answered) as url:
        return ask_server(url + "/v1/")


def found(**values: object) -> list[Finding]:
    return list(server_findings(asked(answers(vllm_metrics(**values)))))


def of(findings: list[Finding], status: str) -> list[str]:
    return [each.text for each in findings if each.status == status]


def test_a_vllm_that_hits_is_fine() -> None:
    running = asked(answers())
    assert (running.version, running.model, running.tokens_max) == ("0.32.0", "/models/m", 8192)
    assert running.settings["kv_cache_size_tokens"] == "46592"
    assert [each.status for each in server_findings(running)] == ["ok", "ok"]


def test_what_keeps_it_from_hitting_is_a_problem() -> None:
    assert "prefix caching is off" in of(found(caching=False), "problem")[0]
    assert "without the connector" in of(found(connected=False), "problem")[0]
    assert of(found(connected=False, prompted=0.0, asked=0.0), "problem") == []
    assert "gave up" in of(found(detached=1.0), "problem")[0]


def test_questions_without_a_hit_are_a_note() -> None:
    (text,) = of(found(found=0.0), "note")
    assert "4,096" in text
    assert "no block has been stored" not in text
    assert "no block has been stored" in of(found(found=0.0, stored=0.0), "note")[0]
    assert len(of(found(asked=0.0, found=0.0), "note")) == 1


@pytest.mark.parametrize(("values", "said"), [({"broken": 1.0}, "'pool'"), ({"bypassed": 3.0}, "3 requests")])
def test_what_costs_hits_is_a_note(values: dict[str, object], said: str) -> None:
    (text,) = of(found(**values), "note")
    assert said in text


@pytest.mark.parametrize("models", [[], {}, {"data": []}, {"data": [3]}, {"data": [{"root": 3, "max_model_len": "x"}]}])
def test_models_may_be_withheld_or_odd(models: object) -> None:
    running = asked(answers(models=models))
    assert (running.model, running.tokens_max) == (None, None)
    withheld = answers() | {"/v1/models": (401, b"")}
    assert asked(withheld).model is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"/version": (404, b"")},
        {"/version": (200, b"<html>")},
        {"/version": (200, b"[" * 100_000)},
        {"/version": (200, b'{"version": 3}')},
        {"/metrics": (500, b"")},
        {"/metrics": (200, b"{{{{")},
        {"/metrics": (200, b"x" * (16 * 2**20 + 1))},
        {"/version": (302, b"")},
    ],
    ids=lambda wrong: str(wrong)[:40],
)
def test_what_is_no_vllm_is_an_error_of_the_wire(wrong: dict[str, tuple[int, bytes]]) -> None:
    with pytest.raises(WireError):
        asked(answers() | wrong)


def test_nobody_there_is_an_error_of_the_wire_and_no_url_one_of_ours() -> None:
    with pytest.raises(WireError):
        ask_server(f"http://127.0.0.1:{free_port()}")
    for text in ("", "127.0.0.1:8000", "ftp://x", "http://u:p@x", "http://x y"):
        with pytest.raises(ConfigError):
            ask_server(text)


@pytest.mark.parametrize("text", ["", "# only a comment\n", "a_total 1\n", 'x{y="z"} NaN\n'])
def test_metrics_of_others_are_no_settings(text: str) -> None:
    assert read_metrics(text, "u").settings == {}


def test_metrics_are_summed_over_their_labels() -> None:
    found = read_metrics('# TYPE a counter\na_total{e="0"} 1\na_total{e="1"} 2\na_created 9\n', "u")
    assert found.values == {"a_total": 3.0}
