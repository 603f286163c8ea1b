"""Configuration lines and command lines of time daemons, as they are pasted: whole files, fragments, unit files,
prompts.

Only takes apart; what is wrong with a setting is for rules to say. A line that two dialects share belongs to both.
"""
# ruff: noqa: SIM905  (lists of words read best as words)

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from rankclock.wire.text.line import Line, prompt_of

__all__ = ["Command", "Directive", "read_command", "read_directive"]

_CHRONY = set(
    "pool peer refclock makestep rtcsync leapsectz leapseclist local allow deny hwtimestamp driftfile maxdistance "
    "logdir "
    "maxupdateskew bindcmdaddress cmdallow cmdport minsources initstepslew keyfile ntsdumpdir ntstrustedcerts "
    "sourcedir "
    "maxslewrate smoothtime corrtimeratio maxchange stratumweight combinelimit reselectdist sched_priority lock_all "
    "leapsecmode logchange rtcfile rtconutc confdir include authselectmode ntsserverkey ntsservercert server log "
    "manual "
    "maxclockerror dumpdir user acquisitionport port bindaddress bindacqaddress noclientlog clientloglimit ratelimit "
    "dumponexit generatecommandkey commandkey rtcautotrim hwclockfile opencommands bindcmddevice minsamples "
    "maxsamples".split()
)
_CHRONY_ONLY = _CHRONY - set("server pool peer driftfile include port user log logdir".split()) - {"manual"}
_NTP_ONLY = set("restrict fudge disable enable tinker tos statistics filegen statsdir crypto keys".split()) | {
    "interface",
    "leapfile",
    "tos",
    "rlimit",
    "broadcastclient",
    "trustedkey",
    "controlkey",
    "requestkey",
    "includefile",
    "multicastclient",
}
_NTP_SHARED = {"server", "pool", "peer", "driftfile", "include"}
_PTP = set(
    "domainNumber priority1 priority2 slaveOnly clientOnly masterOnly serverOnly clockClass clockAccuracy gmCapable "
    "offsetScaledLogVariance logAnnounceInterval logSyncInterval logMinDelayReqInterval logMinPdelayReqInterval "
    "announceReceiptTimeout syncReceiptTimeout delay_mechanism network_transport time_stamping tx_timestamp_timeout "
    "boundary_clock_jbod step_threshold first_step_threshold free_running clock_servo clock_type hybrid_e2e "
    "twoStepFlag "
    "inhibit_multicast_service unicast_listen unicast_master_table udp_ttl transportSpecific uds_address "
    "summary_interval "
    "neighborPropDelayThresh fault_reset_interval ptp_minor_version timeSource utc_offset egressLatency ingressLatency "
    "delayAsymmetry dataset_comparison sanity_freq_limit tsproc_mode delay_filter max_frequency freq_est_interval "
    "verbose "
    "use_syslog logging_level ptp_dst_mac p2p_dst_mac kernel_leap check_fup_sync assume_two_step follow_up_info "
    "BMCA inhibit_announce sa_file spp active_key_id clock_class_threshold operLogSyncInterval min_neighbor_prop_delay "
    "path_trace_enabled tc_spanning_tree net_sync_monitor ts2phc.nmea_serialport ts2phc.master ts2phc.extts_polarity "
    "ts2phc.pulsewidth ts2phc.pin_index ts2phc.channel ts2phc.extts_correction leapfile".split()
)
_SECTION = re.compile(r"^\s*\[(?P<name>[\w./: @-]+)\]\s*$")
_TIMESYNCD = re.compile(r"^\s*#?(?P<key>NTP|FallbackNTP|RootDistanceMaxSec|PollIntervalM\w+Sec)=(?P<value>.*)$")
_PROGRAMS = (
    "ptp4l phc2sys ts2phc timemaster chronyd chronyc ntpd ntpq ntpdate pmc ethtool timedatectl torchrun date testptp "
    "phc_ctl "
    "chrony-wait systemctl ntptime adjtimex tcpdump ping hwclock srun sbatch"
).split()
_WORD = re.compile(rf"(?:^|[\s/=;|(`]|[+-]?/[\w/.-]*/)(?P<program>{'|'.join(_PROGRAMS)})(?=\s|$|;)")
_UNIT_LINE = re.compile(
    r"^\s*(?:Exec(?:Start|StartPre|Stop)\s*=\s*[-+!@:]*|command:\s*|Command line:\s*|\+\s)(?P<command>.*)$"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Directive:
    """One configuration line.

    Dialects: who would understand it. section: of linuxptp and timemaster files, '' before one.
    """

    name: str
    arguments: tuple[str, ...]
    dialects: frozenset[str]
    section: str = ""
    commented: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command line that was typed or stands in a unit.

    Program: the time tool in it. host: of the prompt, '' unknown.
    """

    program: str
    arguments: tuple[str, ...]
    host: str = ""

    def option(self, *names: str) -> str | None:
        """The value of an option, None where it is not given.

        `-O 37`, `-O37`, `--step_threshold=1`; '' for a bare one.
        """
        for index, word in enumerate(self.arguments):
            for name in names:
                if word == name:
                    following = self.arguments[index + 1] if index + 1 < len(self.arguments) else ""
                    return following if following and (following[0] != "-" or following[1:2].isdigit()) else ""
                if name.startswith("--") and word.startswith(name + "="):
                    return word[len(name) + 1 :]
                if not name.startswith("--") and word.startswith(name) and not word.startswith("--") and len(name) == 2:
                    return word[2:]
        return None

    def has(self, letter: str) -> bool:
        """Whether a single-letter switch is given, alone or in a bundle: `-mq` has m and q."""
        return any(re.fullmatch(r"-[A-Za-z]+", word) and letter in word for word in self.arguments)


def read_command(line: Line) -> Command | None:
    """The time tool that a prompt line or an ExecStart line runs; None for any other line."""
    prompt = prompt_of(line.text)
    unit = None if prompt else _UNIT_LINE.match(line.body)
    text = prompt[1] if prompt else unit["command"] if unit else line.text.strip()
    match = _WORD.search(text)
    if match is None or (not prompt and not unit and match.start() > 0 and not text.startswith(("sudo ", "/"))):
        return None
    rest = text[match.end() :]
    if not prompt and not unit and not re.match(r"\s+-{1,2}\w", rest):
        return None
    # What a person wrote behind the command, in brackets or after a hash, is no argument of it.
    rest = re.split(
        r"\s(?:#|\(|&&|\||;|>|<|2>)", rest.split(";", 1)[0] if match["program"] == "date" else rest, maxsplit=1
    )[0]
    try:
        words = tuple(shlex.split(rest))
    except ValueError:
        words = tuple(rest.split())
    return Command(program=match["program"], arguments=words, host=prompt[0] if prompt else line.host)


def read_directive(line: Line, section: str) -> tuple[Directive | None, str]:
    """(the directive of a line or None, the section behind it). Comments and prose are no directives."""
    text = line.text.strip()
    if match := _SECTION.match(text):
        return None, match["name"]
    if match := _TIMESYNCD.match(text):
        return (
            Directive(
                name=match["key"],
                arguments=tuple(match["value"].split()),
                dialects=frozenset({"timesyncd"}),
                section=section,
                commented=text.startswith("#"),
            ),
            section,
        )
    if not text or text[0] in "#;!%" or line.program or line.wall_ns is not None:
        return None, section
    words = re.split(r"\s+#", text, maxsplit=1)[0].split()
    name, arguments = words[0], tuple(words[1:])
    dialects = {
        dialect
        for dialect, known in (("chrony", _CHRONY), ("ntp", _NTP_ONLY | _NTP_SHARED), ("ptp", _PTP))
        if name in known
    }
    if name in ("leapfile", "include", "interface") and len(arguments) != 1:
        return None, section
    if not dialects or not _shaped(name, arguments):
        return None, section
    return Directive(name=name, arguments=arguments, dialects=frozenset(dialects), section=section), section


_BARE = {
    "rtcsync",
    "manual",
    "dumponexit",
    "lock_all",
    "noclientlog",
    "rtconutc",
    "generatecommandkey",
    "rtcautotrim",
    "allow",
    "local",
}
_ADDRESS = re.compile(r"[\w.:\[\]%$*-]+\.[\w.:\[\]%$*-]+|[0-9a-fA-F:]{3,}:[0-9a-fA-F:]*|[A-Za-z][\w-]*$")
_SOURCE_OPTIONS = set(
    "iburst burst prefer noselect trust require minpoll maxpoll key nts xleave minsamples maxsamples "
    "polltarget offline "
    "auto_offline maxdelay maxdelayratio maxdelaydevratio maxdelayquant mindelay asymmetry maxsources version presend "
    "port ntsport certset copy extfield filter minstratum autokey ident mode true preempt ttl noval ipv4 ipv6 "
    "F323 F324 "
    "maxunreach offset".split()
)
_FREE = set("server pool peer".split())


def _shaped(name: str, arguments: Sequence[str]) -> bool:
    """Whether the words behind a directive's name look like its arguments and not like a sentence."""
    if name in _FREE:
        options = [word for word in arguments[1:] if not word.lstrip("-").replace(".", "").isdigit()]
        understood = all(word in _SOURCE_OPTIONS or word.startswith("0x") for word in options)
        address = bool(arguments) and bool(_ADDRESS.match(arguments[0])) and arguments[0][-1] not in ",:;"
        return address and understood
    if name in _BARE:
        return len(arguments) <= 4
    if name in ("log", "user", "port", "enable", "disable"):
        known = {
            "tracking",
            "measurements",
            "statistics",
            "auth",
            "monitor",
            "kernel",
            "ntp",
            "stats",
            "bclient",
            "pps",
        }
        return bool(arguments) and (arguments[0] in known or name in ("user", "port")) and len(arguments) < 8
    return 1 <= len(arguments) < 16 and not arguments[0].endswith((",", ":"))
