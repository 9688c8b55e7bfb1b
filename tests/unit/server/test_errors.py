import asyncio
import json

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request

from kvist.base.ids import RequestId
from kvist.engine.messages import Failed, Refused
from kvist.server.errors import (
    INVALID,
    TOO_LARGE,
    ApiError,
    draining,
    of_failure,
    of_refusal,
    on_client_gone,
    on_fault,
    on_http_error,
    shown,
    unknown_model,
)

REQUEST = Request({"type": "http", "method": "GET", "path": "/x", "headers": [], "server": ("h", 1), "scheme": "http"})


def test_an_error_has_the_shape_of_openais() -> None:
    error = ApiError("too big", family=TOO_LARGE, param="prompt", code="request_too_large")
    response = error.response()
    assert response.status_code == 413
    assert json.loads(response.body) == {
        "error": {
            "message": "too big",
            "type": "invalid_request_error",
            "param": "prompt",
            "code": "request_too_large",
        }
    }
    assert "retry-after" not in response.headers


@pytest.mark.parametrize(("kind", "status", "retries"), [("busy", 429, True), ("invalid", 400, False)])
def test_each_refusal_has_its_status(kind: str, status: int, retries: bool) -> None:
    refused = Refused(request_id=RequestId("r"), kind=kind, message="why", param="n")
    response = of_refusal(refused).response()
    assert response.status_code == status
    assert ("retry-after" in response.headers) is retries


def test_an_invalid_request_keeps_the_engines_words() -> None:
    error = of_refusal(Refused(request_id=RequestId("r"), kind="invalid", message="why", param="n"))
    assert (str(error), error.param, error.family) == ("why", "n", INVALID)


def test_a_failure_is_the_servers_fault() -> None:
    error = of_failure(Failed(request_id=RequestId("r"), message="out of memory"))
    assert (error.family.status, error.code, str(error)) == (500, "engine_failed", "out of memory")


def test_an_unknown_model_names_both() -> None:
    error = unknown_model("gpt", "mine")
    assert error.family.status == 404
    assert error.code == "model_not_found"
    assert "'gpt'" in str(error)
    assert "'mine'" in str(error)


def test_draining_says_when_to_come_back() -> None:
    assert int(draining().response().headers["retry-after"]) > 0


@pytest.mark.parametrize("value", ["x" * 10**6, list(range(10**6)), {"a": ["b" * 10**6]}, 10**4000])
def test_a_long_value_is_shown_short(value: object) -> None:
    assert len(shown(value)) < 200


def test_the_frameworks_errors_take_the_same_shape_and_keep_their_headers() -> None:
    error = HTTPException(405, headers={"allow": "POST"})
    response = asyncio.run(on_http_error(REQUEST, error))
    assert (response.status_code, response.headers["allow"]) == (405, "POST")
    assert json.loads(response.body)["error"]["code"] == "method_not_allowed"


def test_a_fault_tells_nothing_of_itself() -> None:
    response = asyncio.run(on_fault(REQUEST, RuntimeError("secret")))
    assert response.status_code == 500
    assert b"secret" not in response.body


def test_who_left_gets_a_status_of_its_own() -> None:
    assert asyncio.run(on_client_gone(REQUEST, RuntimeError())).status_code == 499
