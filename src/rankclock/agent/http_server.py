"""A small HTTP/1.1 server for GET and HEAD on asyncio: what a scraper and a browser need, and nothing else.

Decides limits: how long a request may take to arrive, how large it may be, how many connections there are. Refuses
everything else with the status that says so. TLS and users are given to it; what a path means is the caller's.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field

from rankclock.errors import HostError

__all__ = ["Answer", "HttpServer", "Request"]

MAX_HEAD_BYTES = 16 * 1024
MAX_CONNECTIONS = 64
"""A scraper, a probe, a few people; more are turned away rather than fed."""

HEAD_S = 5.0
IDLE_S = 90.0
"""Between requests of one connection: longer than scrape intervals, which keep theirs open."""

WRITE_S = 10.0

_REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 405: "Method Not Allowed",
            408: "Request Timeout", 431: "Request Header Fields Too Large", 500: "Internal Server Error",
            503: "Service Unavailable"}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request. headers: names in lower case, the last of each."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What is sent back."""

    status: int = 200
    kind: str = "text/plain; charset=utf-8"
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = field(default=())


class HttpServer:
    """Listens from `open` to `close`. `handle` must not block; what it raises becomes 500 and is told to `on_error`."""

    def __init__(self, handle: Callable[[Request], Answer], *, on_error: Callable[[BaseException], None]) -> None:
        self._handle = handle
        self._on_error = on_error
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def port(self) -> int:
        """The port that it listens on."""
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    async def open(self, host: str, port: int, *, tls: ssl.SSLContext | None = None) -> None:
        """Start to listen. Raises HostError where the port cannot be had."""
        try:
            self._server = await asyncio.start_server(
                self._connected, host, port, ssl=tls, limit=MAX_HEAD_BYTES, backlog=128
            )
        except OSError as error:
            why = error.strerror or str(error)
            raise HostError(f"cannot listen on {host} port {port}: {why}: choose another with listen:") from error

    async def close(self) -> None:
        """Stop listening, end every connection."""
        if self._server is not None:
            self._server.close()
        for task in tuple(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            if len(self._connections) > MAX_CONNECTIONS:
                await self._send(writer, Answer(status=503, body=b"too many connections\n"), keep=False)
            else:
                await self._converse(reader, writer)
        except asyncio.CancelledError:
            pass  # the server is closed: the task ends here
        except (OSError, TimeoutError, EOFError):
            pass  # the other side went away, or never came to the point
        finally:
            self._connections.discard(task)
            writer.close()
            with contextlib.suppress(OSError, TimeoutError, asyncio.CancelledError):
                await asyncio.wait_for(writer.wait_closed(), WRITE_S)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        wait_s = HEAD_S
        while True:
            try:
                head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), wait_s)
            except asyncio.LimitOverrunError:
                await self._send(writer, Answer(status=431, body=b"the request head is too long\n"), keep=False)
                return
            request = _parse(head)
            if request is None:
                await self._send(writer, Answer(status=400, body=b"not a request\n"), keep=False)
                return
            keep = _stays(request)
            await self._send(writer, self._answer(request), keep=keep, head_only=request.method == "HEAD")
            if not keep:
                return
            wait_s = IDLE_S

    def _answer(self, request: Request) -> Answer:
        if request.method not in ("GET", "HEAD"):
            return Answer(status=405, body=b"only GET and HEAD\n", headers=(("Allow", "GET, HEAD"),))
        try:
            return self._handle(request)
        except Exception as error:
            self._on_error(error)
            return Answer(status=500, body=b"our fault; the log says more\n")

    async def _send(self, writer: asyncio.StreamWriter, answer: Answer, *, keep: bool, head_only: bool = False) -> None:
        lines = [
            f"HTTP/1.1 {answer.status} {_REASONS[answer.status]}",
            f"Content-Type: {answer.kind}",
            f"Content-Length: {len(answer.body)}",
            "Cache-Control: no-store",
            "X-Content-Type-Options: nosniff",
            f"Connection: {'keep-alive' if keep else 'close'}",
            *(f"{name}: {value}" for name, value in answer.headers),
        ]
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + (b"" if head_only else answer.body))
        await asyncio.wait_for(writer.drain(), WRITE_S)


def _parse(head: bytes) -> Request | None:
    """A request of its head, None where it is none, or has a body: we take none."""
    lines = head.decode("latin-1").split("\r\n")
    words = lines[0].split(" ")
    if len(words) != 3 or words[2] not in ("HTTP/1.0", "HTTP/1.1") or not words[1].startswith("/"):
        return None
    headers: dict[str, str] = {}
    for line in lines[1:]:
        if line:
            name, colon, value = line.partition(":")
            if not colon or not name or name != name.strip():
                return None
            headers[name.lower()] = value.strip()
    if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
        return None
    path, _, query = words[1].partition("?")
    return Request(method=words[0], path=path, query=query, headers=headers, version=words[2])


def _stays(request: Request) -> bool:
    asked = request.headers.get("connection", "").lower()
    return asked == "keep-alive" if request.version == "HTTP/1.0" else asked != "close"
