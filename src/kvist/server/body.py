"""A request's body: from bytes on the wire to a JSON object, within bounds of size, time and depth.

Knows HTTP and JSON; does not know what the fields mean.
"""

import asyncio
from typing import Any

from pydantic_core import from_json
from starlette.requests import Request

from kvist.base.units import Bytes, format_bytes
from kvist.server.errors import TOO_LARGE, TOO_SLOW, WRONG_MEDIA, ApiError, shown
from kvist.server.settings import ServerSettings

DISCARD_FACTOR = 8
"""A body up to so many times the bound is read to its end and dropped. A client that writes its whole body before
it reads would otherwise see a reset connection in place of the answer that says what was wrong."""


async def read_body(request: Request, settings: ServerSettings) -> bytes:
    """Reads a body that says it is JSON.

    Raises:
        ApiError: 415 for another content type, 413 for too many bytes, 408 for too slow a sender.
        ClientDisconnect: the client left before the body was whole.
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise ApiError(
            f"The body has content type {shown(media_type)}; send JSON with 'Content-Type: application/json'.",
            family=WRONG_MEDIA,
            code="unsupported_media_type",
        )
    try:
        async with asyncio.timeout(settings.body_seconds_max):
            return await _read_within(request, settings.body_bytes_max)
    except TimeoutError:
        raise ApiError(
            f"The body did not arrive within {settings.body_seconds_max:g} s.", family=TOO_SLOW, code="request_timeout"
        ) from None


async def _read_within(request: Request, bytes_max: Bytes) -> bytes:
    declared = int(request.headers.get("content-length", 0))
    asks_first = "expect" in request.headers
    if declared > bytes_max and (asks_first or declared > DISCARD_FACTOR * bytes_max):
        raise _too_large(bytes_max)
    parts: list[bytes] = []
    received = 0
    async for part in request.stream():
        received += len(part)
        if received <= bytes_max:
            parts.append(part)
        else:
            parts.clear()
        if received > DISCARD_FACTOR * bytes_max:
            break
    if received > bytes_max:
        raise _too_large(bytes_max)
    return b"".join(parts)


def _too_large(bytes_max: Bytes) -> ApiError:
    return ApiError(
        f"The body is larger than {format_bytes(bytes_max)} ({bytes_max} bytes), the most this server takes.",
        family=TOO_LARGE,
        code="request_too_large",
    )


def parse_object(body: bytes) -> dict[str, Any]:
    """Reads strict JSON: UTF-8 without lone surrogates, no NaN or infinity, nesting and digits bounded.

    Raises:
        ApiError: the bytes are no JSON object.
    """
    try:
        value = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise ApiError(f"The body is not valid JSON: {error}.", code="invalid_json") from error
    if not isinstance(value, dict):
        raise ApiError(f"The body must be a JSON object, not {type(value).__name__}.", code="invalid_json")
    return value
