"""Virtual machines, containers and clouds: clocks that belong to somebody else."""

from __future__ import annotations

from collections.abc import Iterator

from rankclock.diagnosis.evidence import Evidence
from rankclock.diagnosis.finding import Draft, Rule, Severity, draft
from rankclock.diagnosis.notes import Comment
from rankclock.wire.text.number import as_int
from rankclock.wire.text.timedatectl import UnitState

__all__ = ["RULES"]

PAUSED_S = 60.0
"""No oscillator and no boot RTC of a running cloud host is off by a minute: the machine slept."""


def _container(evidence: Evidence) -> Iterator[Draft]:
    denied = [
        e
        for e in evidence.events("chrony-adjtimex-denied", "ntpd-denied", "chrony-disabled-control")
        if e.value.kind == "chrony-disabled-control"
        or "permitted" in e.value.text("why").lower()
        or "operation not permitted".startswith(e.value.text("why").lower().strip())  # the line was cut
    ]
    denied += [e for e in evidence.events("chrony-fatal") if _begins(e.value.text("why").strip(), "adjtimex(")]
    if not denied:
        return
    yield draft(
        Severity.RISK,
        0.9,
        "the daemon may not set the clock (no CAP_SYS_TIME): an unprivileged container or a unit without that "
        "capability. A container shares its host's clock; discipline it on the host, where exactly one daemon does "
        "it, and only look at it from in here. Running the daemon so that it does not touch the clock (-x) lets it "
        "serve or measure, it does not mend a wrong clock.",
        [*evidence.events("chrony-no-cap")[:1], *denied[:2]],
        values={"errno": "EPERM", "cap": "CAP_SYS_TIME"},
        next=(
            "chronyd or phc2sys on the host; in the container none",
            "grep CapEff /proc/self/status: bit 25 is CAP_SYS_TIME; cat /proc/1/cgroup: is this a container",
            "from inside: rankclock verify, or chronyd -Q 'server SERVER iburst' (prints the offset, sets nothing)",
        ),
        confirm="on the host: chronyc tracking",
        explains=("CHRONYD_FATAL", "DAEMON_NOT_RUNNING", "UNIT_FAILED"),
    )


def _begins(text: str, words: str) -> bool:
    """Whether a text begins with the words, or is their beginning: a line that was cut."""
    return bool(text) and (text.startswith(words) or words.startswith(text))


def _paused(evidence: Evidence) -> Iterator[Draft]:
    steps = [
        (e, float(e.value.number("wrong_s") or e.value.number("step_s") or 0.0))
        for e in evidence.events("chrony-wrong", "chrony-stepped", "ntpd-reset", "ntpd-set")
    ]
    big = [(e, s) for e, s in steps if s >= PAUSED_S]
    phc = [d for d in evidence.directives("chrony", "refclock") if d.value.arguments[:1] == ("PHC",)]
    woke = evidence.events("kernel-resumed")
    if not big or not (phc or woke) or evidence.has("chrony-no-majority"):
        return
    step = big[0][1]
    yield draft(
        Severity.FAULT,
        0.75 if phc and not woke else 0.85,
        f"the clock was {step:.6f} s behind its host's: that is how long the machine was paused (host asleep, VM "
        "suspended or migrated), not drift. A guest that can be paused needs leave to step at any time (makestep 1 "
        "-1), and a source that it believes after such a gap: the host's clock marked 'trust', or NTP servers as a "
        "second opinion. On training nodes unlimited stepping means that time may jump in mid-run: do not pause "
        "them.",
        [*phc[:1], *woke[:1], *[e for e, _ in big[:2]]],
        values={"step_s": step},
        next=(
            "makestep 1 -1 in chrony.conf of guests that are paused",
            "refclock PHC /dev/ptp_hyperv (or /dev/ptp_kvm) by name, not /dev/ptp0: numbers change between boots; "
            "add trust, or servers",
        ),
        confirm="pause and resume once: the clock is right within a poll interval",
        explains=("CLOCK_STEPPED",),
    )


def _unstable(evidence: Evidence) -> Iterator[Draft]:
    hits = evidence.events("kernel-unstable")
    switched = evidence.events("kernel-switched")
    if not hits:
        return
    now = switched[-1].value.text("clocksource") if switched else None
    slow = now in ("acpi_pm", "hpet", "jiffies", "refined-jiffies")
    bad = next((e.value.text("clocksource") for e in hits if e.value.text("clocksource")), "tsc")
    yield draft(
        Severity.DEGRADED,
        0.8,
        f"the kernel found the clock source {bad} unstable"
        + (f" and switched to {now}" if now else "")
        + ". The clock keeps its time"
        + (f", but reading {now} is slow (microseconds a call)" if slow else "")
        + ", and its rate changes at the switch: offsets of milliseconds until the daemon has followed. In a guest "
        "the cause is an overloaded or migrated host more often than the hardware.",
        [*hits[:2], *switched[-1:]],
        values={"clocksource": now, "unstable_clocksource": bad},
        next=(
            "cat /sys/devices/system/clocksource/clocksource0/{current,available}_clocksource",
            "guests: kvm-clock with refclock PHC /dev/ptp_kvm; metal: firmware, tsc=reliable only where the TSC is "
            "known good",
        ),
        confirm="chronyc tracking: frequency steady to 1 ppm over an hour",
    )


def _guest_tools(evidence: Evidence) -> Iterator[Draft]:
    tools = evidence.events("vbox-time", "vmtools-time")
    units = [u for u in evidence.all(UnitState) if u.value.daemon in ("vmtoolsd", "VBoxService") and u.value.running]
    daemons = [u for u in evidence.all(UnitState) if u.value.daemon in ("chrony", "ntpd") and u.value.running]
    enabled = [e for e in tools if e.value.text("what").lower() != "disable"]
    if enabled and (units or daemons or evidence.has("chrony-wrong", "ntpd-reset")):
        yield draft(
            Severity.RISK,
            0.65,
            "the hypervisor's guest tools set this clock too: beside a time daemon that makes two controllers.",
            [*enabled[:2], *units[:1], *daemons[:1]],
            next=("vmware-toolbox-cmd timesync disable; VBoxManage setextradata VM .../GetHostTimeDisabled 1",),
            confirm="no steps in chronyd's log for a day",
        )


def _phc_trust(evidence: Evidence) -> Iterator[Draft]:
    """A grandmaster or PHC that may announce a wrong epoch, and a budget of steps that it can use up."""
    for step in evidence.directives("chrony", "makestep"):
        if len(step.value.arguments) < 2:
            continue
        threshold, limit = step.value.arguments[:2]
        phc = [d for d in evidence.directives("chrony", "refclock") if d.value.arguments[:1] == ("PHC",)]
        hints = [
            c for c in evidence.all(Comment) if "timemaster" in c.value.text.lower() or "ptp" in c.value.text.lower()
        ]
        sections = [d for d in evidence.directives("ptp") if "ptp_domain" in d.value.section]
        master = evidence.commands("timemaster")
        if (as_int(limit) or 0) <= 0 or not (hints or sections or master):
            continue
        yield draft(
            Severity.RISK,
            0.7,
            f"makestep {threshold} {limit} allows {limit} steps only, and the time comes from PTP: a grandmaster "
            "that announces 1970 before its first fix makes chronyd step there and uses them up; the way back (more "
            "than 50 years) is then slewed, which never ends. Either makestep 1 -1 behind the include (the last "
            "line counts), which means that every wrong source can step the clock again and again, in mid-run too; "
            "or, better, do not let the source in before its clockClass is 7 or below.",
            [step, *phc[:1], *hints[:1]],
            values={"threshold_s": _number(threshold), "limit": as_int(limit), "suggested": "makestep 1 -1"},
            next=(
                "start chronyd (timemaster) only when the grandmaster is locked",
                "or makestep 1 -1, knowing the risk",
            ),
            confirm="reboot node and grandmaster together: the date is right ten minutes later",
        )
        return


def _number(text: str) -> float | int | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return int(value) if value == int(value) else value


RULES = (
    Rule(
        id="NO_CAP_SYS_TIME",
        title="The daemon may not set the clock: a container",
        needs="the log of chronyd or ntpd",
        check=_container,
        reference="capabilities(7); cturra/docker-ntp#28; canonical/lxd#4249",
    ),
    Rule(
        id="VM_PAUSED",
        title="The machine slept",
        needs="a correction of a minute or more, and a PHC reference clock or the kernel's resume message",
        check=_paused,
        arithmetic="the correction is the length of the pause",
        reference="clearlinux/distribution#39",
    ),
    Rule(
        id="CLOCKSOURCE_UNSTABLE",
        title="The kernel gave up a clock source",
        needs="the kernel's log",
        check=_unstable,
        reference="kernel/time/clocksource.c; harvester/harvester#7724",
    ),
    Rule(
        id="GUEST_TOOLS_SET_TIME",
        title="Guest tools set the clock too",
        needs="their log and a unit state",
        check=_guest_tools,
    ),
    Rule(
        id="STEPS_USED_UP",
        title="A wrong epoch from PTP can use up the allowed steps",
        needs="makestep, and a sign that time comes from PTP (timemaster, ptp_domain)",
        check=_phc_trust,
        reference="seapath/ansible#1000; chrony.conf(5) makestep",
    ),
)
