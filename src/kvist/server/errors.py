"""What a client is told when it gets no answer: OpenAI's error object and status codes.

Knows how each refusal looks on the wire; does not know when to refuse.
"""

import reprlib
from dataclasses import dataclass
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from kvist.base.errors import KvistError
from kvist.engine.messages import Failed, Refused

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80
_SHORT.maxlevel = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Errors that a client treats alike.

    Attributes:
        status: HTTP status code.
        name: OpenAI's `type`.
        retry_after_s: when it is worth trying again, or None.
    """

    status: int
    name: str = "invalid_request_error"
    retry_after_s: int | None = None


INVALID = Family(status=400)
NOT_FOUND = Family(status=404)
TOO_SLOW = Family(status=408)
TOO_LARGE = Family(status=413)
WRONG_MEDIA = Family(status=415)
BUSY = Family(status=429, name="rate_limit_error", retry_after_s=1)
FAULT = Family(status=500, name="server_error")
DRAINING = Family(status=503, name="unavailable_error", retry_after_s=5)

CLIENT_GONE = 499
"""Status of an answer that nobody is there to read."""


class ApiError(KvistError):
    """A request ends with this instead of an answer.

    Attributes:
        family: status code and type.
        param: name of the request field to blame, or None.
        code: short stable word for programs, or None.
    """

    def __init__(
        self, message: str, *, family: Family = INVALID, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.family = family
        self.param = param
        self.code = code

    def body(self) -> dict[str, Any]:
        """The error object, as it stands in a response body or in a stream."""
        return {"error": {"message": str(self), "type": self.family.name, "param": self.param, "code": self.code}}

    def response(self) -> Response:
        """The whole response."""
        retry_after_s = self.family.retry_after_s
        headers = {} if retry_after_s is None else {"retry-after": str(retry_after_s)}
        return JSONResponse(self.body(), status_code=self.family.status, headers=headers)


def draining() -> ApiError:
    """The server is stopping and takes nothing new."""
    return ApiError(
        "The server is draining: it finishes what runs and takes no new requests; try another replica, or again later.",
        family=DRAINING,
        code="draining",
    )


def unknown_model(model: str, served: str) -> ApiError:
    """A model that is not served here."""
    message = f"The model {shown(model)} does not exist here; this server has {served!r}."
    return ApiError(message, family=NOT_FOUND, param="model", code="model_not_found")


def of_refusal(refused: Refused) -> ApiError:
    """The engine did not accept a sequence."""
    match refused.kind:
        case "busy":
            return ApiError(refused.message, family=BUSY, code="engine_busy")
        case "invalid":
            return ApiError(refused.message, param=refused.param)


def of_failure(failed: Failed) -> ApiError:
    """The engine accepted a sequence and could not carry it through."""
    return ApiError(failed.message, family=FAULT, code="engine_failed")


def shown(value: object) -> str:
    """A client's value, short enough for a message; costs no more for a long value."""
    return _SHORT.repr(value)


async def on_api_error(_request: Request, error: Exception) -> Response:
    """Answers with an `ApiError` that a handler raised."""
    assert isinstance(error, ApiError), f"registered for ApiError alone, got {error!r}"
    return error.response()


async def on_http_error(request: Request, error: Exception) -> Response:
    """Gives the framework's own refusals (unknown path, wrong method) the shape of all others."""
    assert isinstance(error, HTTPException), f"registered for HTTPException alone, got {error!r}"
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code)
    message = f"{error.detail}: {request.method} {shown(request.url.path)}"
    response = ApiError(message, family=Family(status=error.status_code), code=code).response()
    response.headers.update(error.headers or {})
    return response


async def on_client_gone(_request: Request, _error: Exception) -> Response:
    """Ends a request whose client left while it was sending; nobody reads this."""
    return Response(status_code=CLIENT_GONE)


async def on_fault(_request: Request, _error: Exception) -> Response:
    """Answers for a mistake of ours; the framework raises it again, so that it is logged."""
    message = "The server met an error of its own; its log has the details."
    return ApiError(message, family=FAULT, code="internal_error").response()
