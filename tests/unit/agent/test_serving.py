"""The agent's listener and pages over real sockets: what is answered, what is refused; nobody can hold it up."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from rankclock.agent import http_server
from rankclock.agent.client import AgentAddress, agent_addresses, ask_agent, ask_agents
from rankclock.agent.http_server import Answer, HttpServer, Request
from rankclock.agent.look import Look, Source, Sources
from rankclock.agent.maintenance import Maintenance
from rankclock.agent.metrics import METRICS
from rankclock.agent.pages import Clocks, Pages
from rankclock.agent.quiet_log import QuietLog
from rankclock.agent.settings import ProbeSettings, Settings
from rankclock.agent.story import Story
from rankclock.agent.users import Users, password_line
from rankclock.agent.worker import Busy, Worker
from rankclock.errors import HostError, PeerError, UserError
from rankclock.mesh.report import EdgeReport, NodeReport
from rankclock.timebase import NS_PER_S, ClockState, Offset, SyncState

OFFSET = Offset.around(-1_500, 30_000, reference="root behind time1", method="chronyd", at_raw_ns=0)


def story_of(node: str = "n1", sources: Sources | None = None) -> Story:
    told = Story(settings=Settings(node=node))
    unmeasured = Offset.unknown("not measured", reference="none", method="none")
    state = ClockState(
        node=node,
        state=SyncState.SYNCHRONISED,
        owner="chronyd",
        source="time1",
        claimed=OFFSET,
        measured=unmeasured,
        reasons=("follows time1",),
    )
    told.handle_look(Look(state=state, sources=sources, ptp=(), kernel=None, at_raw_ns=0), took_ns=1000, now_ns=0)
    return told


def pages_of(story: Story, *, users: Users | None = None, now_ns: int = 0) -> Pages:
    return Pages(story, lambda: Clocks(now_ns, 1_800_000_000.0), users=users)


def get(path: str, **headers: str) -> Request:
    return Request(method="GET", path=path, query="", headers=headers, version="HTTP/1.1")


def serving(handle: Callable[[Request], Answer], use: Callable[[int], Awaitable[None]]) -> list[BaseException]:
    """Runs `use` against a listener; the errors that pages raised."""
    errors: list[BaseException] = []

    async def run() -> None:
        server = HttpServer(handle, on_error=errors.append)
        await server.open("127.0.0.1", 0)
        try:
            await use(server.port)
        finally:
            await server.close()

    asyncio.run(run())
    return errors


async def say(port: int, data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    answer = await asyncio.wait_for(reader.read(), 5)
    writer.close()
    return answer


# ---- the listener ----


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        (b"GET /x HTTP/1.1\r\nConnection: close\r\n\r\n", 200),
        (b"GET /x HTTP/1.0\r\n\r\n", 200),
        (b"POST /x HTTP/1.1\r\nConnection: close\r\n\r\n", 405),
        (b"POST /x HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello", 400),
        (b"GET x HTTP/1.1\r\n\r\n", 400),
        (b"GET /x HTTP/2\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nbroken\r\n\r\n", 400),
        (b"GET /" + b"a" * 40_000 + b" HTTP/1.1\r\n\r\n", 431),
    ],
)
def test_each_request_gets_its_status(asked: bytes, status: int) -> None:
    async def use(port: int) -> None:
        assert (await say(port, asked)).startswith(f"HTTP/1.1 {status} ".encode())

    assert serving(lambda _: Answer(body=b"yes"), use) == []


def test_a_connection_is_kept_and_a_head_has_no_body() -> None:
    async def use(port: int) -> None:
        answer = await say(port, b"GET / HTTP/1.1\r\n\r\nHEAD / HTTP/1.1\r\nConnection: close\r\n\r\n")
        assert answer.count(b"HTTP/1.1 200 OK") == 2
        assert answer.count(b"\r\n\r\nbody") == 1

    serving(lambda _: Answer(body=b"body"), use)


def test_a_page_that_breaks_is_500_and_told_and_the_listener_lives() -> None:
    def handle(request: Request) -> Answer:
        if request.path == "/broken":
            raise RuntimeError("oh")
        return Answer(body=b"fine")

    async def use(port: int) -> None:
        assert b"500" in await say(port, b"GET /broken HTTP/1.0\r\n\r\n")
        assert b"fine" in await say(port, b"GET / HTTP/1.0\r\n\r\n")

    assert [str(error) for error in serving(handle, use)] == ["oh"]


def test_those_who_never_finish_their_request_hold_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "HEAD_S", 0.3)

    async def use(port: int) -> None:
        slow = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
        for _, writer in slow:
            writer.write(b"GET / HT")
        assert b"200" in await say(port, b"GET / HTTP/1.0\r\n\r\n")
        for reader, writer in slow:
            assert await asyncio.wait_for(reader.read(), 2) == b""
            writer.close()

    serving(lambda _: Answer(), use)


def test_too_many_connections_are_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "MAX_CONNECTIONS", 3)

    async def use(port: int) -> None:
        kept = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        await asyncio.sleep(0.05)
        assert b"503" in await say(port, b"GET / HTTP/1.0\r\n\r\n")
        for _, writer in kept:
            writer.close()

    serving(lambda _: Answer(), use)


def test_a_taken_port_is_one_line() -> None:
    async def run(port: int) -> None:
        with pytest.raises(HostError, match=r"cannot listen on 127.0.0.1 port .* choose another"):
            await HttpServer(lambda _: Answer(), on_error=print).open("127.0.0.1", port)

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        asyncio.run(run(taken.getsockname()[1]))


# ---- pages ----


def test_the_metrics_are_what_prometheus_reads_and_all_of_them_are_in_the_table() -> None:
    text = pages_of(story_of()).answer(get("/metrics")).body.decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    known = {f"rankclock_{spec.name}".removesuffix("_total") for spec in METRICS}
    assert {name for name in families if name.startswith("rankclock_")} <= known
    value = {sample.name: sample.value for family in families.values() for sample in family.samples}
    assert value["rankclock_claimed_offset_seconds"] == -1.5e-06
    assert value["rankclock_claimed_offset_lower_seconds"] == pytest.approx(-3.15e-05)
    assert value["process_resident_memory_bytes"] > 0
    assert all(
        sample.labels["node"] == "n1"
        for family in families.values()
        for sample in family.samples
        if sample.name.startswith("rankclock_")
    )


def test_an_unknown_offset_is_absent_and_never_zero() -> None:
    told = story_of()
    text = pages_of(told, now_ns=34 * NS_PER_S).answer(get("/metrics")).body.decode()
    assert "rankclock_claimed_offset_seconds" not in text
    assert 'rankclock_clock_state{node="n1",state="unknown"} 1.0' in text
    assert 'rankclock_claimed_offset_known{node="n1"} 0.0' in text
    assert 'rankclock_reader_up{node="n1",reader="daemons"} 0.0' in text


def test_nothing_that_a_daemon_names_makes_labels_or_lines_of_its_own() -> None:
    evil = 'x"} 1\nrankclock_fake 7\n' + "y" * 1000
    source = Source(name=evil, state="selected", reach=255, offset_ns=1, bound_ns=2, age_ns=3)
    text = pages_of(story_of(sources=Sources(counts={"selected": 1000}, shown=(source,)))).answer(get("/metrics")).body
    families = {family.name: family for family in text_string_to_metric_families(text.decode())}
    assert "rankclock_fake" not in families
    assert len(families["rankclock_source_reach_ratio"].samples[0].labels["source"]) == 128
    assert families["rankclock_sources"].samples[0].value == 1000


def test_health_is_the_agents_own_and_readiness_needs_a_look() -> None:
    told = story_of()
    assert pages_of(told, now_ns=33 * NS_PER_S).answer(get("/healthz")).status == 200
    assert pages_of(told, now_ns=34 * NS_PER_S).answer(get("/healthz")).status == 503
    assert pages_of(told).answer(get("/readyz")).status == 200
    assert pages_of(Story(settings=Settings(node="n1"))).answer(get("/readyz")).status == 503


def test_status_is_the_json_of_rankclock_status() -> None:
    value = json.loads(pages_of(story_of()).answer(get("/status")).body)
    state = ClockState.from_json(value)
    assert (state.state, state.claimed.estimate_ns) == (SyncState.SYNCHRONISED, -1500)
    assert {"role", "truth_ns", "misses_truth", "agent"} <= set(value)


def test_what_was_measured_of_a_peer_is_handed_out_with_its_age() -> None:
    told = story_of()
    told.handle_settings(
        Settings(node="n1", probe=ProbeSettings(bind="", key_hex="", peers={"n2": ("10.0.0.2", 4910)}))
    )
    edge = EdgeReport(
        peer="n2", peer_clock_id="", offset=OFFSET, raw=None, raw_estimate_ns=None, raw_rate_ppb=None,
        min_rtt_ns=20_000, sent=9, answered=9,
    )  # fmt: skip
    report = NodeReport(
        node="n1", clock_id="", stamps="kernel", made_at_raw_ns=0, readings=(), edges=(edge,), counters={}
    )
    told.handle_report(report, took_ns=1, now_ns=0)
    pages = pages_of(told, now_ns=4 * NS_PER_S)
    value = json.loads(pages.answer(get("/status")).body)
    assert value["agent"]["peers"]["n2"]["age_ns"] == value["measured"]["age_ns"] == 4 * NS_PER_S
    assert "4.00 s old" in pages.answer(get("/")).body.decode()


def test_the_page_for_people_escapes_what_daemons_say() -> None:
    told = story_of(node="n1")
    look = told.look
    assert look is not None
    state = ClockState.from_json({**look.state.to_json(), "source": "<script>alert(1)</script>"})
    told.handle_look(Look(state=state, sources=None, ptp=(), kernel=None, at_raw_ns=0), took_ns=1, now_ns=0)
    page = pages_of(told).answer(get("/")).body.decode()
    assert "<script>" not in page
    assert "±" in page


def test_an_encoded_page_is_kept_until_something_happens() -> None:
    told = story_of()
    pages = pages_of(told)
    first = pages.answer(get("/metrics")).body
    assert pages.answer(get("/metrics")).body is first
    told.handle_maintenance(True)
    assert b'rankclock_maintenance{node="n1"} 1.0' in pages.answer(get("/metrics")).body


# ---- users ----


def test_users_come_in_with_their_password_and_nobody_else(tmp_path: Path) -> None:
    path = tmp_path / "users"
    path.write_text(f"# people\n{password_line('ann', 'a:b ü')}\n", encoding="utf-8")
    pages = pages_of(story_of(), users=Users.load(path))

    def status(user: str) -> int:
        encoded = base64.b64encode(user.encode()).decode()
        return pages.answer(get("/metrics", authorization=f"Basic {encoded}")).status

    assert [status(user) for user in ("ann:a:b ü", "ann:a:b ü", "ann:wrong", "bob:a:b ü", "ann")] == [
        200, 200, 401, 401, 401,
    ]  # fmt: skip
    assert pages.answer(get("/metrics")).status == 401
    assert pages.answer(get("/metrics", authorization="Basic ÿ")).status == 401


def test_a_users_file_with_a_plain_password_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "users"
    path.write_text("ann:secret\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"users:1: expected name:scrypt"):
        Users.load(path)


# ---- workers, logs, silence ----


def test_a_job_that_hangs_is_waited_for_once_and_ends_nothing() -> None:
    async def run() -> None:
        worker = Worker("test")
        with pytest.raises(TimeoutError):
            await worker.run(lambda: time.sleep(0.4), timeout_s=0.05)
        with pytest.raises(Busy):
            await worker.run(lambda: 1, timeout_s=1)
        await asyncio.sleep(0.5)
        assert await worker.run(lambda: 2, timeout_s=1) == 2
        with pytest.raises(ZeroDivisionError):
            await worker.run(lambda: 1 // 0, timeout_s=1)
        worker.close()

    asyncio.run(run())


def test_of_many_like_lines_a_few_are_logged_and_the_rest_counted() -> None:
    lines: list[str] = []
    log = QuietLog(write=lines.append)
    for second in range(50):
        log.say(f"peer lost: n{second}", second * NS_PER_S)
    log.say("another: thing", 0)
    assert len(lines) == 6
    log.say("peer lost: n1", 61 * NS_PER_S)
    assert "45 more lines like: peer lost" in lines[6]


def test_a_silence_ends_by_itself_after_a_day_at_most(tmp_path: Path) -> None:
    path, watched = tmp_path / "maintenance", Maintenance()
    assert not watched.holds(str(path), 0)
    for text, seconds in (("30m", 1800), ("", 3600), ("90000h", 24 * 3600), ("for ever", 3600)):
        path.unlink(missing_ok=True)
        assert not watched.holds(str(path), 0)
        path.write_text(text, encoding="utf-8")
        assert watched.holds(str(path), 0)
        assert watched.holds(str(path), (seconds - 1) * NS_PER_S)
        assert not watched.holds(str(path), seconds * NS_PER_S)


# ---- asking agents ----


def test_agents_are_named_by_ranges_ports_and_schemes() -> None:
    found = agent_addresses("gpu[001-003]:5000,https://time1,[::1]:7,10.0.0.1")
    assert [str(one) for one in found] == [
        "gpu001:5000", "gpu002:5000", "gpu003:5000", "time1:4911", "[::1]:7", "10.0.0.1:4911",
    ]  # fmt: skip
    assert [one.tls for one in found] == [False, False, False, True, False, False]


@pytest.mark.parametrize("text", ["", "a b", "ftp://x", "x:0", "x:99999", "gpu[3-1]:1", "http://x/status"])
def test_what_names_no_agent_is_one_line(text: str) -> None:
    with pytest.raises(UserError) as caught:
        agent_addresses(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b"{}", b'{"node": 1}', b"\xff\xfe", json.dumps({"agent": []}).encode(), b"[" * 5000]
)
def test_whatever_answers_that_is_no_agent_is_one_line(body: bytes) -> None:
    async def use(port: int) -> None:
        with pytest.raises(PeerError) as caught:
            await asyncio.to_thread(ask_agent, AgentAddress("127.0.0.1", port))
        assert "\n" not in str(caught.value)

    serving(lambda _: Answer(body=body), use)


def test_an_agent_that_does_not_answer_is_unknown_and_not_left_out() -> None:
    async def use(port: int) -> None:
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            nobody = AgentAddress("127.0.0.1", closed.getsockname()[1])
            found = await asyncio.to_thread(ask_agents, [nobody, AgentAddress("127.0.0.1", port)], timeout_s=1)
        assert [one.state.state for one in found] == [SyncState.UNKNOWN, SyncState.SYNCHRONISED]
        assert "does not answer" in found[0].state.reasons[0]

    serving(pages_of(story_of()).answer, use)


def test_watch_and_serve_show_what_agents_answer() -> None:
    async def use(port: int) -> None:
        base = [sys.executable, "-m", "rankclock"]
        agents = ["--agents", f"127.0.0.1:{port}"]
        wanted = [
            [*base, "watch", *agents, "--count", "2", "--every", "0.1", "--json"],
            [*base, "watch", *agents, "--count", "1"],
            [*base, "serve", *agents, "--json"],
        ]
        told = []
        for command in wanted:
            child = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
            out, _ = await asyncio.wait_for(child.communicate(), 30)
            assert child.returncode == 0
            told.append(out.decode())
        assert [json.loads(line)[0]["state"] for line in told[0].splitlines()] == ["synchronised"] * 2
        assert "1 clocks: 1 synchronised" in told[1]
        assert json.loads(told[2])["nodes"][0]["node"] == "n1"

    serving(pages_of(story_of()).answer, use)
