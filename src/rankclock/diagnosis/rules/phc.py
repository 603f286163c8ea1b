"""PTP hardware clocks and the system clock: which is which, who feeds whom, who else does."""

from __future__ import annotations

from collections.abc import Iterator

from rankclock.cluster.facts import Facts
from rankclock.diagnosis.evidence import Evidence, Item, median
from rankclock.diagnosis.finding import Draft, Rule, Severity, draft
from rankclock.timebase import ClockState
from rankclock.wire.text.config_text import Command
from rankclock.wire.text.number import as_int
from rankclock.wire.text.timedatectl import UnitState

__all__ = ["RULES"]

SLOW_READ_NS = 20_000
"""A PCIe card is read in 0.5 to 8 µs; behind a slow bus (MDIO, SPI, a hypervisor's exit) it takes ten times that."""

STEERS = ("chrony", "ntpd", "openntpd", "systemd-timesyncd", "phc2sys", "timemaster", "ntpdate")
"""Programs that steer CLOCK_REALTIME when they run (ptp4l does so with software stamps only)."""


def _mismatch(evidence: Evidence) -> Iterator[Draft]:
    asked = evidence.events("ptp-phc-requested")
    refused = evidence.events("ptp-phc-mismatch")
    if not asked and not refused:
        return
    values: dict[str, object] = {}
    where = (refused or asked)[0].value.text("iface")
    if asked:
        requested, attached = (int(asked[0].value.number(n) or 0) for n in ("requested_n", "attached_n"))
        values = {"port1_phc": requested, "port2_phc": attached}
        where = asked[0].value.text("iface") or where
    elif selected := evidence.events("ptp-selected-phc"):
        digits = selected[0].value.text("device").removeprefix("/dev/ptp")
        index = as_int(digits)
        values = {"port1_phc": index} if index is not None else {}
    values["iface"] = where or None
    yield draft(
        Severity.FAULT,
        0.95,
        f"the ports of this ptp4l have different PTP hardware clocks ({where} is not on the first port's): it "
        "refuses to run them as one clock. Set boundary_clock_jbod 1 and run phc2sys -a, which keeps the clocks "
        "together. Naming one clock by hand only hides the difference: the port would start and never synchronise.",
        [*evidence.events("ptp-selected-phc")[:1], *refused[:1], *asked[:1], *evidence.events("ptp-open-failed")[:1]],
        values=values,
        next=(
            "boundary_clock_jbod 1 in [global], and phc2sys -a -r beside it",
            "ethtool -T of each port: their 'PTP Hardware Clock' numbers",
        ),
        confirm="ptp4l starts, and phc2sys -a prints offsets for each clock",
        explains=("PTP4L_NOT_STARTED", "PORT_FAULTY"),
    )


def _slow_read(evidence: Evidence) -> Iterator[Draft]:
    for series in evidence.series:
        if series.program not in ("phc2sys", ""):
            continue
        delays = [s.delay_ns for s in series.samples if s.delay_ns is not None]
        middle = median(delays)
        if series.program == "" and not any(
            "phc" in q.text for q in series.quotes([s.line for s in series.samples][:1])
        ):
            continue
        if len(delays) < 3 or middle is None or middle < SLOW_READ_NS:
            continue
        worst = max(delays)
        offsets = [abs(s.offset_ns) for s in series.samples]
        yield draft(
            Severity.DEGRADED,
            0.85,
            f"one reading of the PTP hardware clock takes {middle / 1000:.0f} µs (a PCIe card: 0.5 to 8 µs). "
            f"phc2sys takes the middle of it, so the offset of system clock and PHC is known to ±{worst // 2} ns at "
            f"best, and this noise drives the servo: offsets up to {max(offsets)} ns. The PTP network has no part "
            "in it.",
            series.quotes([s.line for s in series.samples][:4]),
            values={
                "median_delay_ns": int(middle),
                "max_delay_ns": worst,
                "max_abs_offset_ns": max(offsets),
                "bound_ns": worst // 2,
            },
            next=(
                "phc2sys -N 25 (more readings, the fastest counts) and -R 4, or a smaller servo bandwidth",
                "cross timestamps of the driver (PTP_SYS_OFFSET_PRECISE); CPU idle states and interrupts off that core",
            ),
            confirm="delay below 8000 ns and offsets within it",
        )


def _two_controllers(evidence: Evidence) -> Iterator[Draft]:
    for host in dict.fromkeys(unit.host for unit in evidence.all(UnitState)):
        units = {
            unit.value.daemon: unit
            for unit in reversed(evidence.all(UnitState))
            if unit.host == host and unit.value.running and unit.value.daemon in STEERS
        }
        if (
            set(units) - {"timemaster"}
            and ("timemaster" in units)
            and set(units) <= {"timemaster", "chrony", "phc2sys"}
        ):
            continue
        if len(units) > 1:
            yield _controllers(sorted(units, reverse=True), [units[name] for name in units], 0.9)
            return
    for item in evidence.all(Facts):
        owner = item.value.get("realtime_owner").value
        owners = owner.get("owners") if isinstance(owner, dict) else None
        if isinstance(owners, list) and len(owners) > 1:
            yield _controllers([str(one) for one in owners], [item], 0.9)
            return
    writers = _writers(evidence)
    if len(writers) > 1:
        yield _controllers(sorted(writers), list(writers.values()), 0.75)


def _writers(evidence: Evidence) -> dict[str, Item[object]]:
    """Programs whose own log shows them correcting the system clock, on the same host."""
    found: dict[str, dict[str, Item[object]]] = {}
    for one in evidence.events("chrony-wrong", "chrony-stepped", "chrony-selected"):
        if not one.value.text("ignored") and one.value.line.program == "chronyd":
            found.setdefault(one.host, {}).setdefault("chrony", one)  # type: ignore[arg-type]
    for one in evidence.events("ntpd-reset", "ntpd-set"):
        found.setdefault(one.host, {}).setdefault("ntpd", one)  # type: ignore[arg-type]
    for one in evidence.events("timesyncd-synchronized", "timesyncd-initial"):
        found.setdefault(one.host, {}).setdefault("systemd-timesyncd", one)  # type: ignore[arg-type]
    for series in evidence.series:
        if series.program == "phc2sys" and series.clock in ("CLOCK_REALTIME", ""):
            quote = series.quotes([series.samples[0].line])[0]
            found.setdefault(series.host, {}).setdefault(
                "phc2sys",
                Item(
                    kind="linuxptp log",
                    value=None,
                    source=quote.source,
                    first=quote.line,
                    last=quote.line,
                    text=quote.text,
                    host=series.host,
                ),
            )
    return max(found.values(), key=len, default={})


def _controllers(
    names: list[str], items: list[Item[object]] | list[Item[UnitState]] | list[Item[Facts]], confidence: float
) -> Draft:
    return draft(
        Severity.FAULT,
        confidence,
        f"{' and '.join(names)} run at the same time and each steers the system clock: they pull against each other "
        "(bursts of jitter, frequencies that no crystal has, steps back and forth). Exactly one may own "
        "CLOCK_REALTIME.",
        items[:6],
        values={"active": names},
        next=(
            "keep one: systemctl disable --now systemd-timesyncd (mask it), or chronyd where phc2sys feeds the clock",
            "enabled units with Conflicts= are both started at boot: disable, do not rely on the conflict",
            "do not run 'timedatectl timesync-status' or 'set-ntp' to look: either may start timesyncd and stop "
            "chronyd",
        ),
        confirm="systemctl is-active chronyd ntpd systemd-timesyncd phc2sys shows one of them, also after a boot",
        explains=("SYNC_FLAPPING", "CORRECTION_PENDING", "CLOCK_STEPPED", "MASTER_STEPPED"),
    )


def _system_mode(command: Command) -> str | None:
    """'to-system' or 'from-system' of a manual phc2sys command line; None where it is automatic or unclear."""
    if command.has("a"):
        return None
    source, target = command.option("-s"), command.option("-c")
    if source == "CLOCK_REALTIME":
        return "from-system"
    if source and target in (None, "CLOCK_REALTIME"):
        return "to-system"
    return None


def _sign(evidence: Evidence) -> Iterator[Draft]:
    for item in evidence.commands("phc2sys"):
        value, mode = item.value.option("-O"), _system_mode(item.value)
        offset = as_int(value) if value is not None else None
        if offset is None or mode is None:
            continue
        wanted = -abs(offset) if mode == "to-system" else abs(offset)
        if abs(offset) not in (35, 36, 37) or offset == wanted:
            continue
        yield draft(
            Severity.RISK,
            0.75,
            f"phc2sys -O {offset}: -O is the steered clock minus its source. The system clock (UTC) fed from a PHC "
            "in TAI needs -O -37, a PHC fed from the system clock -O 37; with the other sign the clock lands "
            f"{2 * abs(offset)} s away. Right only if the PHC holds something else than TAI.",
            [item],
            values={"given_offset_s": offset, "expected_offset_s": wanted},
            next=(f"-O {wanted}, or -w (wait for ptp4l and take the offset from it)", "phc_ctl /dev/ptpN cmp"),
            confirm="date -u agrees with another host to the second",
        )
        return


def _not_told(evidence: Evidence) -> Iterator[Draft]:
    hits = evidence.events("phc2sys-no-offset")
    if hits:
        yield draft(
            Severity.FAULT,
            0.9,
            "phc2sys does not start: it must know the UTC offset. -w takes it from ptp4l, -O gives it by hand (-37 "
            "for a system clock fed from a PHC in TAI, 0 for one in UTC), -a does all of it.",
            [*evidence.commands("phc2sys")[:1], *hits[:1]],
            next=("phc2sys -a -r (with ptp4l), or -s IFACE -w",),
            confirm="phc2sys prints offsets",
        )


def _waiting(evidence: Evidence) -> Iterator[Draft]:
    waiting = evidence.events("phc2sys-waiting")
    unreachable = [one for one in evidence.events("ptp-sendto-failed") if one.value.text("uds")]
    started = any(series.program == "phc2sys" for series in evidence.series)
    if (len(waiting) >= 2 or unreachable) and not started:
        yield draft(
            Severity.FAULT,
            0.8,
            "phc2sys waits for ptp4l and does not reach it: ptp4l does not run, uses another socket (uds_address; "
            "/var/run/ptp/ptp4l in the newest versions) or another domain (-n must be the domainNumber). The system "
            "clock is not fed meanwhile.",
            [*waiting[:2], *unreachable[:1]],
            values={"waiting": len(waiting)},
            next=("ls -l /var/run/ptp4l /var/run/ptp/; phc2sys -z SOCKET -n DOMAIN", "systemctl status ptp4l"),
            confirm="phc2sys prints offsets",
        )


def _device(evidence: Evidence) -> Iterator[Draft]:
    opened = evidence.events("chrony-open-failed")
    phc = [one for one in opened if any(word in one.value.text("device") for word in ("ptp", "pps", "gps", "tty"))]
    failed = evidence.events("chrony-phc-failed")
    if not phc and not failed:
        return
    why = phc[0].value.text("why") if phc else ""
    device = phc[0].value.text("device") if phc else None
    died = bool(evidence.events("chrony-fatal", "unit-failed")) or bool(failed)
    denied = "denied" in why.lower() or "permitted" in why.lower()
    what = (
        "the daemon may not open it (the unit's sandbox, AppArmor, or the group of the device)"
        if denied
        else "the device is not there yet, or its symlink is made later than the daemon starts, or its driver is not "
        "loaded"
    )
    yield draft(
        Severity.FAULT,
        0.9,
        f"chronyd could not open the reference clock {device or ''} ({why or 'no reason given'}) and "
        f"{'ended' if died else 'goes on without it'}: {what}. The node runs free until that is mended; the NTP "
        "servers have nothing to do with it.",
        [*phc[:1], *failed[:1], *evidence.events("unit-failed")[:1]],
        values={
            "device": device,
            "daemon_running": not died,
            "errno": "EACCES" if denied else "ENOENT" if "such" in why else None,
        },
        next=(
            "ls -l /dev/ptp* ; cat /sys/class/ptp/*/clock_name; modprobe ptp_kvm (KVM), hv_utils (Hyper-V)",
            'bind the unit to the device: udev TAG+="systemd", ENV{SYSTEMD_WANTS}, or BindsTo=dev-ptp_hyperv.device',
            "give the daemon's group the device; no -restricted unit with reference clocks",
        ),
        confirm="systemctl is-active chronyd after a boot; chronyc sources shows the # line with reach 377",
        explains=("CHRONYD_FATAL", "UNIT_FAILED"),
    )


def _not_adjustable(evidence: Evidence) -> Iterator[Draft]:
    fixed = evidence.events("ptp-not-adjustable")
    refused = [
        one
        for one in evidence.events("ptp-adjust-failed")
        if "not supported" in one.value.text("why").lower() or "permitted" in one.value.text("why").lower()
    ]
    if fixed:
        yield draft(
            Severity.FAULT,
            0.85,
            "the PTP hardware clock cannot be steered (its maximum adjustment is 0): the clocks that clouds and "
            "hypervisors offer (ENA, ptp_kvm, Hyper-V, vmclock) can only be read. ptp4l and phc2sys towards it make "
            "no sense.",
            fixed[:1],
            values={"max_adj_ppb": 0},
            next=(
                "read it instead: chrony 'refclock PHC /dev/ptpN poll 0', or phc2sys -s /dev/ptpN -c CLOCK_REALTIME",
            ),
            confirm="chronyc sources shows PHC0 as #*",
            explains=("PTP4L_NOT_STARTED",),
        )
    elif refused:
        permitted = "permitted" in refused[0].value.text("why").lower()
        yield draft(
            Severity.FAULT,
            0.85,
            f"the daemon measures but cannot '{refused[0].value.text('what')}': {refused[0].value.text('why')}. "
            + (
                "It lacks CAP_SYS_TIME (a container, a unit without it)."
                if permitted
                else "The driver does not implement it."
            ),
            refused[:2],
            values={"errno": "EPERM" if permitted else "EOPNOTSUPP"},
            next=("run it on the host with CAP_SYS_TIME" if permitted else "update the driver; read the clock only",),
            confirm="the message is gone and the offset shrinks",
        )


def _no_feed(evidence: Evidence) -> Iterator[Draft]:
    """ptp4l in hardware mode is locked while the system clock is said to be unsynchronised."""
    locked = [s for s in evidence.series if s.program == "ptp4l" and s.samples and (s.samples[-1].state in (2, 3))]
    hardware = evidence.events("ptp-selected-phc")
    feeding = any(s.program == "phc2sys" for s in evidence.series) or evidence.commands("phc2sys")
    unsync = [t for t in evidence.items if t.kind == "timedatectl" and getattr(t.value, "synchronized", None) is False]
    if locked and hardware and not feeding and unsync:
        yield draft(
            Severity.FAULT,
            0.7,
            "ptp4l steers the card's PTP hardware clock and is locked, the system clock is not synchronised: "
            "nothing copies the one to the other. With hardware stamps phc2sys (or chrony's refclock PHC) does that.",
            [*hardware[:1], *unsync[:1]],
            next=("phc2sys -a -r, or chrony 'refclock PHC /dev/ptpN offset -37'",),
            confirm="phc_ctl IFACE cmp shows about 37 s (TAI) and stays",
        )


def _states(evidence: Evidence) -> Iterator[Draft]:
    """A state that our own agent collected."""
    for item in evidence.all(ClockState):
        state = item.value
        measured = state.measured
        values: dict[str, object] = {"node": state.node, "state": state.state.value, "owner": state.owner}
        if measured.known:
            values |= {"measured_lo_ns": measured.lo_ns, "measured_hi_ns": measured.hi_ns}
        if state.claimed.known:
            values |= {"claimed_offset_ns": state.claimed.estimate_ns, "claimed_bound_ns": state.claimed.bound_ns}
        why = "; ".join(state.reasons) or "no reason given"
        contained = [
            facts
            for facts in evidence.all(Facts)
            if facts.value.node == state.node and facts.value.text("virtualisation", "container") not in (None, "none")
        ]
        if state.state.value in ("unsynchronised", "free-running") and contained:
            yield draft(
                Severity.UNKNOWN,
                0.6,
                f"{state.node} is a container; nobody steers the clock from in here ({why}), its host may.",
                [item, contained[0]],
                values=values,
                next=("the same on the host",),
            )
        elif state.state.value in ("unsynchronised", "free-running"):
            yield draft(Severity.FAULT, 0.85, f"{state.node} is {state.state.value}: {why}.", [item], values=values)
        elif state.state.value == "holdover":
            yield draft(Severity.DEGRADED, 0.8, f"{state.node} is in holdover: {why}.", [item], values=values)
        elif state.state.value == "synchronised":
            agree = _agrees(state)
            if agree is False:
                yield draft(
                    Severity.FAULT,
                    0.85,
                    f"{state.node} claims an offset that the measured one excludes: the two intervals do not meet. "
                    "What the daemon says of itself is wrong (asymmetric path, wrong source), or the measured peer "
                    "is.",
                    [item],
                    values=values,
                    next=(f"rankclock probe {state.node}; measure against a third node",),
                )
            elif agree:
                yield draft(
                    Severity.HEALTHY,
                    0.85,
                    f"{state.node} is synchronised, claimed and measured agree: {why}.",
                    [item],
                    values=values,
                )


def _agrees(state: ClockState) -> bool | None:
    """Whether the claimed and the measured interval meet; None where one is unknown or they have other references."""
    claimed, measured = state.claimed, state.measured
    if not claimed.known or not measured.known or claimed.reference != measured.reference:
        return None
    assert claimed.lo_ns is not None and claimed.hi_ns is not None
    assert measured.lo_ns is not None and measured.hi_ns is not None
    return claimed.lo_ns <= measured.hi_ns and measured.lo_ns <= claimed.hi_ns


RULES = (
    Rule(
        id="PHC_MISMATCH",
        title="Ports with different PTP hardware clocks in one ptp4l (JBOD)",
        needs="ptp4l's log",
        check=_mismatch,
        reference="ptp4l(8) boundary_clock_jbod; nxp-archive/openil_linuxptp#33",
    ),
    Rule(
        id="PHC_READ_SLOW",
        title="Reading the PTP hardware clock takes long",
        needs="three offsets of phc2sys with their delay",
        check=_slow_read,
        arithmetic="median delay above 20 µs; bound = delay / 2",
        reference="linuxptp sysoff.c; nxp-archive/openil_linuxptp#20",
        explains=frozenset({"SERVO_LOCKED"}),
    ),
    Rule(
        id="TWO_CONTROLLERS",
        title="Two programs steer the system clock",
        needs="systemctl status or ps, facts of the node, or logs of both",
        check=_two_controllers,
        reference="systemd/systemd#7104; openshift/linuxptp-daemon#37",
    ),
    Rule(
        id="PHC2SYS_SIGN",
        title="phc2sys -O with the wrong sign",
        needs="the command line",
        check=_sign,
        arithmetic="-O is steered minus source: -37 for UTC from TAI, 37 for TAI from UTC",
        reference="phc2sys(8)",
    ),
    Rule(
        id="PHC2SYS_NO_OFFSET",
        title="phc2sys was not told the UTC offset",
        needs="its output",
        check=_not_told,
        reference="phc2sys(8)",
    ),
    Rule(
        id="PHC2SYS_WAITS",
        title="phc2sys does not reach ptp4l",
        needs="its log",
        check=_waiting,
        reference="phc2sys(8) -w -n -z",
    ),
    Rule(
        id="PHC_DEVICE_MISSING",
        title="chronyd cannot open its reference clock",
        needs="chronyd's log",
        check=_device,
        reference="gardenlinux/gardenlinux#2562; Azure/WALinuxAgent#3038",
    ),
    Rule(
        id="PHC_NOT_ADJUSTABLE",
        title="The clock cannot be steered",
        needs="the log of ptp4l or phc2sys",
        check=_not_adjustable,
        reference="amzn/amzn-drivers#350",
    ),
    Rule(
        id="SYSTEM_CLOCK_NOT_FED",
        title="The hardware clock is right, the system clock is not fed from it",
        needs="ptp4l's log and timedatectl",
        check=_no_feed,
        reference="ptp4l(8), phc2sys(8)",
    ),
    Rule(
        id="CLOCK_STATE",
        title="What the node's agent says of its clock",
        needs="rankclock status --json",
        check=_states,
        arithmetic="the claimed and the measured interval meet, or not",
        reference="docs/reference/facts.md",
    ),
)
