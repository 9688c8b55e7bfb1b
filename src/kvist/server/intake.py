"""The way of a request into the server: from its body to the reply that will generate."""

from collections.abc import Callable
from typing import Any

from starlette.requests import Request

from kvist.base.errors import RequestError
from kvist.server.answer import Shape
from kvist.server.body import parse_object, read_body
from kvist.server.errors import ApiError, unknown_model
from kvist.server.job import Job
from kvist.server.reply import Reply
from kvist.server.service import Service

EXPLAIN_HEADER = "x-kvist-explain"

JobOf = Callable[[dict[str, Any]], Job]


async def take(request: Request, service: Service, shape: Shape, job_of: JobOf) -> Reply:
    """Reads a request and makes sure that it can be honoured.

    Args:
        request: of either endpoint.
        service: who answers.
        shape: of the endpoint's answers.
        job_of: turns the body's JSON object into a job; called on the worker thread.

    Raises:
        ApiError: it can not be honoured, or not now.
    """
    arrived_s = service.clock.now_s()
    try:
        job = await _job(request, service, job_of)
    except ApiError as error:
        service.metrics.count_refusal(error)
        raise
    explains = request.headers.get(EXPLAIN_HEADER) == "1"
    return Reply(service, job, shape, arrived_s=arrived_s, explains=explains)


async def _job(request: Request, service: Service, job_of: JobOf) -> Job:
    service.lifecycle.check_accepting()
    body = await read_body(request, service.settings)

    def read() -> Job:
        given = parse_object(body)
        _check_model(given, service.settings.model.id)
        try:
            return job_of(given)
        except RequestError as error:
            raise ApiError(str(error), param=error.param, code="invalid_value") from error

    return await service.worker.run(read)


def _check_model(given: dict[str, Any], served: str) -> None:
    # Before all other fields: what they may be depends on the model.
    model = given.get("model")
    if isinstance(model, str) and model != served:
        raise unknown_model(model, served)
