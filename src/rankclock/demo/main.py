"""Which demo this machine can hold: the whole one on labs, or ranks on loopback with what was left out said."""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

from rankclock.cluster import Cluster
from rankclock.demo.loopback import run_loopback
from rankclock.demo.run import run_lab
from rankclock.demo.timeline import Timeline
from rankclock.errors import HostError
from rankclock.lab import Lab, Scenario, load_scenario
from rankclock.lab.daemons import find_daemon
from rankclock.report.record import RunRecord

__all__ = ["demo_record", "why_no_lab"]

DAEMONS = ("chronyd", "ptp4l", "phc2sys")


def demo_record(path: Path | None, *, out: Path, say: Callable[[str], None]) -> RunRecord:
    """Runs what can run here. Raises UserError for a scenario that is none."""
    scenario = load_scenario(path if path is not None else _example())
    timeline = Timeline(say)
    why = why_no_lab()
    if why is None:
        return run_lab(scenario, timeline, name=str(path or ""), out=out)
    timeline.tell(f"no lab can run here: {why}")
    return run_loopback(timeline, why=why)


def _example() -> Path:
    """The scenario that comes with the package; in a checkout it lies in examples/."""
    packed = Path(str(files("rankclock.lab"))) / "example.yaml"
    return packed if packed.exists() else Path(__file__).resolve().parents[3] / "examples/lab.yaml"


def why_no_lab() -> str | None:
    """What keeps a lab from running here; None where one can run."""
    try:
        for name in DAEMONS:
            find_daemon(name)
        cluster = {"schema": "rankclock-cluster/1", "name": "trial", "nodes": [{"name": "trial"}]}
        with Lab.up(Scenario.of(Cluster.model_validate(cluster))):
            return None
    except HostError as error:
        return str(error)
