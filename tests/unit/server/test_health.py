from fakes.serving import app_of, ask
from fakes.tokenizer import ByteTokenizer
from kvist.server.app import lifecycle_of


def test_ready_until_the_drain_and_alive_even_then(start) -> None:
    app = app_of(start(), ByteTokenizer())
    assert ask(app, "/ready").status_code == 200
    lifecycle_of(app).drain()
    response = ask(app, "/ready")
    assert (response.status_code, response.json()) == (503, {"status": "draining"})
    assert int(response.headers["retry-after"]) > 0
    assert ask(app, "/health").status_code == 200
    assert ask(app, "/v1/models").status_code == 200


def test_an_engine_that_answers_nobody_is_not_ready(start) -> None:
    engine = start()
    app = app_of(engine, ByteTokenizer())
    engine.fault = "the engine failed"
    assert ask(app, "/ready").json() == {"status": "failed"}
    assert (ask(app, "/ready").status_code, ask(app, "/health").status_code) == (503, 200)
    assert "kvist_ready 0.0" in ask(app, "/metrics").text


def test_metrics_are_in_prometheus_text_format(start) -> None:
    response = ask(app_of(start(), ByteTokenizer()), "/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=")
    assert "# TYPE kvist_kv_blocks gauge" in response.text
