"""PTP between nodes: who is grandmaster, what it announces, and why a port does not follow."""

from __future__ import annotations

from collections.abc import Iterator

from rankclock.diagnosis.evidence import Evidence, Item
from rankclock.diagnosis.finding import Draft, Rule, Severity, draft
from rankclock.wire.text.pmc import PtpDataset

__all__ = ["RULES"]

TX_FAULT = "FAULT_DETECTED"


def _datasets(evidence: Evidence, *fields: str) -> list[Item[PtpDataset]]:
    return [one for one in evidence.all(PtpDataset) if any(field in one.value.fields for field in fields)]


def _stale(evidence: Evidence) -> Iterator[Draft]:
    listening = [
        one for one in _datasets(evidence, "portState") if one.value.fields["portState"] in ("LISTENING", "FAULTY")
    ]
    times = _datasets(evidence, "gmPresent", "ingress_time")
    frozen = [one for one in times if one.value.whole("gmPresent") == 1 and one.value.whole("ingress_time") == 0]
    if frozen or (listening and any(one.value.whole("gmPresent") == 1 for one in times)):
        shown = frozen or times
        offset = shown[0].value.whole("master_offset")
        state = listening[0].value.fields["portState"] if listening else None
        yield draft(
            Severity.FAULT,
            0.9 if frozen and listening else 0.75,
            "ptp4l lost its grandmaster and shows the last values that it had: gmPresent true and an old offset, "
            f"but {'the port is ' + state if state else 'no Sync has come'} and ingress_time is 0. The offset is no "
            "measurement any more.",
            [*listening[:1], *shown[:1]],
            values={
                "master_offset_ns": offset,
                "port_state": state,
                "ingress_time": shown[0].value.whole("ingress_time"),
            },
            next=("is the grandmaster up and reachable (tcpdump 'udp port 319 or 320')", "journalctl -u ptp4l"),
            confirm="ingress_time is younger than a few sync intervals and the port SLAVE",
        )
        return
    for one in listening:
        client = any(
            d.value.whole("slaveOnly") == 1 or d.value.whole("clientOnly") == 1
            for d in _datasets(evidence, "slaveOnly")
        )
        if one.value.fields["portState"] == "LISTENING":
            yield draft(
                Severity.FAULT if client else Severity.UNKNOWN,
                0.8 if client else 0.5,
                "the port is LISTENING: it hears no master"
                + (" and may only be a client, so it follows nobody." if client else "."),
                [one],
                values={"port_state": "LISTENING", "slave_only": client},
                next=(
                    "tcpdump -n -i IFACE 'udp port 320 or ether proto 0x88f7'; domain and transport as on the master?",
                ),
            )
            return


def _no_delay(evidence: Evidence) -> Iterator[Draft]:
    wrong = evidence.events("ptp-delay-mismatch")
    uncalibrated = [d for d in _datasets(evidence, "portState") if d.value.fields["portState"] == "UNCALIBRATED"]
    zero = [
        d
        for d in _datasets(evidence, "meanPathDelay")
        if d.value.number("meanPathDelay") == 0 and d.value.number("offsetFromMaster") == 0
    ]
    if wrong:
        yield draft(
            Severity.FAULT,
            0.9,
            f"'{wrong[0].value.line.body.split(': ')[-1]}': the two ends measure the delay in different ways (E2E "
            "against P2P), so no path delay is ever known and the port stays UNCALIBRATED.",
            wrong[:3],
            next=("the same delay_mechanism (E2E or P2P) on all ports of the path, switches too",),
            confirm="meanPathDelay is not 0.0 and the port is SLAVE",
        )
    elif zero and uncalibrated:
        yield draft(
            Severity.FAULT,
            0.75,
            "the port is UNCALIBRATED with offsetFromMaster 0.0 and meanPathDelay 0.0: Sync arrives, a path delay "
            "was never measured. Zero is no offset here. The delay requests are not answered (E2E against P2P, or "
            "the way back blocked).",
            [*uncalibrated[:1], *zero[:1]],
            values={"offset": None, "mean_path_delay": None, "port_state": "UNCALIBRATED"},
            next=("compare delay_mechanism with the master; tcpdump: Delay_Req out, Delay_Resp in?",),
            confirm="meanPathDelay is not 0.0",
        )


def _pmc_silent(evidence: Evidence) -> Iterator[Draft]:
    asked = [one for one in evidence.all(PtpDataset) if one.value.asked_only]
    answered = [one for one in evidence.all(PtpDataset) if one.value.identity]
    if asked and not answered:
        yield draft(
            Severity.UNKNOWN,
            0.6,
            "pmc sent its request and printed no reply; it exits with 0 all the same. Wrong domain (-d), wrong "
            "socket (-s), no right to the socket (root), wrong transportSpecific (-t), or ptp4l does not run. Not a "
            "word about the clock.",
            asked[:2],
            values={"replies": 0},
            next=("pmc -u -b 0 -d DOMAIN -s /var/run/ptp4l 'GET PORT_DATA_SET' as root; ps ax | grep ptp4l",),
        )


def _peers(evidence: Evidence) -> Iterator[Draft]:
    many = evidence.events("ptp-rogue-peer", "ptp-multiple-peers")
    if many:
        yield draft(
            Severity.FAULT,
            0.8,
            "more than one device answers this port's peer delay request: a switch that does not know PTP passes "
            "the messages on, so P2P cannot work on this link (or two ptp4l run on one interface).",
            many[:3],
            values={"rogue_responses": len(many)},
            next=("P2P needs every device on the path to take part: a PTP switch, or delay_mechanism E2E",),
            confirm="'multiple peer responses' and 'rogue peer' are gone",
            explains=("PORT_FAULTY",),
        )


def _as_capable(evidence: Evidence) -> Iterator[Draft]:
    lost = evidence.events("ptp-not-as-capable")
    if not lost:
        return
    why = lost[0].value.text("why")
    delay = lost[0].value.number("delay_ns")
    unanswered = evidence.events("ptp-no-pdelay")
    silent = "; its peer delay requests are not answered, the delay was never measured" if unanswered else ""
    yield draft(
        Severity.FAULT,
        0.7,
        f"the port is not asCapable ({why}{silent}): in the gPTP profile it then takes no part in synchronisation. "
        "A measured link delay beyond neighborPropDelayThresh (800 ns) means a device without gPTP in between, "
        "uncorrected PHY latencies, or software stamps; missing responses mean that the neighbour does not speak "
        "P2P.",
        [*lost[:3], *unanswered[:1]],
        values={"link_delay_ns": int(delay) if delay is not None else None},
        next=("is the neighbour a gPTP device on the same cable; raise neighborPropDelayThresh only after measuring",),
        confirm="'setting asCapable' and no 'resetting' for minutes",
    )


def _slave_only_boundary(evidence: Evidence) -> Iterator[Draft]:
    hits = evidence.events("ptp-master-in-slave-only")
    if hits:
        yield draft(
            Severity.FAULT,
            0.85,
            "the election wants this port to be master, but the node may only be a client (-s, slaveOnly 1): on a "
            "boundary clock its downlinks stay in LISTENING for ever and the nodes behind it get no time.",
            [*hits[:2], *evidence.commands("ptp4l")[:1]],
            values={"slave_only": True},
            next=("remove -s / slaveOnly from a boundary clock; serverOnly 1 on its downlinks instead",),
            confirm="the downlink is MASTER",
        )


def _faulty(evidence: Evidence) -> Iterator[Draft]:
    states = evidence.events("ptp-state")
    faults = [one for one in states if one.value.text("new") == "FAULTY"]
    if not faults:
        return
    down = [one for one in evidence.events("ptp-link") if one.value.text("state") == "down"]
    what = "its link is down" if down else "these lines do not tell why"
    yield draft(
        Severity.UNKNOWN,
        0.5,
        f"port {int(faults[0].value.number('port_n') or 0)} went to FAULTY ({faults[0].value.text('ft') or '?'}): "
        f"{what}.",
        [*faults[:2], *down[:2]],
        values={
            "port_state": "FAULTY",
            "role_before_fault": faults[0].value.text("old"),
            "link": "down" if down else None,
        },
        next=("the lines just before it with ptp4l -m -l 7; ip -s link show IFACE; ethtool IFACE",),
    )


def _flapping(evidence: Evidence) -> Iterator[Draft]:
    faults = [s for s in evidence.events("ptp-state") if s.value.text("why") == "SYNCHRONIZATION_FAULT"]
    if faults:
        yield draft(
            Severity.UNKNOWN,
            0.5,
            f"the port left SLAVE {len(faults)} times on SYNCHRONIZATION_FAULT: the servo reset itself because time "
            "jumped or the offset ran away. Why, these lines do not tell.",
            faults[:4],
            values={"synchronization_faults": len(faults)},
            next=("the offsets and clockcheck lines around them; who else steers the clock",),
        )


def _switch_phc(evidence: Evidence) -> Iterator[Draft]:
    hits = evidence.events("ptp-switch-phc")
    if hits:
        yield draft(
            Severity.FAULT,
            0.9,
            f"ptp4l could not switch clocks ({hits[0].value.text('why')}): boundary_clock_jbod 1 on ports without a "
            "PTP hardware clock of their own (software stamps: /dev/ptp-1), so the uplink goes FAULTY for ever, "
            "while the nodes behind follow this clock's free-running time and report good offsets.",
            [*hits[:2], *evidence.events("ptp-jbod")[:1]],
            next=(
                "boundary_clock_jbod 0 with software stamps or one shared PHC; 1 only where ports have different PHCs",
            ),
            confirm="the uplink reaches SLAVE",
            explains=("PORT_FAULTY",),
        )


def _port_well(evidence: Evidence) -> Iterator[Draft]:
    for one in _datasets(evidence, "portState"):
        state = one.value.fields["portState"]
        if state not in ("SLAVE", "MASTER", "GRAND_MASTER", "PASSIVE"):
            continue
        times = [
            d
            for d in _datasets(evidence, "master_offset")
            if d.value.whole("gmPresent") == 1 and d.value.whole("ingress_time")
        ]
        offset = times[0].value.whole("master_offset") if times else None
        if state == "SLAVE" and offset is not None and 0 < abs(offset) <= 100_000:
            yield draft(
                Severity.HEALTHY,
                0.7,
                f"the port is SLAVE, Sync arrives, and the offset is {offset} ns (ptp4l's own claim).",
                [one, times[0]],
                values={"port_state": state, "master_offset_ns": offset},
            )
            return


RULES = (
    Rule(
        id="PTP_VALUES_FROZEN",
        title="Old values of a lost grandmaster, or a port that listens in vain",
        needs="pmc PORT_DATA_SET and TIME_STATUS_NP",
        check=_stale,
        reference="measured with linuxptp 3.1.1: gmPresent and offset stay as they were",
    ),
    Rule(
        id="DELAY_NEVER_MEASURED",
        title="Sync arrives, the path delay is never measured",
        needs="ptp4l's log or pmc PORT_DATA_SET and CURRENT_DATA_SET",
        check=_no_delay,
        arithmetic="offsetFromMaster and meanPathDelay exactly 0.0 with portState UNCALIBRATED",
        reference="measured with linuxptp 3.1.1, P2P client on an E2E network",
    ),
    Rule(
        id="PMC_NO_REPLY",
        title="pmc got no reply",
        needs="pmc's output",
        check=_pmc_silent,
        reference="pmc(8); exit code 0 measured",
    ),
    Rule(
        id="ROGUE_PEER",
        title="More than one device answers a peer delay request",
        needs="ptp4l's log",
        check=_peers,
        reference="IEEE 1588-2019 11.4",
    ),
    Rule(
        id="NOT_AS_CAPABLE",
        title="The port is not asCapable",
        needs="ptp4l's or gptp's log",
        check=_as_capable,
        arithmetic="link delay against neighborPropDelayThresh (800 ns)",
        reference="IEEE 802.1AS 11.2.2",
    ),
    Rule(
        id="CLIENT_ONLY_BOUNDARY",
        title="A boundary clock that may only be a client",
        needs="ptp4l's log",
        check=_slave_only_boundary,
        reference="openshift/openshift-docs#39115; reproduced with 3.1.1",
    ),
    Rule(
        id="SWITCH_PHC_FAILED",
        title="boundary_clock_jbod without hardware clocks",
        needs="ptp4l's log",
        check=_switch_phc,
        reference="reproduced with linuxptp 3.1.1",
    ),
    Rule(
        id="PORT_FAULTY",
        title="A port is FAULTY",
        needs="ptp4l's log",
        check=_faulty,
        reference="ptp4l(8) fault_reset_interval",
    ),
    Rule(id="SYNC_FLAPPING", title="The servo resets again and again", needs="ptp4l's log", check=_flapping),
    Rule(
        id="PTP_PORT_WELL",
        title="The port follows its master",
        needs="pmc PORT_DATA_SET and TIME_STATUS_NP",
        check=_port_well,
    ),
)
