import json

import pytest

from fakes.engine import text_script
from fakes.serving import app_of, ask, chat
from fakes.tokenizer import ByteTokenizer
from kvist.server.app import lifecycle_of

PATH = "/v1/chat/completions"
JSON = {"content-type": "application/json"}


@pytest.fixture
def app(start):
    return app_of(start(text_script("x", prefix_end="the end of the world")), ByteTokenizer())


def test_an_unknown_model_is_told_first(app) -> None:
    error = ask(app, PATH, chat(model="gpt-4", tools=[1], temperature=-1)).json()["error"]
    assert (error["code"], error["param"]) == ("model_not_found", "model")


@pytest.mark.parametrize("model", [None, 3, [], {}])
def test_a_model_of_the_wrong_type_is_a_400(app, model: object) -> None:
    response = ask(app, PATH, chat(model=model))
    assert (response.status_code, response.json()["error"]["param"]) == (400, "model")


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff", b"[]", b"{", b'{"model": NaN}', b'{"a":' * 50_000, json.dumps(chat()).encode("utf-16")],
    ids=repr,
)
def test_a_body_that_is_no_object_is_a_400(app, content: bytes) -> None:
    response = ask(app, PATH, content=content, headers=JSON)
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_json")


def test_a_body_of_ten_megabytes_is_a_413(app) -> None:
    response = ask(app, PATH, content=b"x" * 10_000_000, headers=JSON)
    assert response.status_code == 413
    assert "8.0 MiB" in response.json()["error"]["message"]


def test_another_content_type_is_a_415(app) -> None:
    assert ask(app, PATH, content=b"{}", headers={"content-type": "text/plain"}).status_code == 415


def test_what_the_template_rejects_is_the_clients_fault(app) -> None:
    response = ask(app, PATH, chat(messages=[{"role": "assistant", "content": "Hi"}]))
    assert (response.status_code, response.json()["error"]["param"]) == (400, "messages")
    assert "begins with the user" in response.json()["error"]["message"]


def test_a_draining_server_says_so_and_when_to_come_back(app) -> None:
    lifecycle_of(app).drain()
    response = ask(app, PATH, chat())
    assert (response.status_code, response.json()["error"]["code"]) == (503, "draining")
    assert int(response.headers["retry-after"]) > 0


def test_the_usage_is_explained_to_who_asks(app) -> None:
    explained = ask(app, PATH, content=json.dumps(chat()), headers=JSON | {"x-kvist-explain": "1"}).json()["usage"]
    assert explained["kvist"]["prefix_end"] == "the end of the world"
    assert "kvist" not in ask(app, PATH, chat()).json()["usage"]
