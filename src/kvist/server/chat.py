"""`/v1/chat/completions`: the shape of its answers and its route."""

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from kvist.server.answer import Answer, Shape
from kvist.server.choice import Piece
from kvist.server.intake import take
from kvist.server.job import Job
from kvist.server.logprobs import chat_logprobs
from kvist.server.neutral import CHAT, without_neutral
from kvist.server.schemas import ChatBody, validated
from kvist.server.service import Service
from kvist.server.translate import chat_job


def _choice(answer: Answer) -> dict[str, Any]:
    return {
        "index": answer.index,
        "message": {"role": "assistant", "content": answer.text, "refusal": None},
        "logprobs": chat_logprobs(answer.scores),
        "finish_reason": answer.finish,
    }


def _delta(piece: Piece, is_first: bool) -> dict[str, Any]:  # noqa: FBT001  # the signature of Shape.delta
    role = {"role": "assistant", "content": ""} if is_first else {}
    text = {"content": piece.text} if piece.text else {}
    return {
        "index": piece.index,
        "delta": role | text,
        "logprobs": chat_logprobs(piece.scores),
        "finish_reason": piece.finish,
    }


SHAPE = Shape(
    id_prefix="chatcmpl-", whole="chat.completion", chunk="chat.completion.chunk", choice=_choice, delta=_delta
)


def chat_routes(service: Service) -> APIRouter:
    """The one route of chat completions."""
    router = APIRouter()

    def job_of(given: dict[str, Any]) -> Job:
        return chat_job(validated(ChatBody, without_neutral(given, CHAT)), service)

    @router.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        """Continues a conversation."""
        return await take(request, service, SHAPE, job_of)

    return router
