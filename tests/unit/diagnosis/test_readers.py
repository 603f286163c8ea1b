"""The readers of tool output: signs, units, prefixes, languages, cut and collapsed forms."""

from __future__ import annotations

import pytest

from rankclock.wire.text.chronyc import read_source, read_tracking
from rankclock.wire.text.config_text import read_command, read_directive
from rankclock.wire.text.line import Line, parse_line, prompt_of
from rankclock.wire.text.linuxptp import EVENTS, sample_of
from rankclock.wire.text.moment import find_moments, moment_at
from rankclock.wire.text.ntpq import read_peers
from rankclock.wire.text.number import as_float, duration_ns, quantity_ns, seconds_ns
from rankclock.wire.text.pmc import read_dataset


def lines(text: str) -> list[Line]:
    return [parse_line(number, one) for number, one in enumerate(text.split("\n"), 1)]


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("12.407738276s", 12_407_738_276),
        ("1m0.155650202s", 60_155_650_202),
        ("1h59m59s", 7_199_000_000_000),
        ("283.028ms", 283_028_000),
        ("-8955ns", -8955),
        ("34min 8s", 2_048_000_000_000),
        ("+3,5ms", 3_500_000),
    ],
)
def test_durations_are_exact_nanoseconds(text: str, ns: int) -> None:
    assert duration_ns(text) == ns


@pytest.mark.parametrize("text", ["", "s", "12", "12 parsecs", "1m0", "--1s", "1e999s", "9" * 60 + "s"])
def test_what_is_no_duration_is_none(text: str) -> None:
    assert duration_ns(text) is None


def test_numbers_take_points_and_commas_and_nothing_else() -> None:
    assert as_float("-12,5") == -12.5
    assert as_float("nan") is None
    assert as_float("n/a") is None
    assert seconds_ns("31939.769192") == 31_939_769_192_000
    assert quantity_ns("+43us") == 43_000
    assert quantity_ns("1.5 µs") == 1_500


@pytest.mark.parametrize(
    ("text", "utc_s"),
    [
        ("Mon Sep 14 06:39:33 2015", 1_442_212_773),
        ("ma sep 14 08:55:20 UTC 2015", 1_442_220_920),
        ("Di 5. Mär 09:00:00 CET 2024", 1_709_625_600),
        ("Wed 03 Mar 2021 09:07:17 AM UTC", 1_614_762_437),
        ("Thu, 04 Jun 2015 23:25:59 GMT", 1_433_460_359),
        ("20150604T232559Z", 1_433_460_359),
        ("2015-06-04T22:26:16Z", 1_433_456_776),
        ("2024-05-01T12:00:00+02:00", 1_714_557_600),
        ("2016-07-13 16:59:59.776094", 1_468_429_199),
        ("jeu. 4 juin 2015 23:25:59 GMT", 1_433_460_359),
    ],
)
def test_readings_of_a_clock_in_many_forms_and_languages(text: str, utc_s: int) -> None:
    moment = next(iter(find_moments(text)))
    assert moment.unix_ns // 10**9 == utc_s


def test_a_reading_says_its_resolution_its_zone_and_whether_it_had_a_year() -> None:
    moment = moment_at("2016-07-13 16:59:59.776")
    assert moment is not None
    assert (moment.resolution_ns, moment.zone_min, moment.has_year) == (1_000_000, None, True)
    log = moment_at("Sep 03 10:32:28")
    assert log is not None
    assert (log.has_year, log.resolution_ns) == (False, 10**9)


@pytest.mark.parametrize("text", ["Sep 31 10:00:00", "2016-13-01 10:00:00", "12:30:61", "25:99:00", "1558694733"])
def test_what_is_no_reading_is_none(text: str) -> None:
    assert list(find_moments(text)) == []


@pytest.mark.parametrize(
    ("text", "program", "host", "mono_ms", "body"),
    [
        ("Sep 03 10:32:28 n1 ptp4l[263]: [3913.057] rms 9", "ptp4l", "n1", 3_913_057, "rms 9"),
        ("ptp4l[923.757]: selected /dev/ptp0", "ptp4l", "", 923_757, "selected /dev/ptp0"),
        ("ptp4l: [441929.796] [0:eth0] selected best", "ptp4l", "", 441_929_796, "selected best"),
        ("ptp4l[3.100]: [ptp4l.0.config] port 1: x", "ptp4l", "", 3_100, "port 1: x"),
        ("[ 8996.144253] clocksource: x", "kernel", "", 8_996_144, "clocksource: x"),
        ("kernel: [  384.258940] clocksource: x", "kernel", "", 384_258, "clocksource: x"),
        ("28 Jun 08:42:36 ntpd[18]: kernel reports", "ntpd", "", None, "kernel reports"),
        ("ntp_1 | 19 Jul 02:47:08 ntpd[1]: frequency", "ntpd", "ntp_1", None, "frequency"),
        ("2020-12-27T09:09:51Z Fatal error : x", "", "", None, "Fatal error : x"),
        ("2016-07-13 16:59:59.776094 W | rafthttp: x", "", "", None, "rafthttp: x"),
        ("E0415 15:30:18.793519   27970 kubelet.go:2273] x", "", "", None, "x"),
        ("[2015-09-14T06:44:37.084] error: x", "", "", None, "error: x"),
        ("2015-09-14T06:44:37.084] error: x", "", "", None, "error: x"),
        ("[INFO|trainer.py:2693] 2023-10-20 12:24:47,419 >> x", "", "", None, "x"),
        ("Reference ID    : C0000242 (ntp)", "", "", None, "Reference ID    : C0000242 (ntp)"),
        ("node001: Sat Mar 19 22:53:47 UTC 2016", "", "node001", None, "Sat Mar 19 22:53:47 UTC 2016"),
    ],
)
def test_prefixes_are_taken_off(text: str, program: str, host: str, mono_ms: int | None, body: str) -> None:
    line = parse_line(1, text)
    # A line that is a reading of a clock and nothing else keeps it as its body or loses it as its stamp; both are read.
    assert (line.program, line.host) == (program, host)
    assert line.mono_ns == (None if mono_ms is None else pytest.approx(mono_ms * 10**6, abs=10**6))
    assert line.body == body or not line.body


def test_prompts_name_their_host() -> None:
    assert prompt_of("[root@controller ~]# ntpq -p") == ("controller", "ntpq -p")
    assert prompt_of("root@board:~# phc2sys -w") == ("board", "phc2sys -w")
    assert prompt_of("$ sudo ptp4l -i eth0") == ("", "sudo ptp4l -i eth0")
    assert prompt_of("Stratum         : 3") is None


TRACKING = "System time     : 0.130805850 seconds {way} of NTP time\nFrequency       : 11.500 ppm {way}\nSkew : 1 ppm"


def test_chronyc_says_fast_and_slow_and_we_say_plus_and_minus() -> None:
    fast = read_tracking(lines(TRACKING.format(way="fast")), 0)
    slow = read_tracking(lines(TRACKING.format(way="slow")), 0)
    assert fast is not None
    assert slow is not None
    assert (fast[0].system_time_s, fast[0].frequency_ppm) == (0.13080585, 11.5)
    assert (slow[0].system_time_s, slow[0].frequency_ppm) == (-0.13080585, -11.5)


def test_chronyc_c_has_the_other_sign_for_the_system_time() -> None:
    """Captured together from chrony 4.3: '0.1308 seconds fast' and -0.1303; '11.500 ppm fast' and 11.500."""
    found = read_tracking(
        lines(
            "0A4D0001,10.77.0.1,2,1796110143.197196544,-0.130284995,-0.2,0.1,11.500,-0.6,4.2,0.00002,0.00001,0.5,Normal"
        ),
        0,
    )
    assert found is not None
    assert (found[0].system_time_s, found[0].frequency_ppm) == (0.130284995, 11.5)


def test_a_cut_system_time_without_its_word_has_no_sign_and_no_value() -> None:
    found = read_tracking(lines("Skew : 1 ppm\nSystem time     : 0.130805850 seconds"), 0)
    assert found is not None
    assert found[0].system_time_s is None


def test_reach_is_octal_in_the_table_and_decimal_with_c() -> None:
    table = read_source(parse_line(1, "^* 10.77.0.1  1   0   377     2  +3369ns[+3945ns] +/-   20us"))
    csv = read_source(parse_line(1, "^,*,10.77.0.1,1,0,255,2,0.000003369,0.000003945,0.000020000"))
    assert table is not None
    assert csv is not None
    assert table.reach == csv.reach == 255
    assert table.offset_ns == csv.offset_ns == 3369


def test_a_source_without_a_sample_has_none() -> None:
    never = read_source(parse_line(1, "^? 192.0.2.10  0   8     0     -     +0ns[   +0ns] +/-    0ns"))
    assert never is not None
    assert not never.has_sample


def test_ntpq_rows_keep_their_mark_with_and_without_the_margin() -> None:
    header = "     remote   refid  st t when poll reach delay offset jitter\n==\n"
    table = header + "*a.example 1.2.3.4 2 u 33 64 377 0.4 -26.064 0.1\nxb 1.2.3.5 2 u 3 64 1 0 0 0"
    found = read_peers(lines(table), 0)
    assert found is not None
    assert [(peer.tally, peer.name, peer.reach) for peer, _ in found[0]] == [("*", "a.example", 255), ("x", "b", 1)]
    assert found[0][0][0].offset_ms == 26.064
    bare = read_peers(lines("xenon.example 1.2.3.5 2 u 5d 64 17 0 0 0"), 0)
    assert bare is not None
    assert (bare[0][0][0].tally, bare[0][0][0].name, bare[0][0][0].when_s) == (" ", "xenon.example", 432_000)


def test_a_summary_gives_its_largest_offset_and_its_rms() -> None:
    found = sample_of(
        parse_line(1, "ptp4l[3.1]: rms 3037000498 max 8589934586 freq -25190 +/-  11 delay   634 +/-   0")
    )
    assert found is not None
    assert (found[1].offset_ns, found[1].rms_ns, found[1].freq_ppb, found[1].delay_ns) == (
        8589934586,
        3037000498,
        -25190,
        634,
    )


def test_an_offset_cut_before_its_servo_state_is_no_offset() -> None:
    assert sample_of(parse_line(1, "ptp4l[3.1]: master offset 161234")) is None


def test_a_state_change_is_taken_apart() -> None:
    event = EVENTS.match(
        parse_line(1, "ptp4l[9.1]: port 2 (eth1): MASTER to FAULTY on FAULT_DETECTED (FT_UNSPECIFIED)")
    )
    assert event is not None
    assert dict(event.fields) == {
        "port_n": 2,
        "iface": "eth1",
        "old": "MASTER",
        "new": "FAULTY",
        "why": "FAULT_DETECTED",
        "ft": "FT_UNSPECIFIED",
    }


def test_fields_of_ptp_have_one_name_in_any_spelling() -> None:
    for text in (
        '"current_utc_offset": 37, "current_utc_offset_valid": 0',
        "currentUtcOffset 37 currentUtcOffsetValid 0",
    ):
        found = read_dataset(lines(text), 0)
        assert found is not None
        assert (found[0].whole("currentUtcOffset"), found[0].whole("currentUtcOffsetValid")) == (37, 0)


def test_options_are_read_in_all_their_forms() -> None:
    command = read_command(parse_line(1, "$ sudo phc2sys -s /dev/ptp0 -c CLOCK_REALTIME --step_threshold=1 -O -37 -mq"))
    assert command is not None
    assert command.option("-O") == "-37"
    assert command.option("--step_threshold") == "1"
    assert command.has("m")
    assert command.has("q")
    assert command.option("-w") is None


@pytest.mark.parametrize(
    "text", ["# chronyd reads this file at start", "server room 3 is closed, sorry", "pool party at 8:"]
)
def test_prose_is_neither_a_command_nor_a_setting(text: str) -> None:
    directive, _ = read_directive(parse_line(1, text), "")
    assert directive is None
