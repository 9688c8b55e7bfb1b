"""`/v1/completions`: the shape of its answers and its route."""

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from kvist.server.answer import Answer, Shape
from kvist.server.choice import Piece
from kvist.server.intake import take
from kvist.server.job import Job
from kvist.server.logprobs import completion_logprobs
from kvist.server.neutral import COMPLETION, without_neutral
from kvist.server.schemas import CompletionBody, validated
from kvist.server.service import Service
from kvist.server.translate import completion_job


def _choice(answer: Answer) -> dict[str, Any]:
    return {
        "index": answer.index,
        "text": answer.text,
        "logprobs": completion_logprobs(answer.scores),
        "finish_reason": answer.finish,
    }


def _delta(piece: Piece, _is_first: bool) -> dict[str, Any]:  # noqa: FBT001  # the signature of Shape.delta
    return {
        "index": piece.index,
        "text": piece.text,
        "logprobs": completion_logprobs(piece.scores),
        "finish_reason": piece.finish,
    }


SHAPE = Shape(id_prefix="cmpl-", whole="text_completion", chunk="text_completion", choice=_choice, delta=_delta)


def completion_routes(service: Service) -> APIRouter:
    """The one route of completions."""
    router = APIRouter()

    def job_of(given: dict[str, Any]) -> Job:
        return completion_job(validated(CompletionBody, without_neutral(given, COMPLETION)), service)

    @router.post("/v1/completions")
    async def completions(request: Request) -> Response:
        """Continues texts."""
        return await take(request, service, SHAPE, job_of)

    return router
