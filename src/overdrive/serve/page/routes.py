"""The two paths of the live page: itself, which anybody may have, and what it is told, which needs the server's key."""

from __future__ import annotations

from fastapi import FastAPI, Response
from fastapi.responses import StreamingResponse

from overdrive.serve.page.assembly import assemble
from overdrive.serve.page.live import follow
from overdrive.serve.service import Gate


def add_page(app: FastAPI, gate: Gate) -> None:
    """Adds both to `app`."""
    html, headers = assemble()

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        """The live page."""
        return Response(html, headers=headers, media_type="text/html; charset=utf-8")

    @app.get("/live", include_in_schema=False)
    async def live() -> Response:
        """What open pages are told."""
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no", "X-Content-Type-Options": "nosniff"}
        return StreamingResponse(follow(gate), headers=headers, media_type="text/event-stream")
