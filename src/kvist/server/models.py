"""`/v1/models`: which model is served, from where, and how long its sequences may be."""

from typing import Any

from fastapi import APIRouter

from kvist.server.bounds import sequence_tokens_max
from kvist.server.errors import unknown_model
from kvist.server.service import Service


def model_routes(service: Service) -> APIRouter:
    """The routes that present the one model."""
    router = APIRouter()

    def card() -> dict[str, Any]:
        model = service.settings.model
        return {
            "id": model.id,
            "object": "model",
            "created": model.created_s,
            "owned_by": model.owned_by,
            "root": model.root,
            "max_model_len": sequence_tokens_max(service.engine.limits),
        }

    @router.get("/v1/models")
    async def models() -> dict[str, Any]:
        """Lists the model."""
        return {"object": "list", "data": [card()]}

    # A path, because ids such as "owner/name" hold a slash.
    @router.get("/v1/models/{model_id:path}")
    async def model(model_id: str) -> dict[str, Any]:
        """Shows the model with this id."""
        if model_id != service.settings.model.id:
            raise unknown_model(model_id, service.settings.model.id)
        return card()

    return router
