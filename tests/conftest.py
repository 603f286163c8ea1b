"""Labs for tests: `lab_of` starts labs and ends them with the module, `lab` is that of examples/lab.yaml.

Skipped only where this machine forbids namespaces, or lacks a compiler or the daemons, with that as the reason. Signals
are as a terminal gives them.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from rankclock.cluster.model import Cluster
from rankclock.errors import HostError
from rankclock.lab import Lab, Scenario, load_scenario
from rankclock.lab.daemons import find_daemon

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Background jobs of a shell start with SIGINT ignored, and so does what they start: nothing could be interrupted.
    signal.signal(signal.SIGINT, signal.default_int_handler)

EXAMPLE = Path(__file__).parents[1] / "examples/lab.yaml"

LabOf = Callable[[Scenario], Lab]


@pytest.fixture(scope="module")
def lab_of() -> Iterator[LabOf]:
    """Starts a lab of a scenario; it lives until the module's tests are done."""
    with ExitStack() as stack:

        def start(scenario: Scenario) -> Lab:
            try:
                lab = Lab.up(scenario)
            except HostError as error:
                if "namespace" in str(error) or "compiler" in str(error) or "/proc" in str(error):
                    pytest.skip(str(error))
                raise
            return stack.enter_context(lab)

        yield start


@pytest.fixture(scope="module")
def lab(lab_of: LabOf) -> Lab:
    """The cluster of examples/lab.yaml, no daemon started."""
    return lab_of(load_scenario(EXAMPLE))


@pytest.fixture(scope="session")
def daemon() -> Callable[[str], Path]:
    """The path of a real daemon; the test is skipped where it is not installed."""

    def find(name: str) -> Path:
        try:
            return find_daemon(name)
        except HostError as error:
            pytest.skip(str(error))

    return find


@pytest.fixture(scope="session")
def flat() -> Callable[..., Scenario]:
    """A scenario of n nodes n1, n2, ... on one segment (10.77.0.1/16 up); keywords go into the scenario."""

    def make(count: int, **more: object) -> Scenario:
        nodes = [
            {"name": f"n{i}", "nics": [{"name": "eth0", "address": f"10.77.{i >> 8}.{i & 255}/16", "segment": "lan"}]}
            for i in range(1, count + 1)
        ]
        cluster = {"schema": "rankclock-cluster/1", "name": "flat", "nodes": nodes}
        return Scenario.of(Cluster.model_validate(cluster), **more)

    return make


@pytest.fixture(scope="session")
def until() -> Callable[..., None]:
    """Waits until a condition holds, looking often, and fails with what was seen last when it does not in time."""

    def wait(condition: Callable[[], object], timeout_s: float, what: str, every_s: float = 0.02) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                pytest.fail(f"not within {timeout_s} s: {what}")
            time.sleep(every_s)

    return wait
