"""The agent as a process: reads on a schedule, keeps a prober, listens, obeys signals. No judgement on clocks in here.

Every blocking thing (daemons, prober, configuration) is done by a worker of its own and waited for with a limit.
SIGHUP reads the configuration again and keeps the old one where the new one is wrong; SIGTERM and SIGINT end it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Coroutine
from functools import partial
from pathlib import Path

from rankclock.agent.details import look_at_details
from rankclock.agent.http_server import HttpServer
from rankclock.agent.look import look_at_node
from rankclock.agent.maintenance import Maintenance
from rankclock.agent.pages import Clocks, Pages
from rankclock.agent.quiet_log import QuietLog
from rankclock.agent.settings import ProbeSettings, Settings
from rankclock.agent.story import Story
from rankclock.agent.users import Users
from rankclock.agent.worker import Busy, Worker
from rankclock.errors import HostError, RankclockError, UserError
from rankclock.mesh.handle import Prober
from rankclock.mesh.report import NodeReport
from rankclock.node.kernel import raw_ns
from rankclock.timebase import NS_PER_S

__all__ = ["Service", "read_clocks", "read_settings"]

LOOK_LIMIT_S = 8.0
"""A look asks a few daemons, each for at most a second or so."""

DETAILS_LIMIT_S = 12.0
REPORT_LIMIT_S = 12.0
RELOAD_LIMIT_S = 30.0
PROBER_PAUSE_NS = 10 * NS_PER_S


def read_clocks() -> Clocks:
    """This machine's, as they read now."""
    return Clocks(raw_ns(), time.time())


def read_settings(path: str) -> Settings:
    """The settings of a file, by the process that reads such files. Raises UserError, HostError."""
    command = [sys.executable, "-m", "rankclock.agent.config", path]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=RELOAD_LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HostError(f"{path}: the configuration could not be read: {error}") from error
    if done.returncode != 0:
        raise UserError((done.stderr.strip().splitlines() or [f"{path}: the reader ended with {done.returncode}"])[-1])
    return Settings.from_json(json.loads(done.stdout))


class Service:
    """One agent. `run` returns when it was told to end."""

    def __init__(self, settings: Settings, *, config: str = "", log: QuietLog | None = None) -> None:
        self.story = Story(settings=settings)
        self.pages = Pages(self.story, read_clocks)
        self._config = config
        self._log = log or QuietLog()
        self._server: HttpServer | None = None
        self._looker, self._detailer = Worker("look"), Worker("details")
        self._measurer, self._loader = Worker("mesh"), Worker("config")
        self._prober: Prober | None = None
        self._prober_of: ProbeSettings | None = None
        self._prober_began_ns: int | None = None
        self._maintenance = Maintenance()
        self._stop = asyncio.Event()

    async def run(self) -> None:
        """Serve until ended. Raises HostError, UserError where it cannot begin."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        reloads = asyncio.Event()
        loop.add_signal_handler(signal.SIGHUP, reloads.set)
        await self._listen(self.story.settings)
        self._say([f"node {self.story.settings.node}, listening on {self._where()}"])
        _notify("READY=1")
        tasks = [asyncio.create_task(job) for job in self._jobs(reloads)]
        try:
            stopping = asyncio.create_task(self._stop.wait())
            done, _ = await asyncio.wait((stopping, *tasks), return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            for task in done - {stopping}:
                task.result()  # none of them ends by itself: say what broke it
        finally:
            _notify("STOPPING=1")
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._close()
        self._say(["ended"])

    def stop(self) -> None:
        """Let `run` return."""
        self._stop.set()

    @property
    def port(self) -> int:
        """Where it listens."""
        assert self._server is not None
        return self._server.port

    # ---- reading ----

    def _jobs(self, reloads: asyncio.Event) -> tuple[Coroutine[None, None, None], ...]:
        return self._look(), self._detail(), self._measure(), self._reload_on(reloads)

    async def _look(self) -> None:
        while True:
            began_ns = raw_ns()
            node = self.story.settings.node
            try:
                look = await self._looker.run(partial(look_at_node, node), timeout_s=LOOK_LIMIT_S)
                said = self.story.handle_look(look, took_ns=raw_ns() - began_ns, now_ns=raw_ns())
            except TimeoutError:
                said = self.story.handle_look_failed(f"no end within {LOOK_LIMIT_S:.0f} s", raw_ns())
            except Busy:
                said = self.story.handle_look_failed("the look before still hangs", raw_ns())
            except Exception as error:  # a fault of ours in a reader must not end the service: it is said and counted
                said = self.story.handle_look_failed(f"{type(error).__name__}: {error}", raw_ns())
            said += self.story.handle_maintenance(
                self._maintenance.holds(self.story.settings.maintenance_file, raw_ns())
            )
            self._say(said)
            await self._pause(began_ns, self.story.settings.read_every_ns)

    async def _detail(self) -> None:
        while True:
            began_ns = raw_ns()
            try:
                details = await self._detailer.run(look_at_details, timeout_s=DETAILS_LIMIT_S)
                said = self.story.handle_details(details, took_ns=raw_ns() - began_ns, now_ns=raw_ns())
            except TimeoutError:
                said = self.story.handle_details_failed(f"no end within {DETAILS_LIMIT_S:.0f} s")
            except Busy:
                said = self.story.handle_details_failed("the reading before still hangs")
            except Exception as error:  # a fault of ours in a reader must not end the service: it is said and counted
                said = self.story.handle_details_failed(f"{type(error).__name__}: {error}")
            self._say(said)
            await self._pause(began_ns, self.story.settings.details_every_ns)

    async def _measure(self) -> None:
        while True:
            began_ns = raw_ns()
            if self.story.settings.probe is not None or self._prober is not None:
                wanted = self.story.settings.probe
                try:
                    report = await self._measurer.run(partial(self._report, wanted), timeout_s=REPORT_LIMIT_S)
                    took_ns, now_ns = raw_ns() - began_ns, raw_ns()
                    said = self.story.handle_report(report, took_ns=took_ns, now_ns=now_ns) if report else []
                except TimeoutError:
                    said = self.story.handle_report_failed(f"no report within {REPORT_LIMIT_S:.0f} s", raw_ns())
                except Busy:
                    said = self.story.handle_report_failed("the report before is still waited for", raw_ns())
                except Exception as error:
                    said = self.story.handle_report_failed(str(error) or type(error).__name__, raw_ns())
                self._say(said)
            await self._pause(began_ns, self.story.settings.read_every_ns)

    def _report(self, wanted: ProbeSettings | None) -> NodeReport | None:
        """In the worker: a report of a prober that does what is wanted, which is started where none is."""
        prober, before = self._prober, self._prober_of
        died = prober is not None and not prober.alive
        if prober is not None and (died or wanted is None or before is None or wanted.bind != before.bind):
            self._prober = self._prober_of = None
            prober.close()
            prober = None
        if died and wanted is not None:
            raise HostError("the prober process ended; the next reading starts it again")
        if wanted is None:
            return None
        if prober is None:
            if self._prober_began_ns is not None and raw_ns() - self._prober_began_ns < PROBER_PAUSE_NS:
                raise HostError("the prober ended and is started again in a while")
            self._prober_began_ns = raw_ns()
            prober = Prober.start(node=self.story.settings.node, bind=wanted.bind)
            self._prober = prober
            self.story.handle_prober_started()
        if self._prober_of != wanted:
            prober.connect(peers=wanted.peers, key=bytes.fromhex(wanted.key_hex))
            self._prober_of = wanted
        return prober.report()

    async def _pause(self, began_ns: int, period_ns: int) -> None:
        await asyncio.sleep(max(period_ns - (raw_ns() - began_ns), period_ns // 10) / NS_PER_S)

    # ---- configuration ----

    async def _reload_on(self, asked: asyncio.Event) -> None:
        while True:
            await asked.wait()
            asked.clear()
            if not self._config:
                continue
            _notify(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")
            try:
                settings = await self._loader.run(lambda: read_settings(self._config), timeout_s=RELOAD_LIMIT_S + 1)
                await self._take(settings)
                self._say(["configuration read again"])
            except (RankclockError, TimeoutError, Busy) as error:
                self._say([f"the configuration stays as it was: {error}"])
            _notify("READY=1")

    async def _take(self, settings: Settings) -> None:
        before = self.story.settings
        listener = ("listen_host", "listen_port", "tls_certificate", "tls_key", "users_file")
        if self._server is None or any(getattr(settings, name) != getattr(before, name) for name in listener):
            await self._listen(settings)
        elif settings.users_file or settings.tls_certificate:
            await self._listen(settings)  # the same files may hold something new
        self.story.handle_settings(settings)

    async def _listen(self, settings: Settings) -> None:
        """Open the listener of these settings; the one before goes only once everything for it is known to be right."""
        users = Users.load(Path(settings.users_file)) if settings.users_file else None
        tls = _tls(settings) if settings.tls_certificate else None
        server = HttpServer(self.pages.answer, on_error=lambda error: self._say([f"a page broke: {error!r}"]))
        before = self._server
        same = before is not None and (settings.listen_host, settings.listen_port) == (
            self.story.settings.listen_host,
            self.story.settings.listen_port,
        )
        if before is not None and same:
            await before.close()
        try:
            await server.open(settings.listen_host, settings.listen_port, tls=tls)
        except HostError:
            if same:
                self._server = None
            raise
        if before is not None and not same:
            await before.close()
        self._server, self.pages.users = server, users

    def _where(self) -> str:
        host = self.story.settings.listen_host
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"

    async def _close(self) -> None:
        if self._server is not None:
            await self._server.close()
        for worker in (self._looker, self._detailer, self._measurer, self._loader):
            worker.close()
        if self._prober is not None:
            with contextlib.suppress(OSError):
                self._prober.close()

    def _say(self, lines: list[str]) -> None:
        for line in lines:
            self._log.say(line, raw_ns())


def _tls(settings: Settings) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(settings.tls_certificate, settings.tls_key)
    except (OSError, ssl.SSLError) as error:
        pair = f"{settings.tls_certificate}, {settings.tls_key}"
        raise UserError(f"{pair}: expected a certificate and its key in PEM form: {error}") from None
    return context


def _notify(message: str) -> None:
    """Tell systemd, where it asked to be told (sd_notify(3))."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if path:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as link:
            link.connect("\0" + path[1:] if path[0] == "@" else path)
            link.send(message.encode())
