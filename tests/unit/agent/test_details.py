"""What daemons tell beside the state becomes series with bounded labels, and what was not told becomes none."""

from __future__ import annotations

import pytest

from rankclock.agent.details import Details, NicStamps, PortWaits, SourceExtra
from rankclock.agent.look import sources_of_timesyncd
from rankclock.agent.samples import Sample, samples_of
from rankclock.agent.settings import Settings
from rankclock.agent.story import Story
from rankclock.node.gpsd import GpsdReceiver
from rankclock.timebase import NS_PER_S, ClockState, Offset, SyncState
from rankclock.wire.text.gpsd import GpsReport

NOTHING = Details(
    sources={}, served={}, dropped={}, receivers=(), waits=(), masters={}, nics={}, missing=("chronyd: not allowed",)
)
FULL = Details(
    sources={
        "10.0.0.1": SourceExtra(authenticated=True, nts_cookies=8, stamps=("hardware", "kernel")),
        "10.0.0.2": SourceExtra(authenticated=None, nts_cookies=None, stamps=None),
    },
    served={"ntp": 12, "nts_keys": 1},
    dropped={"ntp": 2},
    receivers=(
        GpsdReceiver(
            device="/dev/ttyS0",
            reports={"TPV": GpsReport(kind="TPV", mode=3), "SKY": GpsReport(kind="SKY", used=7, seen=9)},
        ),
        GpsdReceiver(device="/dev/ttyS1"),
    ),
    waits=(PortWaits(domain=24, port=1, counts={"sync_timeout": 3}),),
    masters={(24, "HAVE_SYDY"): 1, (24, "WAIT"): 1},
    nics={"eth0": NicStamps(stamped=100, lost=1, errors=None)},
    missing=(),
)


def samples(details: Details, now_ns: int = 0) -> list[Sample]:
    story = Story(settings=Settings(node="n1"))
    story.handle_details(details, took_ns=1, now_ns=0)
    found = samples_of(story, now_ns=now_ns, now_unix_s=1.8e9, started_unix_s=1.8e9, version="0")
    return [one for one in found if one.name.startswith(("source_", "server_", "gps_", "ptp_", "nic_"))]


def test_everything_that_was_told_is_a_series() -> None:
    assert {(one.name, one.labels, one.value) for one in samples(FULL)} == {
        ("source_authenticated", ("10.0.0.1",), 1),
        ("source_nts_cookies", ("10.0.0.1",), 8),
        ("source_stamps_info", ("10.0.0.1", "hardware", "kernel"), 1),
        ("server_requests_total", ("ntp",), 12),
        ("server_requests_total", ("nts_keys",), 1),
        ("server_drops_total", ("ntp",), 2),
        ("gps_fix", ("/dev/ttyS0",), 1),
        ("gps_satellites_used", ("/dev/ttyS0",), 7),
        ("gps_satellites_seen", ("/dev/ttyS0",), 9),
        ("ptp_port_waits_total", ("24", "1", "sync_timeout"), 3),
        ("ptp_unicast_masters", ("24", "HAVE_SYDY"), 1),
        ("ptp_unicast_masters", ("24", "WAIT"), 1),
        ("nic_stamps_stamped_total", ("eth0",), 100),
        ("nic_stamps_lost_total", ("eth0",), 1),
    }


def test_what_was_not_told_is_absent_and_never_zero() -> None:
    assert samples(NOTHING) == []


def test_what_is_too_old_is_absent_too() -> None:
    assert samples(FULL, now_ns=60 * NS_PER_S) == []


def test_a_receiver_without_a_fix_uses_no_satellite() -> None:
    receiver = GpsdReceiver(
        device="/dev/ttyS0",
        reports={"TPV": GpsReport(kind="TPV", mode=1), "SKY": GpsReport(kind="SKY", used=7, seen=9)},
    )
    assert (receiver.used, receiver.seen) == (0, 9)


def test_a_failed_reading_is_counted_and_said() -> None:
    story = Story(settings=Settings(node="n1"))
    assert story.handle_details_failed("no end within 12 s") == [
        "what daemons tell beside their state could not be read: no end within 12 s"
    ]
    assert story.more.failures == 1


@pytest.mark.parametrize(
    ("owner", "source", "state", "usable"),
    [
        ("systemd-timesyncd", "10.0.0.1", SyncState.SYNCHRONISED, 1),
        ("systemd-timesyncd", "10.0.0.1", SyncState.HOLDOVER, 0),
        ("systemd-timesyncd", "", SyncState.UNKNOWN, None),
        ("phc2sys", "gm", SyncState.SYNCHRONISED, None),
    ],
)
def test_timesyncd_has_one_source_at_most(owner: str, source: str, state: SyncState, usable: int | None) -> None:
    unknown = Offset.unknown("not asked", reference="none", method="none")
    clock = ClockState(node="n1", state=state, owner=owner, source=source, claimed=unknown, measured=unknown)
    found = sources_of_timesyncd(clock)
    assert (found.usable if found else None) == usable
