"""Messages of services that read the clock: etcd, Ceph, munge and Slurm, object stores, Kerberos, TLS, tokens,
Kubernetes, databases, build tools, packages, and the metrics and alerts that speak of clocks.
"""
# ruff: noqa: E501  (one message a line)

from __future__ import annotations

import re

from rankclock.wire.text.event import EventTable
from rankclock.wire.text.number import as_float

__all__ = ["EVENTS", "metric_of"]

_GO = r"-?(?:\d+h)?(?:\d+m(?!s))?[\d.]+(?:s|ms|us|µs|ns)"
_STAMP = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d)?"

EVENTS = EventTable(
    (
        # etcd, and others that state a difference of clocks
        (
            "etcd-drift",
            "clock difference against peer",
            rf"clock difference against peer (?P<peer>\S+) is too high \[(?P<drift>{_GO}) > (?P<limit>{_GO})\]",
        ),
        (
            "etcd-drift",
            "clock-drift",
            rf"(?:\"remote-peer-id\":\"(?P<peer>\w+)\".*)?\"clock-drift\":\"(?P<drift>{_GO})\"",
        ),
        (
            "etcd-drift",
            "clock drift",
            rf"clock drift (?:against|with) (?:peer|member) (?P<peer>\S+).*?(?P<drift>{_GO})",
        ),
        (
            "time-drift",
            "time drift between local",
            rf"time drift between local \((?P<local>{_STAMP})\) and remote(?: server)? \((?P<remote>{_STAMP})\).*?\((?P<drift>{_GO})\)",
        ),
        (
            "cockroach-offset",
            "clock synchronization error",
            r"this node is more than (?P<limit>\S+) away from at least half",
        ),
        (
            "mon-skew",
            "clock skew",
            r"(?P<mon>mon\.[\w.-]+)? ?(?:addr \S+ )?clock skew (?P<skew_s>[\d.]+)s > max (?P<limit_s>[\d.]+)s(?: \(latency (?P<latency_s>[\d.e-]+)s\))?",
        ),
        (
            "mon-skew-detected",
            "clock skew detected on",
            r"clock skew detected on (?P<mons>mon\.[\w.-]+(?:, mon\.[\w.-]+)*)",
        ),
        ("mon-skew-detected", "MON_CLOCK_SKEW", r"MON_CLOCK_SKEW(?P<mons>)"),
        ("mon-future", "in the future, clocks not synchronized", r"was stamped (?P<skew_s>[\d.]+)s in the future"),
        (
            "mon-lease",
            "clocks are too skewed",
            r"lease_expire from (?P<mon>\S+).*? is (?P<skew_s>[\d.]+) seconds in the past",
        ),
        # munge, Slurm, Kerberos
        ("munge-expired", "xpired credential", r"[Ee]xpired credential"),
        ("munge-rewound", "ewound credential", r"[Rr]ewound credential"),
        ("munge-invalid", "nvalid credential", r"[Ii]nvalid credential"),
        ("munge-encoded", "ENCODED", r"ENCODED: (?P<when>.+)"),
        ("munge-decoded", "DECODED", r"DECODED: (?P<when>.+)"),
        ("munge-encoded", "ENCODE_TIME", r"ENCODE_TIME:\s+(?P<when>.+)"),
        ("munge-decoded", "DECODE_TIME", r"DECODE_TIME:\s+(?P<when>.+)"),
        ("munge-ttl", "TTL:", r"^TTL:\s+(?P<ttl_s>\d+)"),
        ("kerberos-skew", "lock skew too great", r"[Cc]lock skew too great"),
        ("kerberos-skew", "AP_ERR_SKEW", r"AP_ERR_SKEW"),
        ("kerberos-not-yet", "icket not yet valid", r"[Tt]icket not yet valid"),
        ("kerberos-expired", "icket expired", r"[Tt]icket expired"),
        # object stores and signed requests
        (
            "s3-skew-body",
            "RequestTimeTooSkewed",
            r"<RequestTime>(?P<request>[^<]+)</RequestTime>.*?<ServerTime>(?P<server>[^<]+)</ServerTime>(?:.*?<MaxAllowedSkewMilliseconds>(?P<limit_ms>\d+))?",
        ),
        ("s3-skew", "RequestTimeTooSkewed", r"RequestTimeTooSkewed"),
        ("s3-skew", "RequestTime", r"difference between the request time and the (?:server's|current) time"),
        (
            "s3-skew",
            "difference between the request time",
            r"difference between the request time and the (?:server's|current) time",
        ),
        (
            "sigv4-expired",
            "Signature expired",
            r"Signature expired: (?P<request>\d{8}T\d{6}Z) is now earlier than (?P<earliest>\d{8}T\d{6}Z) \((?P<server>\d{8}T\d{6}Z) - (?P<allowed>\d+) min",
        ),
        (
            "sigv4-early",
            "Signature not yet current",
            r"Signature not yet current: (?P<request>\d{8}T\d{6}Z) is still later than (?P<latest>\d{8}T\d{6}Z) \((?P<server>\d{8}T\d{6}Z) \+ (?P<allowed>\d+) min",
        ),
        ("azure-date", "Request date header too old", r"Request date header too old: '(?P<request>[^']+)'"),
        # TLS and tokens
        (
            "tls-time",
            "certificate has expired or is not yet valid",
            rf"not yet valid: current time (?P<now>{_STAMP}) is (?P<way>before|after) (?P<limit>{_STAMP})",
        ),
        ("tls-time", "certificate has expired or is not yet valid", r"has expired or is not yet valid(?P<way>)"),
        ("tls-time", "certificate is not yet valid", r"certificate is (?P<way>not yet valid)"),
        ("tls-time", "certificate is not valid yet", r"certificate is (?P<way>not valid yet)"),
        ("tls-expired", "certificate has expired", r"certificate has expired"),
        ("tls-not-before", "notBefore=", r"notBefore=(?P<when>.+)"),
        ("token-early", "Token used before issued", r"Token used before issued"),
        ("token-early", "token is not yet valid", r"token is not yet valid(?: \((?P<claim>\w+)\))?"),
        ("token-early", "JWTIssuedAtFuture", r"JWTIssuedAtFuture"),
        ("token-early", "issued in the future", r"(?i)token.*issued in the future"),
        ("token-early", "Issued at", r"(?i)issued at .*in the future"),
        # files and build tools
        (
            "file-future",
            "in the future",
            r"[Ff]ile ['`\"]?(?P<file>[^'\"`]+?)['\"`]? has modification time (?P<skew_s>[\d.e+]+) ?s in the future",
        ),
        (
            "file-future",
            "in the future",
            r"(?P<file>\S+): time ?stamp (?P<when>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?) is (?P<skew_s>[\d.]+) ?s in the future",
        ),
        ("file-future", "in the future", r"File (?P<file>\S+) has a time ?stamp (?P<skew_s>[\d.]+) ?s in the future"),
        (
            "file-future",
            "in the future",
            r"(?P<file>\S+).{0,60}?(?:mtime|time ?stamp|modified|dated).{0,40}in the future",
        ),
        ("build-skew", "Clock skew detected", r"(?:^|: +)Clock skew detected\."),
        ("ninja-dirty", "still dirty after", r"manifest '(?P<file>[^']+)' still dirty after (?P<tries_n>\d+) tries"),
        (
            "ninja-older",
            "older than most recent input",
            r"output (?P<output>\S+) (?:of \S+ )?older than most recent input (?P<input>\S+) \((?P<output_at>\d+) vs (?P<input_at>\d+)\)",
        ),
        (
            "apt-not-valid",
            "is not valid yet",
            r"Release file for (?P<file>\S+) is not valid yet \(invalid for another (?P<skew>[^)]+)\)",
        ),
        ("fs-future", "superblock", r"(?i)superblock last (?:mount|write) time.*in the future"),
        ("fs-future", "Superblock", r"(?i)superblock last (?:mount|write) time.*in the future"),
        # metrics, alerts and settings that are spoken of
        ("alert", "NodeClockSkewDetected", r"(?P<alert>NodeClockSkewDetected)"),
        ("alert", "NodeClockNotSynchronising", r"(?P<alert>NodeClockNotSynchronising)"),
        (
            "no-rtcsync",
            "rtcsync",
            r"(?i)(?:no (?:line|directive|entry)?s?:? *['\"`]?rtcsync|(?:without|lacks?|missing|not set:?|has no) +['\"`]?rtcsync|rtcsync['\"`]? (?:is )?(?:missing|not set|absent|commented)|^\s*[#;!%]\s*rtcsync\s*$)",
        ),
        ("testptp-set", "testptp", r"testptp .*-T +(?P<set_s>\d{1,12})"),
        ("testptp-get", "clock time:", r"clock time: (?P<phc_s>\d{1,12}\.\d+)"),
        ("phc-ctl-set", "phc_ctl", r"phc_ctl .*\bset +(?P<set_s>\d{1,12}(?:\.\d+)?)"),
        ("phc-ctl-get", "clock time is", r"clock time is (?P<phc_s>\d{1,12}\.\d+)"),
        ("phc-ctl-offset", "offset from CLOCK_REALTIME is", r"offset from CLOCK_REALTIME is (?P<offset_ns>-?\d+)ns"),
        ("nmea", "RMC,", r"\$?G[PNLAB]RMC,(?P<time>[\d.]*),(?P<valid>[AV])"),
    )
)

_METRIC = re.compile(
    r"(?P<name>(?:node_timex|node_ntp|chrony|openshift_ptp|ptp|ntp|ceph_monitor)_[a-z_]+)(?:\{(?P<labels>[^}]*)\})?(?:\s*[=:]\s*|\s+)(?P<value>[-+]?\d[\d.]*(?:[eE][-+]?\d+)?|NaN)\b"
)


def metric_of(text: str) -> tuple[str, str, float] | None:
    """(name, labels, value) of a Prometheus sample about clocks, None where the line holds none."""
    match = _METRIC.search(text)
    value = as_float(match["value"]) if match is not None and len(match["value"]) <= 40 else None
    if match is None or value is None:
        return None
    return match["name"], match["labels"] or "", value
