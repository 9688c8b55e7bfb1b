import pytest
from prometheus_client.parser import text_string_to_metric_families

from fakes.engine import Script, text_script
from fakes.serving import MODEL, app_of, ask, completion
from fakes.tokenizer import ByteTokenizer
from kvist.server.app import lifecycle_of
from kvist.server.settings import ServerSettings


def samples_of(app) -> dict[str, float]:
    families = text_string_to_metric_families(ask(app, "/metrics").text)
    return {
        sample.name + "".join(f" {value}" for value in sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
    }


def test_tokens_are_counted_by_source(start) -> None:
    app = app_of(start(text_script("ab", tokens_cached=1)), ByteTokenizer())
    ask(app, "/v1/completions", completion())
    samples = samples_of(app)
    assert samples["kvist_tokens_total cache"] == 1
    assert samples["kvist_tokens_total computed"] == 2
    assert samples["kvist_tokens_total recomputed"] == 0
    assert samples["kvist_tokens_total output"] == 3
    assert samples["kvist_time_to_first_token_seconds_count"] == 1
    assert samples["kvist_inter_token_latency_seconds_count"] == 2


def test_the_engines_counters_are_read_and_not_copied(start) -> None:
    scripts = iter([text_script("a"), Script(fails_after=0), Script(refusal="busy")])
    engine = start(lambda _: next(scripts))
    app = app_of(engine, ByteTokenizer())
    statuses = [ask(app, "/v1/completions", completion()).status_code for _ in range(3)]
    assert statuses == [200, 500, 429]
    samples, statistics = samples_of(app), engine.statistics()
    for name in ("preemptions", "aborts", "finished", "failures", "out_of_memory", "evictions"):
        assert samples[f"kvist_{name}_total"] == getattr(statistics, name)
    assert (samples["kvist_refusals_total engine_busy"], samples["kvist_failures_total"]) == (1, 1)
    assert samples["kvist_steps_total"] > 0


def test_what_the_server_refuses_itself_is_counted_by_its_code(start) -> None:
    app = app_of(start(), ByteTokenizer())
    assert ask(app, "/v1/completions", completion(model="another")).status_code == 404
    assert ask(app, "/v1/completions", completion(prompt="")).status_code == 400
    assert ask(app, "/v1/completions", completion(n=10_000)).status_code == 400
    samples = samples_of(app)
    assert samples["kvist_refusals_total model_not_found"] == 1
    assert samples["kvist_refusals_total empty_prompt"] == 1
    assert samples["kvist_refusals_total invalid_value"] == 1


def test_blocks_and_requests_are_gauges_by_state(start) -> None:
    samples = samples_of(app_of(start(), ByteTokenizer()))
    assert [samples[f"kvist_kv_blocks 0 {state}"] for state in ("used", "cached", "free")] == [0, 0, 100]
    assert (samples["kvist_requests_running"], samples["kvist_requests_waiting"]) == (0, 0)
    assert samples["kvist_kv_bytes"] == 2**20


def test_answers_are_counted_by_route_and_status(start) -> None:
    app = app_of(start(text_script("a")), ByteTokenizer())
    ask(app, "/v1/completions", completion())
    ask(app, "/v1/completions", completion(n=0))
    for path in ("/nowhere", "/or/elsewhere"):
        ask(app, path)
    samples = samples_of(app)
    assert samples["kvist_http_responses_total /v1/completions 200"] == 1
    assert samples["kvist_http_responses_total /v1/completions 400"] == 1
    assert samples["kvist_http_responses_total unmatched 404"] == 2


def test_a_drain_is_seen(start) -> None:
    app = app_of(start(), ByteTokenizer())
    assert samples_of(app)["kvist_ready"] == 1
    lifecycle_of(app).drain()
    assert samples_of(app)["kvist_ready"] == 0


@pytest.mark.parametrize("count", [1, 3])
def test_each_app_has_metrics_of_its_own(start, count: int) -> None:
    apps = [app_of(start(text_script("a")), ByteTokenizer()) for _ in range(count)]
    ask(apps[0], "/v1/completions", completion())
    assert [samples_of(app)["kvist_tokens_total output"] for app in apps] == [2] + [0] * (count - 1)


def test_the_memory_is_shown_as_it_was_divided_at_start(start) -> None:
    samples = samples_of(app_of(start(), ByteTokenizer()))
    assert (samples["kvist_weights_bytes"], samples["kvist_workspace_bytes"]) == (2**21, 2**19)
    assert samples["kvist_config_info 16 bfloat16 4096 64 1024 2048"] == 1


def test_without_a_budget_nothing_is_said_of_it(start) -> None:
    samples = samples_of(app_of(start(), ByteTokenizer(), ServerSettings(model=MODEL)))
    assert not [name for name in samples if "config" in name or "weights" in name or "workspace" in name]
