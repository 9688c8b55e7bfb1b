"""HTTP to one OpenAI-compatible server: lists its models, streams its answers, times every chunk.

The only module of the package that touches the network, and the one place where httpx's exceptions become
`CallError`. Speaks to the URL directly: proxies named by the environment are not used, redirects are not
followed, nothing is retried, and compression is refused because it would delay the first token.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

import httpx

from kvist.base.clock import Clock
from kvist.base.errors import ConfigError
from kvist.lab.answer import Answer, AnswerReader, Endpoint, error_text
from kvist.lab.failure import CallError, excerpt

BODY_BYTES_MAX = 2**20
"""Bytes read of a body that is not a stream."""

_CONNECT_S = 10.0
_AFTER_DONE_S = 1.0  # a server may keep the stream open after its end mark; the answer is complete all the same


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where the server is and how long it may take.

    Attributes:
        url: as `parse_url` returns it.
        api_key: sent as a bearer token; None sends none.
        timeout_s: bound of one whole call, from connecting to the last byte.
    """

    url: str
    api_key: str | None = None
    timeout_s: float = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """One entry of `/v1/models`.

    Attributes:
        name: what requests call it.
        tokens_max: prompt plus output that it takes; None when the server does not say.
    """

    name: str
    tokens_max: int | None = None


def parse_url(text: str) -> str:
    """A server's base URL without its `/v1`, out of what a user typed.

    Raises:
        ConfigError: it is not a plain http or https URL.

    >>> parse_url("http://127.0.0.1:8000/v1/")
    'http://127.0.0.1:8000'
    """
    remedy = "write it like http://127.0.0.1:8000"
    try:
        parts = urlsplit(text)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        _ = httpx.URL(text).host  # read late, and may then be no name at all
    except (ValueError, httpx.InvalidURL) as error:
        raise ConfigError(f"{text!r} is not a URL ({error}); {remedy}") from error
    if not valid or parts.query or parts.fragment or not text.isprintable() or " " in text:
        raise ConfigError(f"{text!r} is not the base URL of a server; {remedy}")
    if parts.username is not None or parts.password is not None:
        raise ConfigError(
            f"the URL of {parts.hostname} holds credentials, which would end up in reports; leave them out"
        )
    return text.rstrip("/").removesuffix("/v1").rstrip("/")


class Client:
    """Calls one server; any number of calls may run at once on one event loop."""

    def __init__(self, http: httpx.AsyncClient, target: Target, clock: Clock) -> None:
        self._http = http
        self._target = target
        self._clock = clock

    @property
    def url(self) -> str:
        """Base URL of the server."""
        return self._target.url

    @property
    def clock(self) -> Clock:
        """What times the calls."""
        return self._clock

    async def models(self) -> tuple[ServedModel, ...]:
        """Models that the server lists.

        Raises:
            CallError: the server did not answer, or not in OpenAI's shape.
        """
        url = f"{self.url}/v1/models"
        with _translated(url, self._target.timeout_s):
            async with asyncio.timeout(self._target.timeout_s), self._http.stream("GET", url) as response:
                body = await _bounded_body(response)
        if response.status_code != 200:
            raise _status_error("GET", url, response.status_code, body)
        return _read_models(url, body)

    async def stream(self, endpoint: Endpoint, body: Mapping[str, object], *, output_tokens: int) -> Answer:
        """Sends one request and reads its answer to the end, as a stream.

        Args:
            endpoint: which of the two to ask.
            body: the request without its `stream` field.
            output_tokens: answer length asked for; a server that sends many times more is cut off.

        Raises:
            CallError: the call failed; its kind says how.
        """
        url = f"{self.url}/v1/{endpoint}"
        content = json.dumps({**body, "stream": True}).encode()  # before the clock starts: it is our work, not theirs
        reader = AnswerReader(endpoint, started_s=self._clock.now_s(), token_events_max=4 * output_tokens + 64)
        with _translated(url, self._target.timeout_s, reader):
            async with (
                asyncio.timeout(self._target.timeout_s) as deadline,
                self._http.stream(
                    "POST", url, content=content, headers={"content-type": "application/json"}
                ) as response,
            ):
                await _check_is_stream(url, response)
                await self._read_stream(response, reader, deadline)
        return reader.finish(self._clock.now_s())

    async def _read_stream(self, response: httpx.Response, reader: AnswerReader, deadline: asyncio.Timeout) -> None:
        async for chunk in response.aiter_raw():
            was_done = reader.is_done
            reader.feed(chunk, self._clock.now_s())
            if reader.is_done and not was_done:  # read on to the end, so that the connection can be used again
                soon_s = asyncio.get_running_loop().time() + _AFTER_DONE_S
                deadline.reschedule(min(deadline.when() or soon_s, soon_s))


@asynccontextmanager
async def open_client(
    target: Target, clock: Clock, *, transport: httpx.AsyncBaseTransport | None = None
) -> AsyncIterator[Client]:
    """Lends a client whose connections are closed on the way out.

    Args:
        target: the server.
        clock: times the calls.
        transport: carries the bytes; None takes TCP.
    """
    headers = {"accept-encoding": "identity", "user-agent": "kvist-bench"}
    if target.api_key is not None:
        headers["authorization"] = f"Bearer {target.api_key}"
    async with httpx.AsyncClient(
        headers=headers,
        timeout=httpx.Timeout(None, connect=_CONNECT_S),  # the bound of the whole call is our own
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
        transport=transport,
        trust_env=False,
    ) as http:
        yield Client(http, target, clock)


@contextmanager
def _translated(url: str, timeout_s: float, reader: AnswerReader | None = None) -> Iterator[None]:
    """Turns whatever httpx raises into a `CallError`; trouble after the end mark is no trouble."""
    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        raise CallError(f"no server answers at {url} ({_words(error)}); is it running?", kind="connect") from error
    except (TimeoutError, httpx.TimeoutException) as error:
        if reader is None or not reader.is_done:
            raise CallError(f"{url} did not answer in full within {timeout_s:g} s", kind="timeout") from error
    except (httpx.NetworkError, httpx.RemoteProtocolError) as error:
        if reader is None or not reader.is_done:
            raise CallError(f"{url} broke off the exchange ({_words(error)})", kind="disconnected") from error
    except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as error:
        raise CallError(f"{url} could not be called ({_words(error)})", kind="malformed") from error


def _words(error: Exception) -> str:
    return excerpt(str(error)) or type(error).__name__


async def _check_is_stream(url: str, response: httpx.Response) -> None:
    if response.status_code != 200:
        raise _status_error("POST", url, response.status_code, await _bounded_body(response))
    kind = response.headers.get("content-type", "")
    if not kind.lower().startswith("text/event-stream"):
        body = excerpt((await _bounded_body(response)).decode("utf-8", errors="replace"))
        raise CallError(
            f"{url} answered with {kind or 'no content type'!r}, not an event stream: {body}", kind="malformed"
        )
    if response.headers.get("content-encoding", "identity").lower() != "identity":
        raise CallError(f"{url} compressed its stream although asked not to", kind="malformed")


async def _bounded_body(response: httpx.Response) -> bytes:
    """The first BODY_BYTES_MAX bytes of a body, as they came."""
    body = bytearray()
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) >= BODY_BYTES_MAX:
            break
    return bytes(body[:BODY_BYTES_MAX])


def _json_or_none(body: bytes) -> object:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _status_error(verb: str, url: str, status: int, body: bytes) -> CallError:
    decoded = _json_or_none(body)
    said = error_text(decoded) if isinstance(decoded, dict) else ""
    said = said or excerpt(body.decode("utf-8", errors="replace")) or "nothing"
    return CallError(f"{verb} {url} answered {status}: {said}", kind=f"http_{status}", status=status)


def _read_models(url: str, body: bytes) -> tuple[ServedModel, ...]:
    decoded = _json_or_none(body)
    entries = decoded.get("data") if isinstance(decoded, dict) else None
    if not isinstance(entries, list):
        said = excerpt(body.decode("utf-8", errors="replace")) or "nothing"
        raise CallError(f"{url} does not list models as OpenAI's API does, but says: {said}", kind="malformed")
    models = []
    for entry in entries:
        if isinstance(entry, dict) and isinstance(entry.get("id"), str):
            bound = entry.get("max_model_len")
            known = isinstance(bound, int) and not isinstance(bound, bool) and bound > 0
            models.append(ServedModel(name=entry["id"], tokens_max=bound if known else None))
    return tuple(models)
