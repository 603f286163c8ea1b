"""Option tables: what a release lacks is refused with the release that has it; a line is one line."""

from __future__ import annotations

import pytest

from rankclock.cluster import Facts
from rankclock.configs.options import ConfigLine, Place, parse_version, version_range
from rankclock.configs.options_chrony import directive, source
from rankclock.configs.options_linuxptp import PHC2SYS, PTP4L
from rankclock.configs.target import target_of
from rankclock.errors import UserError

V311, V40, V42, V44 = (3, 1, 1), (4, 0), (4, 2), (4, 4)


@pytest.mark.parametrize(
    ("name", "needs"),
    [
        ("clientOnly", "4.0"),
        ("serverOnly", "4.0"),
        ("uds_ro_address", "4.0"),
        ("clock_class_threshold", "4.0"),
        ("ptp_minor_version", "4.2"),
        ("sa_file", "4.3"),
        ("ts2phc.holdover", "4.4"),
    ],
)
def test_an_option_that_linuxptp_3_1_1_lacks_is_refused_with_the_release_that_has_it(name: str, needs: str) -> None:
    with pytest.raises(UserError, match=f"3.1.1 has no option '{name}': it needs {needs} and newer"):
        PTP4L.line(name, 1, V311, why="")
    assert PTP4L.has(name, parse_version(needs))
    assert not PTP4L.has(name, V311)


@pytest.mark.parametrize(
    ("name", "value", "version", "words"),
    [
        ("domainNumber", 128, V311, "0 to 127"),
        ("priority1", 256, V44, "0 to 255"),
        ("priority1", "x", V44, "expected a number"),
        ("time_stamping", "hardwere", V44, "hardware, software"),
        ("delay_mechanism", "NONE", V311, "Auto, E2E, P2P"),
        ("slaveOnly", "1 # x", V44, "'#' cannot stand in a value"),
        ("userDescription", "a\nslaveOnly 1", V44, "control characters"),
        ("no_such_option", 1, V44, "in any release"),
    ],
)
def test_a_value_that_the_daemon_would_reject_is_refused(
    name: str, value: object, version: tuple[int, ...], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        PTP4L.line(name, value, version, why="")


def test_ranges_follow_the_release() -> None:
    assert PTP4L.line("domainNumber", 200, V40, why="").text == "domainNumber 200"
    assert PTP4L.find("tx_timestamp_timeout", V311).default == "1"
    assert PTP4L.find("tx_timestamp_timeout", V40).default == "10"
    assert PTP4L.line("delay_mechanism", "NONE", V42, why="").versions == "all"


def test_a_global_option_has_no_place_in_a_port_section() -> None:
    with pytest.raises(UserError, match=r"'slaveOnly' in \[global\] only"):
        PTP4L.line("slaveOnly", 1, V311, why="", place=Place.PORT)
    assert PTP4L.line("masterOnly", 1, V311, why="", place=Place.PORT).versions == "all (from 4.0 on called serverOnly)"


def test_phc2sys_takes_what_its_table_says() -> None:
    assert PHC2SYS.line("-n", 127, V311, why="").text == "-n 127"
    with pytest.raises(UserError, match="0 to 255"):
        PHC2SYS.line("-n", 256, V311, why="")


def test_chrony_directives_and_source_options_know_their_releases() -> None:
    with pytest.raises(UserError, match=r"chronyd 4\.3 has no option 'leapseclist': it needs 4\.6"):
        directive("leapseclist", "/x", (4, 3), why="")
    assert directive("leapseclist", "/x", (4, 6), why="").versions == "4.6 and newer"
    with pytest.raises(UserError, match="maxunreach"):
        source("10.0.0.1", {"maxunreach": 5}, (4, 7), why="")
    with pytest.raises(UserError, match="minpoll 6 is above maxpoll 4"):
        source("10.0.0.1", {"minpoll": 6, "maxpoll": 4}, (4, 3), why="")
    with pytest.raises(UserError, match="control characters"):
        source("10.0.0.1\nallow", {}, (4, 3), why="")
    with pytest.raises(UserError, match="'#'"):
        directive("driftfile", "/x # y", (4, 3), why="")


def test_a_line_of_a_file_is_one_line_whatever_wrote_it() -> None:
    for text in ("a\nb", "a\rb", "a\x00b", "a\u2028b", "a\x1b[0m"):
        with pytest.raises(ValueError, match="control characters"):
            ConfigLine(text=text)


@pytest.mark.parametrize(("text", "version"), [("4.3", (4, 3)), ("3.1.1-00012-gabc", (3, 1, 1)), ("4.4-pre1", (4, 4))])
def test_versions_are_their_leading_numbers(text: str, version: tuple[int, ...]) -> None:
    assert parse_version(text) == version


def test_version_ranges_read_like_sentences() -> None:
    assert version_range(PTP4L.find("domainNumber", V311)) == "before 4.0"
    assert version_range(PTP4L.find("domainNumber", V40)) == "4.0 and newer"


def facts(**versions: str | None) -> Facts:
    found = {
        f"daemon.{name}": {"value": {"version": version}, "why": None, "source": ""}
        for name, version in versions.items()
    }
    return Facts.from_json({"schema": "rankclock-facts/1", "node": "a", "collected_at_ns": 0, "facts": found})


def test_files_are_written_for_the_versions_that_the_facts_name_and_for_debian_12_otherwise() -> None:
    assert target_of("a", facts(chronyd="4.6.1", ptp4l="4.2")).linuxptp_version == V42
    unknown = target_of("a", facts(chronyd="none", ptp4l=None))
    assert (unknown.chrony, unknown.linuxptp) == ("4.3", "3.1.1")
    assert unknown.assumed == ("chronyd 4.3", "ptp4l 3.1.1")
    assert target_of("a", None).assumed


def test_daemons_older_than_the_tables_are_refused() -> None:
    with pytest.raises(UserError, match=r"a: ptp4l 2\.0 is older than 3\.1"):
        target_of("a", facts(ptp4l="2.0"))
