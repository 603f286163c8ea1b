"""What is said of a clock in each state that a real ntpd (ntpsec) gets into. The truth is known: a clock that is called
synchronised has a claimed bound that contains its true offset from its server, or it must not be called so.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from rankclock.fleet.collect import state_of
from rankclock.fleet.transport import InLab
from rankclock.lab import Lab, Scenario
from rankclock.timebase import NS_PER_MS, NS_PER_S, ClockState, SyncState

pytestmark = pytest.mark.lab

Until = Callable[..., None]


@dataclass(frozen=True)
class Service:
    name: str
    argv: tuple[str, ...]


CHRONY = "driftfile /var/lib/chrony/chrony.drift\npidfile /run/chrony/chronyd.pid\nallow\nlocal stratum 1\n"
CHRONYD = Service("chronyd", ("/usr/sbin/chronyd", "-d", "-u", "root", "-f", "/etc/chrony/chrony.conf"))
NTPD = Service("ntpd", ("/usr/sbin/ntpd", "-n", "-N", "-g", "-c", "/etc/ntpsec/ntp.conf"))
DRIFT = "driftfile /var/lib/ntpsec/ntp.drift\n"
ASKED = DRIFT + "restrict default kod limited nomodify noquery\nrestrict 127.0.0.1\nrestrict ::1\n"
UNASKED = DRIFT + "restrict default kod limited nomodify noquery\n"


def server(number: int) -> str:
    return f"server 10.77.0.{number} iburst minpoll 0 maxpoll 0\n"


SERVER, FOLLOWER, FRESH, LOCAL, ORPHAN, ALONE, STOPPED, LOST, OTHER_SERVER, SILENT = (f"n{i}" for i in range(1, 11))
CONFIGURED = {
    FOLLOWER: ASKED + server(1),
    FRESH: ASKED + server(1),
    LOCAL: ASKED + "server 127.127.1.0 minpoll 0 maxpoll 0\nfudge 127.127.1.0 stratum 10\ntos orphanwait 1\n",
    ORPHAN: ASKED + "tos orphan 10 orphanwait 1\n",
    ALONE: ASKED + server(200),
    STOPPED: ASKED + server(1),
    LOST: ASKED + server(9),
    SILENT: UNASKED + server(1),
}
CLOCKS = {
    FOLLOWER: {"offset_ns": -3 * NS_PER_MS, "drift_ppb": 20_000},
    FRESH: {"offset_ns": 2 * NS_PER_MS, "drift_ppb": 200_000},
    LOST: {"offset_ns": NS_PER_MS, "drift_ppb": -10_000},
}


def state(lab: Lab, node: str) -> ClockState:
    return state_of(InLab(lab=lab, node=node), node)


def settles(lab: Lab, node: str, wanted: SyncState, until: Until, timeout_s: float = 20) -> ClockState:
    """The state once it is the wanted one."""
    seen: list[ClockState] = []

    def is_wanted() -> bool:
        seen.append(state(lab, node))
        return seen[-1].state is wanted

    until(is_wanted, timeout_s, f"{node} {wanted}", every_s=0.1)
    return seen[-1]


@pytest.fixture(scope="module")
def ntp(
    lab_of: Callable[[Scenario], Lab], flat: Callable[..., Scenario], daemon: Callable[[str], Path], until: Until
) -> Lab:
    daemon("chronyd")
    daemon("ntpd")
    lab = lab_of(flat(10, clocks=CLOCKS))
    for node in (SERVER, OTHER_SERVER):
        lab.install(node, {"/etc/chrony/chrony.conf": CHRONY.encode()})
        lab.start_service(node, CHRONYD)
    for node, text in CONFIGURED.items():
        files = {"/etc/ntpsec/ntp.conf": text.encode()}
        if node != FRESH:  # what ntpd knows of its oscillator from earlier; not exactly right
            ppm = -CLOCKS.get(node, {}).get("drift_ppb", 0) / 1000 + 3
            files["/var/lib/ntpsec/ntp.drift"] = f"{ppm:.3f}\n".encode()
        lab.install(node, files)
        lab.start_service(node, NTPD)
    settles(lab, LOST, SyncState.SYNCHRONISED, until)
    lab.signal_service(OTHER_SERVER, "chronyd", signal.SIGKILL)  # what comes of that is looked at last: it takes time
    return lab


def holds(lab: Lab, seen: ClockState, reference: str) -> bool:
    return seen.claimed.contains(lab.true_offset_ns(seen.node, reference, at_raw_ns=seen.claimed.at_raw_ns))


def test_every_claim_of_a_following_ntpd_contains_the_truth_from_its_first_one_on(ntp: Lab, until: Until) -> None:
    settles(ntp, FOLLOWER, SyncState.SYNCHRONISED, until)

    def narrow() -> bool:
        seen = state(ntp, FOLLOWER)
        assert (seen.state, seen.owner, seen.source) == (SyncState.SYNCHRONISED, "ntpd", "10.77.0.1")
        assert holds(ntp, seen, SERVER)
        return (seen.claimed.hi_ns or 0) < 10 * NS_PER_MS  # its first samples have a dispersion of a second

    for _ in range(5):
        until(narrow, 20, "a bound below 10 ms")


def test_the_sign_is_local_minus_server(ntp: Lab) -> None:
    """The follower began 3 ms behind and is still slewed: ntpd says a positive offset then, and here it is negative."""
    seen = state(ntp, FOLLOWER)
    assert seen.claimed.estimate_ns is not None
    assert seen.claimed.estimate_ns < -NS_PER_MS // 10
    assert ntp.true_offset_ns(FOLLOWER, SERVER) < 0


def test_an_ntpd_that_measures_its_frequency_first_says_leap_0_but_is_not_called_synchronised(ntp: Lab) -> None:
    """Its clock is 200 ppm fast and it does not steer for minutes: its frozen offset and 1 ms of dispersion are soon
    wrong.
    """
    seen = state(ntp, FRESH)
    assert ntp.true_offset_ns(FRESH, SERVER) > NS_PER_MS
    assert (seen.state, seen.claimed.known) == (SyncState.UNSYNCHRONISED, False)
    assert any("measures the oscillator's frequency" in reason for reason in seen.reasons)


def test_a_local_clock_and_an_orphan_are_islands(ntp: Lab, until: Until) -> None:
    for node, word in ((LOCAL, "local clock driver"), (ORPHAN, "orphan mode")):
        seen = settles(ntp, node, SyncState.FREE_RUNNING, until)
        assert not seen.claimed.known
        assert any(word in reason and "stratum 1" in reason for reason in seen.reasons)


def test_a_client_whose_server_never_answered_is_not_synchronised(ntp: Lab) -> None:
    seen = state(ntp, ALONE)
    assert (seen.state, seen.claimed.known) == (SyncState.UNSYNCHRONISED, False)
    assert any("10.77.0.200 does not answer" in reason for reason in seen.reasons)


def test_an_ntpd_that_may_not_be_asked_is_unknown_and_the_likely_line_is_named(ntp: Lab) -> None:
    began = time.monotonic()
    seen = state(ntp, SILENT)
    assert time.monotonic() - began < 3
    assert (seen.state, seen.owner, seen.claimed.known) == (SyncState.UNKNOWN, "ntpd", False)
    assert any("noquery" in reason for reason in seen.reasons)


def test_a_stopped_ntpd_holds_nobody_up_and_a_killed_one_is_gone(ntp: Lab, until: Until) -> None:
    ask = "import time\nfrom rankclock.node.ntpd import read_ntpd\nb = time.monotonic()\n"
    ask += "try: read_ntpd(timeout_s=0.4)\nexcept Exception as e: print(time.monotonic() - b, e)\n"
    ntp.signal_service(STOPPED, "ntpd", signal.SIGSTOP)
    seen = state(ntp, STOPPED)
    assert (seen.state, seen.claimed.known) == (SyncState.FREE_RUNNING, False)
    assert any("stopped by a signal" in reason for reason in seen.reasons)
    took, _, said = ntp.run(STOPPED, [sys.executable, "-c", ask], timeout_s=10).stdout.partition(" ")
    assert float(took) < 1
    assert "no answer within" in said
    ntp.signal_service(STOPPED, "ntpd", signal.SIGCONT)
    assert settles(ntp, STOPPED, SyncState.SYNCHRONISED, until).claimed.known
    ntp.signal_service(STOPPED, "ntpd", signal.SIGKILL)
    seen = settles(ntp, STOPPED, SyncState.FREE_RUNNING, until)
    assert (seen.owner, seen.claimed.known) == (None, False)


def test_a_step_that_ntpd_takes_for_a_spike_is_soon_no_synchronised_claim_any_more(ntp: Lab, until: Until) -> None:
    """ntpd learns of it with its next sample, and goes on saying leap 0 with its old offset for minutes."""
    ntp.clock(FOLLOWER).step_ns(NS_PER_S // 2)

    def honest() -> bool:
        seen = state(ntp, FOLLOWER)
        return seen.state is not SyncState.SYNCHRONISED or holds(ntp, seen, SERVER)

    until(honest, 15, "the claim holds the truth again, or is withdrawn")
    seen = state(ntp, FOLLOWER)
    assert seen.state is SyncState.UNSYNCHRONISED
    assert any("spike" in reason or "has not followed" in reason for reason in seen.reasons)


def test_a_client_whose_server_died_is_in_holdover_with_a_bound_that_holds(ntp: Lab, until: Until) -> None:
    seen = settles(ntp, LOST, SyncState.HOLDOVER, until, timeout_s=40)
    assert any("coasts" in reason or "no update" in reason for reason in seen.reasons)
    assert holds(ntp, seen, OTHER_SERVER)
    assert seen.claimed.age_ns > 5 * NS_PER_S
