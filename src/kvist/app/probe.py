"""Asks a server whose manners are not known a few GETs: bounded in bytes, in redirects and, all together, in time.

The one place where httpx's errors become ours when Kvist looks at a running server. Proxies named by the environment
are not used, redirects are not followed, and what is compressed is not asked for.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import httpx

from kvist.base.errors import WireError
from kvist.geometry.fields import show
from kvist.lab.failure import excerpt

BODY_BYTES_MAX = 16 * 2**20

SECONDS = 10.0
"""For all questions together, however slowly they are answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What one question was answered with.

    Attributes:
        url: of the question.
        status: of HTTP.
        body: as it came.
    """

    url: str
    status: int
    body: bytes

    def content(self) -> bytes:
        """The body of a good answer.

        Raises:
            WireError: it is none.
        """
        if self.status != httpx.codes.OK:
            raise WireError(f"{self.url} answers with status {self.status}")
        return self.body

    def fields(self) -> Mapping[str, object]:
        """The JSON object that a good answer holds.

        Raises:
            WireError: it holds none.
        """
        body = self.content()
        try:
            content = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise WireError(f"{self.url} answers with no JSON: {show(body[:40].decode('utf-8', 'replace'))}") from error
        if not isinstance(content, dict):
            raise WireError(f"{self.url} answers with no JSON object: {show(content)}")
        return content


def replies(url: str, paths: Sequence[str], *, seconds: float = SECONDS) -> dict[str, Reply]:
    """Asks for each path in turn; an answer with an error's status is an answer too.

    Args:
        url: base of the server, as `kvist.lab.client.parse_url` returns it.
        paths: each with its slash.
        seconds: for all of them.

    Raises:
        WireError: nobody answers, it is not HTTP, too long or too late.
    """
    return asyncio.run(_replies(url, paths, seconds))


async def _replies(url: str, paths: Sequence[str], seconds: float) -> dict[str, Reply]:
    found = {}
    asked = url
    try:
        async with asyncio.timeout(seconds), httpx.AsyncClient(timeout=seconds, trust_env=False) as client:
            for path in paths:
                asked = url + path
                found[path] = await _reply(client, asked)
    except TimeoutError as error:
        raise WireError(f"{asked} does not answer within {seconds:g} s") from error
    except httpx.HTTPError as error:
        raise WireError(f"{asked} does not answer ({excerpt(str(error)) or type(error).__name__})") from error
    return found


async def _reply(client: httpx.AsyncClient, url: str) -> Reply:
    async with client.stream("GET", url, headers={"accept-encoding": "identity"}) as response:
        body = bytearray()
        async for piece in response.aiter_raw():
            body += piece
            if len(body) > BODY_BYTES_MAX:
                raise WireError(f"{url} answers with more than {BODY_BYTES_MAX} bytes")
        return Reply(url=url, status=response.status_code, body=bytes(body))
