"""Faults that a configuration shows by itself.

What `rankclock lint` says of whole files is more; here is what explains trouble.
"""

from __future__ import annotations

from collections.abc import Iterator

from rankclock.diagnosis.evidence import Evidence, Item
from rankclock.diagnosis.finding import Draft, Rule, Severity, draft
from rankclock.wire.text.chronyc import Tracking
from rankclock.wire.text.config_text import Command, Directive
from rankclock.wire.text.number import as_int

__all__ = ["RULES", "smears"]

SMEARING = ("169.254.169.123", "fd00:ec2::123", "metadata.google.internal", "169.254.169.254", "time.aws.com")
SMEARING_NAMES = ("google.com", "goog", "aws.com", "facebook.com", "meta.com")
"""Sources that smear leap seconds: AWS, Google, Meta (their public documentation)."""


def smears(source: str) -> bool:
    """Whether a source is known to smear leap seconds."""
    name = source.lower().rstrip(".")
    if name in SMEARING:
        return True
    labels = name.split(".")
    timed = labels[0].startswith("time") or (labels[0].isdigit() and "time" in labels[1:2])
    return timed and name.endswith(SMEARING_NAMES)


def _sources(evidence: Evidence) -> list[Item[Directive]]:
    return [*evidence.directives("chrony", "server", "pool", "peer"), *evidence.directives("timesyncd", "NTP")]


def _names(items: list[Item[Directive]]) -> list[str]:
    names: list[str] = []
    for item in items:
        words = item.value.arguments if "timesyncd" in item.value.dialects else item.value.arguments[:1]
        names.extend(words)
    return list(dict.fromkeys(names))


def _smear_mix(evidence: Evidence) -> Iterator[Draft]:
    items = [item for item in _sources(evidence) if "noselect" not in item.value.arguments]  # watched, not followed
    names = [n for n in _names(items) if not n.startswith("127.127.")]
    smearing = [n for n in names if smears(n)]
    plain = [n for n in names if not smears(n)]
    phc = [d for d in evidence.directives("chrony", "refclock") if any("ptp_ena" in a for a in d.value.arguments)]
    if not smearing or not (plain or phc):
        return
    others = plain or [d.value.arguments[1] for d in phc if len(d.value.arguments) > 1]
    private = plain and all(_private(n) for n in plain)
    yield draft(
        Severity.RISK,
        0.6 if private else 0.9,
        f"{', '.join(smearing)} smear leap seconds, {', '.join(others[:4])} {'may' if private else 'do'} not: for a "
        "day around a leap second they differ by up to a second, and nodes follow one or the other. Do not mix "
        "them: all sources smear, or none does. More servers of the wrong kind are no redundancy.",
        [
            *[i for i in items if set(_names([i])) & set(smearing)][:2],
            *[i for i in items if set(_names([i])) & set(plain)][:2],
        ],
        values={"smearing": smearing, "non_smearing": others},
        next=("keep the provider's source alone (it is redundant in itself), or unsmeared servers only",),
        confirm="grep -E '^(server|pool)' over all nodes gives one kind",
    )


def _private(name: str) -> bool:
    return name.startswith(("10.", "192.168.", "192.0.2.", "198.51.100.", "203.0.113.", "172.")) or "." not in name


def _leap_table(evidence: Evidence) -> Iterator[Draft]:
    table = evidence.directives("chrony", "leapsectz", "leapseclist")
    items = _sources(evidence)
    smearing = [n for n in _names(items) if smears(n)]
    host_clock = [
        d
        for d in evidence.directives("chrony", "refclock")
        if any(w in a for a in d.value.arguments for w in ("ptp_kvm", "ptp_hyperv"))
    ]
    if table and (smearing or host_clock):
        source = smearing[0] if smearing else " ".join(host_clock[0].value.arguments[:2])
        yield draft(
            Severity.RISK,
            0.85 if smearing else 0.6,
            f"{table[0].value.name} tells chronyd of leap seconds while {source} already smears them away: at a "
            "leap second the correction is applied twice. With smearing sources leapsectz and leapseclist must be "
            "off.",
            [*table[:1], *[i for i in items if set(_names([i])) & set(smearing)][:1], *host_clock[:1]],
            values={"smearing": smearing, "leap_table": table[0].value.name},
            next=(f"remove {table[0].value.name}, or the smearing source",),
            confirm="chronyc tracking on the day of the next leap second; nothing to see before",
        )


def _local_driver(evidence: Evidence) -> Iterator[Draft]:
    local = [
        d
        for d in [*evidence.directives("ntp", "server"), *evidence.directives("chrony", "server")]
        if d.value.arguments[0].startswith("127.127.1.")
    ]
    unique = list({(d.source, d.first): d for d in local}.values())
    if not unique:
        return
    ntp = any(d.value.dialects == frozenset({"ntp"}) for d in evidence.directives("ntp"))
    chrony = any(d.value.dialects == frozenset({"chrony"}) for d in evidence.directives("chrony"))
    if (chrony or len(evidence.all(Tracking)) > 0) and not ntp:
        yield draft(
            Severity.FAULT,
            0.85,
            f"'server {unique[0].value.arguments[0]}' is ntpd's syntax for its local clock driver. chrony has no "
            "such drivers: to it this is a host that never answers. 'local stratum 10' is the directive, and only "
            "for a deliberate island.",
            unique[:1],
            values={"local_clock": True},
            next=("remove the line; give real servers",),
            confirm="chronyc sources shows a real source with *",
        )


def _ntp_conf(evidence: Evidence) -> Iterator[Draft]:
    own = [d for d in evidence.directives("ntp") if d.value.dialects == frozenset({"ntp"})]
    servers = evidence.directives("ntp", "server", "pool", "peer")
    local = [d for d in servers if d.value.arguments[0].startswith("127.127.1.")]
    if not (own or local) or (evidence.all(Tracking) and not own):
        return
    real = [d for d in servers if not d.value.arguments[0].startswith("127.127.")]
    pools = [d for d in real if d.value.name == "pool"]
    no_auth = [d for d in own if d.value.name == "disable" and "auth" in d.value.arguments]
    restricts = [d for d in own if d.value.name == "restrict"]
    wrong = []
    if len(real) == 1 and not pools:
        wrong.append(
            f"only one real server ({real[0].value.arguments[0]}): nobody can tell when it is wrong, and nothing is "
            "left when it is down"
        )
    if local:
        wrong.append(
            "server 127.127.1.0, the undisciplined local clock, takes over silently when the servers fail and still "
            "looks synchronised"
        )
    if real and not pools and not any("iburst" in d.value.arguments for d in real) and (len(real) == 1 or local):
        wrong.append("no iburst: minutes instead of seconds until the first synchronisation")
    if no_auth:
        wrong.append("'disable auth' takes unauthenticated peers and broadcasts")
    if restricts and not any("default" in d.value.arguments for d in restricts) and (local or no_auth):
        wrong.append("no 'restrict default': anybody may query and modify")
    if not wrong or not (local or no_auth or (len(real) == 1 and not pools)):
        return
    yield draft(
        Severity.RISK,
        0.8 if local or len(real) == 1 else 0.6,
        "ntp.conf: " + "; ".join(wrong) + ".",
        [*local[:1], *real[:1], *no_auth[:1], *restricts[:1]],
        values={"real_sources": len(real), "local_clock": bool(local)},
        next=(
            "four servers with iburst, 'restrict default nomodify notrap nopeer noquery', no 127.127.1.0 (tos "
            "orphan 10 where an island is wanted)",
            "a DHCP client must not rewrite the servers: PEERNTP=no",
        ),
        confirm="ntpq -pn shows * at a real server",
    )


def _single_source(evidence: Evidence) -> Iterator[Draft]:
    own = [d for d in evidence.directives("chrony") if d.value.dialects == frozenset({"chrony"})]
    sources = evidence.directives("chrony", "server", "pool", "refclock")
    if len(own) < 2 or len(sources) != 1 or sources[0].value.name == "pool":
        return
    name = sources[0].value.arguments[0]
    if smears(name) or name.startswith("127.") or sources[0].value.name == "refclock":
        return
    yield draft(
        Severity.EXPLAINED,
        0.4,
        f"{name} is the only source: nobody can tell when it is wrong, and nothing is left when it is down. Fine on "
        "a client of a redundant cluster server, a risk elsewhere.",
        sources[:1],
        values={"real_sources": 1},
        next=("two more independent servers",),
    )


def _unlimited_steps(evidence: Evidence) -> Iterator[Draft]:
    """makestep 1 -1 together with a training job in the same evidence."""
    steps = [d for d in evidence.directives("chrony", "makestep") if d.value.arguments[1:2] == ("-1",)]
    jobs = evidence.commands("torchrun", "srun", "sbatch")
    if steps and jobs:
        yield draft(
            Severity.RISK,
            0.6,
            "makestep with limit -1 lets the clock jump in the middle of a run: keep-alives, file times and logs "
            "then lie. On training nodes step at the start only (makestep 1 3) and slew afterwards.",
            [steps[0], jobs[0]],
            values={"limit": -1},
            next=("makestep 1 3",),
        )


def _ptp_conf(evidence: Evidence) -> Iterator[Draft]:
    """Each source for itself: files of several nodes say nothing of each other's roles."""
    with_settings = [source for source in evidence.sources if _settings(evidence, source)]
    for source in with_settings:
        commands = evidence.commands("ptp4l")
        if len(with_settings) > 1:
            commands = [command for command in commands if command.source == source]
        yield from _one_ptp_conf(evidence, source, [command for command in commands if command.value.has("s")])


def _settings(evidence: Evidence, source: str, *names: str) -> list[Item[Directive]]:
    return [item for item in evidence.directives("ptp", *names) if item.source == source]


def _one_ptp_conf(evidence: Evidence, source: str, cli: list[Item[Command]]) -> Iterator[Draft]:
    def value(name: str) -> tuple[str, Item[Directive] | None]:
        found = _settings(evidence, source, name)
        return (found[-1].value.arguments[0], found[-1]) if found else ("", None)

    software, software_line = value("time_stamping")
    jbod, jbod_line = value("boundary_clock_jbod")
    if jbod == "1" and software in ("software", "legacy") and jbod_line and software_line:
        yield draft(
            Severity.FAULT,
            0.85,
            f"boundary_clock_jbod 1 with time_stamping {software}: ports without PTP hardware clocks cannot be "
            "switched between them, the uplink goes FAULTY for ever ('failed to open /dev/ptp-1') while the nodes "
            "behind it report good offsets.",
            [jbod_line, software_line],
            next=("boundary_clock_jbod 0",),
            confirm="the uplink reaches SLAVE",
        )
    slave, slave_line = value("slaveOnly")
    if slave != "1":
        slave, slave_line = value("clientOnly")
    masters = [d for d in _settings(evidence, source, "masterOnly", "serverOnly") if d.value.arguments[0] == "1"]
    if masters and (slave == "1" or cli):
        yield draft(
            Severity.FAULT,
            0.85,
            "the node may only be a client (-s, slaveOnly) and has a port that must be master "
            "(masterOnly/serverOnly): a boundary clock set up like this leaves its downlinks in LISTENING, the rack "
            "gets no time.",
            [*masters[:1], *([slave_line] if slave == "1" and slave_line else []), *cli[:1]],
            values={"slave_only": True},
            next=("no -s and no slaveOnly on boundary clocks",),
            confirm="the downlink is MASTER",
        )
    free, free_line = value("free_running")
    if (
        free == "1"
        and free_line
        and not _meant_to_lead(value("priority1")[0], value("priority2")[0], value("clock_type")[0])
    ):
        yield draft(
            Severity.RISK,
            0.7,
            "free_running 1: ptp4l measures and never corrects; its port stays UNCALIBRATED by design.",
            [free_line],
            next=("free_running 0 where this ptp4l is to steer the clock",),
        )
    cls, cls_line = value("clockClass")
    if cls == "6" and cls_line:
        yield draft(
            Severity.RISK,
            0.75,
            "clockClass 6 in a configuration file is a claim that does not depend on the lock: this clock says "
            "'locked to a primary reference' also when its GPS is gone, and on every node that the file is copied "
            "to. Set it from a supervisor while locked.",
            [cls_line],
            values={"clockClass": 6},
            next=("248 in the file; pmc SET GRANDMASTER_SETTINGS_NP on lock, and back on loss",),
        )


def _meant_to_lead(priority1: str, priority2: str, clock_type: str) -> bool:
    """Whether a clock that ptp4l does not steer is meant: a grandmaster that others feed, or a transparent clock."""
    numbers = [128 if (number := as_int(text)) is None else number for text in (priority1, priority2)]
    return clock_type.endswith("_TC") or numbers[0] < 128 or (numbers[0] == 128 and numbers[1] < 128)


def _parse_errors(evidence: Evidence) -> Iterator[Draft]:
    unknown = evidence.events("ptp-unknown-option")
    bad = evidence.events("ptp-bad-value", "ptp-port-count", "ptp-no-interface")
    if unknown:
        option = unknown[0].value.text("option")
        section = unknown[0].value.text("section")
        yield draft(
            Severity.FAULT,
            0.9,
            f"linuxptp does not start: it does not know '{option}'{f' in section {section}' if section else ''}. "
            "Either this version has no such option (3.1.1 knows slaveOnly and masterOnly, not clientOnly and "
            "serverOnly; ptp_minor_version needs 4.2), or it belongs into [global].",
            unknown[:2],
            values={"option": option, "line": unknown[0].value.number("at_n"), "daemon_running": False},
            next=("ptp4l -v; the sample configuration of that very version",),
            confirm="ptp4l -f FILE -q -m says no more than 'no interface specified'",
            explains=("PTP4L_NOT_STARTED",),
        )
    elif bad:
        yield draft(
            Severity.FAULT,
            0.85,
            f"linuxptp does not start: {bad[0].value.line.body}. (A comment behind a value is part of the value to "
            "it.)",
            bad[:2],
            values={"daemon_running": False},
            next=("ptp4l -f FILE -q -m names option and line",),
            confirm="it starts",
            explains=("PTP4L_NOT_STARTED",),
        )


def _not_started(evidence: Evidence) -> Iterator[Draft]:
    dead = evidence.events("ptp-no-clock")
    busy = evidence.events("ptp-bind-failed")
    if busy and "in use" in busy[0].value.text("why"):
        yield draft(
            Severity.FAULT,
            0.8,
            "the port or socket is taken: another ptp4l (or ptpd, or timemaster's) runs on this interface.",
            busy[:2],
            next=("ps ax | grep -E 'ptp4l|ptpd|timemaster'",),
            confirm="it starts",
        )
    elif dead:
        yield draft(
            Severity.UNKNOWN,
            0.5,
            "ptp4l did not start ('failed to create a clock'); the line that says why is missing.",
            [*dead[:1], *evidence.events("ptp-open-failed")[:1]],
            values={"daemon_running": False},
            next=("ptp4l -f FILE -i IFACE -m -q -l 7; ethtool -T IFACE",),
        )


def _domains(evidence: Evidence) -> Iterator[Draft]:
    found: dict[str, Item[object]] = {}
    for item in evidence.commands("ptp4l", "phc2sys", "pmc"):
        option = item.value.option("--domainNumber") or item.value.option(
            "-n" if item.value.program == "phc2sys" else "-d"
        )
        if option is None and item.value.program == "phc2sys" and item.value.has("a"):
            option = "0"
        if option and as_int(option) is not None:
            found.setdefault(f"{item.value.program} {option}", item)  # type: ignore[arg-type]
    for directive in evidence.directives("ptp", "domainNumber"):
        if as_int(directive.value.arguments[0]) is not None:
            found.setdefault(f"ptp4l {directive.value.arguments[0]}", directive)  # type: ignore[arg-type]
    numbers = {name.split()[1] for name in found}
    programs = {name.split()[0] for name in found}
    if len(numbers) > 1 and "ptp4l" in programs and len(programs) > 1:
        yield draft(
            Severity.FAULT,
            0.75,
            f"different domains on one node ({', '.join(sorted(found))}): phc2sys -n and pmc -d must be ptp4l's "
            "domainNumber, otherwise they get no answer and wait for ever.",
            list(found.values())[:3],
            values={"domains": sorted(as_int(n) or 0 for n in numbers)},
            next=("phc2sys -n DOMAIN, pmc -d DOMAIN",),
            confirm="pmc answers",
            explains=("PMC_NO_REPLY",),
        )


RULES = (
    Rule(
        id="SMEAR_MIX",
        title="Sources that smear leap seconds beside sources that do not",
        needs="the source lines of chrony.conf, ntp.conf or timesyncd.conf",
        check=_smear_mix,
        arithmetic="up to 1 s around a leap second (11.6 ppm over 24 h)",
        reference="coreos/fedora-coreos-config#957; developers.google.com/time/smear",
    ),
    Rule(
        id="LEAP_TABLE_WITH_SMEAR",
        title="A leap second table beside a source that smears",
        needs="chrony.conf",
        check=_leap_table,
        reference="chrony.conf(5) leapsectz; coreos/fedora-coreos-config#957",
    ),
    Rule(
        id="LOCAL_DRIVER_IN_CHRONY",
        title="ntpd's local clock driver in chrony.conf",
        needs="chrony.conf",
        check=_local_driver,
        reference="cturra/docker-ntp#63",
    ),
    Rule(
        id="NTP_CONF_WEAK",
        title="ntp.conf with one server or the local clock",
        needs="ntp.conf",
        check=_ntp_conf,
        arithmetic="real servers counted",
        reference="clustervision/trinity#260",
    ),
    Rule(
        id="SINGLE_SOURCE",
        title="One source only",
        needs="chrony.conf",
        check=_single_source,
        arithmetic="sources counted",
    ),
    Rule(
        id="STEPS_IN_MID_RUN",
        title="Unlimited steps on a training node",
        needs="chrony.conf and a job's command line",
        check=_unlimited_steps,
    ),
    Rule(
        id="PTP4L_CONF",
        title="Settings of ptp4l that exclude each other or claim too much",
        needs="ptp4l.conf, the command line",
        check=_ptp_conf,
        reference="ptp4l(8); reproduced with 3.1.1",
    ),
    Rule(
        id="LINUXPTP_OPTION",
        title="linuxptp does not accept its configuration",
        needs="its output",
        check=_parse_errors,
        reference="config.c of the versions 3.1.1 to 4.4",
    ),
    Rule(id="PTP4L_NOT_STARTED", title="ptp4l did not start", needs="its output", check=_not_started),
    Rule(
        id="DOMAINS_DIFFER",
        title="Different PTP domains on one node",
        needs="command lines, ptp4l.conf",
        check=_domains,
        reference="phc2sys(8) -n",
    ),
)
