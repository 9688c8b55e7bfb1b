"""What an operator asks of a running server, as an app of its own: it is served where only the operator can reach it.

    POST /v1/cache/VERB   a JSON object in, a JSON object out

Verbs block while tiers work, so they run on threads of their own, a few at once; whoever comes later is told to wait.
"""

from anyio import CapacityLimiter, to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from kvist.server.administration_verbs import Verbs
from kvist.server.body import parse_object, read_body
from kvist.server.errors import BUSY, ApiError, on_api_error, on_client_gone, on_fault, on_http_error
from kvist.server.settings import ServerSettings

AT_ONCE = 4


def create_administration(verbs: Verbs, settings: ServerSettings) -> Starlette:
    """Makes the app.

    Args:
        verbs: do the work.
        settings: bounds on what clients send.
    """
    limiter = CapacityLimiter(AT_ONCE)

    async def ask(request: Request) -> Response:
        given = parse_object(await read_body(request, settings))
        name: str = request.path_params["verb"]
        if not limiter.available_tokens:
            message = f"{AT_ONCE} commands are at work already; try again when one has ended."
            raise ApiError(message, family=BUSY, code="busy")
        # A client that leaves does not stop what it asked for, and nobody waits for it.
        done = await to_thread.run_sync(verbs.do, name, given, limiter=limiter, abandon_on_cancel=True)
        return JSONResponse(done)

    return Starlette(
        routes=[Route("/v1/cache/{verb}", ask, methods=["POST"])],
        exception_handlers={
            ApiError: on_api_error,
            ClientDisconnect: on_client_gone,
            HTTPException: on_http_error,
            Exception: on_fault,
        },
    )
