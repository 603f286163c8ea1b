"""Which ptp4l a phc2sys follows where several run: the one that surely is it, or none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rankclock.node.linuxptp_options import phc2sys_options
from rankclock.node.state import ptp4l_behind

PHCS = {"eth0": 0, "eth1": 1, "eth2": 1, "veth": None}


def reading(domain: int, *interfaces: str) -> Any:
    return SimpleNamespace(domain=domain, properties=[SimpleNamespace(interface=name) for name in interfaces])


def behind(line: str, *readings: Any) -> Any:
    return ptp4l_behind(phc2sys_options(line.split()), readings, PHCS.get)


def test_the_only_ptp4l_is_the_one_whatever_its_domain() -> None:
    only = reading(24, "eth0")
    assert behind("phc2sys -s eth0 -w", only) is only
    assert behind("phc2sys -a -r", only) is only
    assert behind("phc2sys -s eth0 -w") is None


@pytest.mark.parametrize(("source", "index"), [("eth0", 0), ("/dev/ptp1", 1), ("eth2", 1)])
def test_of_several_the_one_that_has_the_sources_phc_is_taken(source: str, index: int) -> None:
    both = reading(0, "eth0"), reading(0, "eth1")
    assert behind(f"phc2sys -s {source} -O 0", *both) is both[index]


def test_of_several_in_automatic_mode_the_one_of_its_domain_is_taken() -> None:
    both = reading(0, "eth0"), reading(24, "eth1")
    assert behind("phc2sys -a -r -n 24", *both) is both[1]


@pytest.mark.parametrize(
    ("line", "readings"),
    [
        ("phc2sys -a -r", (reading(0, "eth0"), reading(0, "eth1"))),
        ("phc2sys -a -r -n 5", (reading(0, "eth0"), reading(24, "eth1"))),
        ("phc2sys -s eth1 -w", (reading(0, "eth1"), reading(24, "eth2"))),
        ("phc2sys -s eth0 -w", (reading(0), reading(24))),  # a read-only socket tells no interfaces
        ("phc2sys -s veth -w", (reading(0, "eth0"), reading(24, "veth"))),
    ],
)
def test_where_several_might_be_it_none_is_taken(line: str, readings: tuple[Any, ...]) -> None:
    assert behind(line, *readings) is None


def test_phc2sys_asks_where_its_command_line_says() -> None:
    assert phc2sys_options(["phc2sys", "-a", "-rr", "-z", "/run/ptp4l-eth1"]).sockets == ("/run/ptp4l-eth1",)
    assert phc2sys_options(["phc2sys", "-a", "-rr"]).sockets == ()
