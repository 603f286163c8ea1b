"""ntp.conf held to the real ntpd, line by line; timesyncd.conf."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rankclock.configs.lint_ntp import lint_ntp
from rankclock.configs.lint_timesyncd import lint_timesyncd
from rankclock.node.parsers import check_file

LINES = (
    "broadcast 10.0.0.1", "foo", "server 10.0.0.1 autokey", "server 10.0.0.1 dynamic", "server 127.127.1.0",
    "fudge 127.127.1.0 stratum 10", "disable kernel", "disable bogus", "enable ntp", "enable auth", "enable bclient",
    "tinker step 0 panic 0", "tinker bogus 1", "tinker step", "tos minsane 3 minclock 4 orphan 8 maxdist 1.5",
    "tos beacon 3", "tos minsane x", "interface listen 10.0.0.1", "nic listen all", "crypto pw x",
    "refclock local stratum 10", "server 10.0.0.1 key 70000", "server 10.0.0.1 key 7", "server 10.0.0.1 minpoll 99",
    "server 10.0.0.1 minpoll x", "restrict source nomodify", "restrict 10.0.0.0 mask 255.0.0.0 nomodify",
    "restrict 10.0.0.0/8 nomodify", "restrict -4 default nomodify noquery", "restrict default blah", "leapfile /x",
    "server", "restrict", "pool 2.debian.pool.ntp.org iburst", "server 10.0.0.1 true burst prefer noselect",
    "server 10.0.0.1 xleave", "server 10.0.0.1 preempt", "server 10.0.0.1 bias 0.1", "server 10.0.0.1 mode 3",
    "server -4 10.0.0.1", "statistics loopstats", "ttl 4", "multicastclient", "broadcastclient", "calldelay 3",
    "dscp 3", "keys /x", "trustedkey 1 2", "controlkey 3", "setvar x = 1 default", "mru maxage 3", "phone x",
    "filegen loopstats file x type day", "logconfig =all", "unpeer 10.0.0.1", "nts enable", "nts cert /x",
    "server 10.0.0.1 nts ca /x", "saveconfigdir /x", "keysdir /x", "driftfile /x", "statsdir /x/", "logfile /dev/null",
)  # fmt: skip


@pytest.mark.lab
def test_what_ntpd_passes_over_is_what_the_tables_say(tmp_path: Path, daemon: Callable[[str], Path]) -> None:
    wrong = []
    for number, line in enumerate(LINES):
        path = tmp_path / f"{number}/ntp.conf"
        path.parent.mkdir()
        path.write_text(line + "\n")
        verdict = check_file(path, daemon)
        if verdict.accepted is None:
            pytest.skip(verdict.said)
        passed_over = any("goes on without the line" in problem.what for problem in lint_ntp(line))
        if passed_over == verdict.accepted:
            wrong.append((line, verdict.said or "taken"))
    assert not wrong


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("server a minpoll 8 maxpoll 4\n", 1, "minpoll 8 is above maxpoll 4"),
        ("\nserver a minpoll 2\n", 2, "never asks more often than every 8 s"),
        ("peer 10.0.0.1\n", 1, "no symmetric peers"),
        ("driftfile /x\nrestrict default kod nomodify\n", 2, "kod does nothing without limited"),
        ("restrict default notrap nopeer\n", 1, "this line does nothing"),
        ("# x\nserver a iburst frobnicate # near\n", 2, "no option 'frobnicate'"),
        ("server a key\n", 1, "key without a value"),
    ],
)
def test_what_ntpd_takes_though_it_is_wrong(text: str, line: int, words: str) -> None:
    (problem,) = lint_ntp(text)
    assert (problem.line, problem.rejected) == (line, False)
    assert words in problem.what


def test_debians_own_file_has_nothing_wrong() -> None:
    text = (
        "driftfile /var/lib/ntpsec/ntp.drift\nleapfile /usr/share/zoneinfo/leap-seconds.list\ntos maxclock 11\n"
        "tos minclock 4 minsane 3\npool 0.debian.pool.ntp.org iburst\n"
        "restrict default kod nomodify nopeer noquery limited\n"
        "restrict 127.0.0.1\nrestrict ::1\n"
    )
    assert lint_ntp(text) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[Time]\nNTP=a b\nFallbackNTP=\nRootDistanceMaxSec=5\nPollIntervalMaxSec=34min 8s\n", None),
        ("[Time]\nNTPServers=a\n", "has no 'NTPServers'"),
        ("NTP=a\n", "before any section"),
        ("[time]\nNTP=a\n", "no section [time]"),
        ("[Time]\nNTP=a,b\n", "by spaces"),
        ("[Time]\nPollIntervalMinSec=4\n", "below 16 s"),
        ("[Time]\nRootDistanceMaxSec=soon\n", "no span of time"),
        ("[Time]\nNTP a\n", "no KEY=VALUE"),
    ],
)
def test_timesyncds_file(text: str, words: str | None) -> None:
    found = lint_timesyncd(text)
    assert [words in problem.what for problem in found] == ([True] if words else [])
