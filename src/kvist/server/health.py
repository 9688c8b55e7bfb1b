"""What those who operate the server ask: does it live, does it take requests, what does it count."""

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import JSONResponse, Response

from kvist.server.errors import DRAINING
from kvist.server.service import Service


def health_routes(service: Service) -> APIRouter:
    """The routes for probes and for Prometheus."""
    router = APIRouter()

    @router.get("/health")
    async def health() -> dict[str, str]:
        """Says that the process lives, whatever else it does."""
        return {"status": "ok"}

    @router.get("/ready")
    async def ready() -> Response:
        """Says whether requests are answered: the engine is loaded and well, and no drain has begun."""
        if service.engine.fault is not None:
            return JSONResponse({"status": "failed"}, status_code=503)
        if service.lifecycle.is_accepting:
            return JSONResponse({"status": "ready"})
        headers = {"retry-after": str(DRAINING.retry_after_s)}
        return JSONResponse({"status": "draining"}, status_code=DRAINING.status, headers=headers)

    @router.get("/metrics")
    async def metrics() -> Response:
        """All metrics, for Prometheus."""
        return Response(service.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    return router
