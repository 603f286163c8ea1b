"""All facts of this machine in one object, schema rankclock-facts/1 (docs/reference/facts.md). Reads, changes nothing.

A collector that fails gives unknown facts with the reason: one broken file of /proc never costs the rest.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any

from rankclock.node import kernel, machine
from rankclock.node.daemons import daemon_facts, find_owners, owners_fact
from rankclock.node.fact import Fact, why_not
from rankclock.node.gpsd import gps_fact
from rankclock.node.nics import nic_facts
from rankclock.node.phc import phc_facts
from rankclock.node.processes import read_processes

__all__ = ["SCHEMA", "collect_facts"]

SCHEMA = "rankclock-facts/1"


def collect_facts(node: str | None = None) -> dict[str, Any]:
    """The facts object, ready for JSON. `node`: the name to give it, the host name where none is."""
    table = read_processes()
    singles: dict[str, Callable[[], Fact]] = {
        "hostname": machine.hostname,
        "kernel": machine.kernel_release,
        "os": machine.operating_system,
        "python": lambda: Fact.known(platform.python_version(), "the collector"),
        "boot_id": kernel.boot_id,
        "time_namespace": kernel.time_namespace,
        "clocksource": kernel.clocksource,
        "virtualisation": machine.virtualisation,
        "cap_sys_time": kernel.cap_sys_time,
        "adjtimex": lambda: kernel.read_adjtimex().fact(),
    }
    facts = {key: _tried(key, collect) for key, collect in singles.items()}
    nics = _tried_many("nic.", nic_facts)
    facts.update(nics)
    values = {key.removeprefix("nic."): fact.value for key, fact in nics.items() if isinstance(fact.value, dict)}
    facts.update(_tried_many("phc.", lambda: phc_facts(values)))
    facts.update(_tried_many("daemon.", lambda: daemon_facts(table)))
    facts["gps"] = _tried("gps", lambda: gps_fact(table))
    facts["realtime_owner"] = _tried("realtime_owner", lambda: owners_fact(find_owners(table)))
    return {
        "schema": SCHEMA,
        "node": node or str(facts["hostname"].value),
        "collected_at_ns": kernel.realtime_ns(),
        "facts": {key: fact.to_json() for key, fact in facts.items()},
    }


def _tried(key: str, collect: Callable[[], Fact]) -> Fact:
    try:
        return collect()
    except OSError as error:
        return Fact.unknown(why_not(error), f"the collector of {key}")
    except (ValueError, KeyError, IndexError) as error:  # a file of /proc or /sys in a form that nobody has seen yet
        return Fact.unknown(f"unexpected form: {type(error).__name__}: {error}", f"the collector of {key}")


def _tried_many(prefix: str, collect: Callable[[], dict[str, Fact]]) -> dict[str, Fact]:
    try:
        return collect()
    except OSError as error:
        return {f"{prefix}?": Fact.unknown(why_not(error), f"the collector of {prefix}*")}
    except (ValueError, KeyError, IndexError) as error:
        why = f"unexpected form: {type(error).__name__}: {error}"
        return {f"{prefix}?": Fact.unknown(why, f"the collector of {prefix}*")}
