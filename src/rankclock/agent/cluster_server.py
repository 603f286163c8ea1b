"""The cluster page's server: asks agents on a schedule, serves one page, its data and plotly from its own wheel.

Loads nothing from elsewhere. Needs the extra `serve`. Listens on loopback only: it has no users of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from rankclock.agent.client import AgentAddress, ask_agents
from rankclock.agent.cluster_view import View

__all__ = ["cluster_app"]

_PAGE = Path(__file__).parent / "page" / "cluster.html"
_POLICY = "default-src 'none'; script-src 'self' 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; " \
    "connect-src 'self'"  # fmt: skip


def cluster_app(agents: Sequence[AgentAddress], view: View, *, every_s: float) -> Starlette:
    """The application; it asks the agents while it runs."""

    async def look() -> None:
        while True:
            began_s = time.monotonic()
            found = await asyncio.to_thread(ask_agents, agents)
            view.handle_look(found, time.time())
            await asyncio.sleep(max(every_s - (time.monotonic() - began_s), 0.1))

    @contextlib.asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        task = asyncio.create_task(look())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def page(_request: Request) -> Response:
        return HTMLResponse(_PAGE.read_text(encoding="utf-8"), headers={"Content-Security-Policy": _POLICY})

    async def data(_request: Request) -> Response:
        return JSONResponse(view.to_json(), headers={"Cache-Control": "no-store"})

    async def plotly(_request: Request) -> Response:
        return FileResponse(_plotly_path(), media_type="text/javascript", headers={"Cache-Control": "max-age=86400"})

    return Starlette(routes=[Route("/", page), Route("/data", data), Route("/plotly.js", plotly)], lifespan=lifespan)


def _plotly_path() -> Path:
    import plotly

    return Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
