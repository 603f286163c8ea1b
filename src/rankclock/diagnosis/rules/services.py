"""Services that compare clocks or times: etcd, Ceph, munge, Kerberos, object stores, TLS, tokens, and `date` itself."""

from __future__ import annotations

from collections.abc import Iterator

from rankclock.diagnosis.arithmetic import fit_ramp
from rankclock.diagnosis.dates import date_difference, date_readings
from rankclock.diagnosis.evidence import Evidence, Item
from rankclock.diagnosis.finding import Draft, Rule, Severity, draft
from rankclock.diagnosis.notes import DateReading
from rankclock.wire.text.event import Event
from rankclock.wire.text.moment import find_moments, moment_at
from rankclock.wire.text.number import as_float, duration_ns

__all__ = ["RULES"]

MUNGE_TTL_S = 300

S3_LIMIT_S = 900

KERBEROS_LIMIT_S = 300

HOUR_S = 3_600

NEAR_HOUR_S = 30

PING_PONG_S = 2
"""Readings of `date` on several hosts in one paste are apart by the ssh between them: two seconds cover it."""


def _etcd(evidence: Evidence) -> Iterator[Draft]:
    by_peer: dict[str, list[tuple[Item[Event], float]]] = {}
    for one in evidence.events("etcd-drift"):
        drift = duration_ns(one.value.text("drift"))
        if drift is not None:
            by_peer.setdefault(one.value.text("peer"), []).append((one, drift / 1e9))
    for peer, rows in by_peer.items():
        offsets = [offset for _, offset in rows]
        mean = sum(offsets) / len(offsets)
        limit = duration_ns(rows[0][0].value.text("limit")) if rows[0][0].value.text("limit") else 1_000_000_000
        values: dict[str, object] = {
            "offset_s": round(mean, 6),
            "peer": peer or None,
            "limit_s": (limit or 0) / 1e9,
            "samples": len(rows),
        }
        ramp = fit_ramp([((o.value.line.wall_ns or 0) / 1e9, s) for o, s in rows if o.value.line.wall_ns is not None])
        course = ""
        if ramp is not None:
            values |= {"slope_ppm": round(ramp.slope_ppm, 2), "slope_error_ppm": round(ramp.error_ppm, 2)}
            settled = abs(ramp.slope_ppm) < 200
            course = (
                f", changing by {ramp.slope_ppm:+.2f} ± {ramp.error_ppm:.2f} ppm: neither stepping nor converging, "
                "at least one of the two runs free"
                if settled
                else f", changing by {ramp.slope_ppm:+.0f} ppm: one of the two is being corrected, or runs away"
            )
        yield draft(
            Severity.FAULT,
            0.9,
            f"etcd measures its clock {mean:.6f} s from that of peer {peer or '?'}{course}. etcd's own log order, "
            "leases and TTLs suffer; Raft does not read the clock. The number is unsigned: which of the two is "
            "wrong, it does not say.",
            [one for one, _ in rows[:4]],
            values=values,
            next=("date -u; chronyc tracking on both members", "chronyd on all members of the cluster, same servers"),
            confirm="no further 'clock difference' warnings",
        )


def _stated_drift(evidence: Evidence) -> Iterator[Draft]:
    for one in evidence.events("time-drift"):
        local, remote = (moment_at(one.value.text(n)) for n in ("local", "remote"))
        skew = (local.unix_ns - remote.unix_ns) / 1e9 if local and remote else None
        hour = (
            skew is not None
            and abs(abs(skew) - round(abs(skew) / HOUR_S) * HOUR_S) < NEAR_HOUR_S
            and abs(skew) > HOUR_S / 2
        )
        yield draft(
            Severity.FAULT,
            0.85,
            "a program compared the two clocks: local minus remote is "
            f"{skew if skew is not None else one.value.text('drift')} s."
            + (" Close to whole hours: a time zone set as clock time." if hour else ""),
            [one],
            values={"skew_s": skew},
            next=("date -u; timedatectl on both",),
            confirm="both agree to the second",
        )
        return
    for one in evidence.events("cockroach-offset"):
        yield draft(
            Severity.FAULT,
            0.85,
            f"the database measured its clock more than {one.value.text('limit')} from at least half of its nodes "
            "and stopped itself.",
            [one],
            values={"limit": one.value.text("limit")},
            next=("chronyc tracking on all nodes",),
        )
        return


def _ceph(evidence: Evidence) -> Iterator[Draft]:
    skews = evidence.events("mon-skew")
    named = evidence.events("mon-skew-detected")
    leases = evidence.events("mon-lease", "mon-future")
    if not (skews or named or leases):
        return
    first = (skews or leases or named)[0]
    skew = first.value.number("skew_s")
    limit = (skews[0].value.number("limit_s") if skews else None) or 0.05
    monitors = [e.value.text("mon") for e in skews if e.value.text("mon")] or [
        m for e in named for m in e.value.text("mons").split(", ") if m
    ]
    values: dict[str, object] = {"limit_s": limit, "monitors": list(dict.fromkeys(monitors))}
    if skew is not None:
        values["skew_s"] = skew
    latency = skews[0].value.number("latency_s") if skews else None
    if latency is not None:
        values["latency_s"] = latency
    yield draft(
        Severity.FAULT if skew is None or skew > limit else Severity.RISK,
        0.85,
        f"Ceph's monitors find a clock {f'{skew:g} s' if skew is not None else 'more than its limit'} away from the "
        f"leader's (limit {limit:g} s{f', measured over {latency * 1e3:.1f} ms' if latency else ''}). Beyond it "
        "leases expire early and monitors call elections. Right after a start it can be a clock that has not "
        "settled.",
        [*skews[:3], *named[:2], *leases[:2]],
        values=values,
        next=(
            "ceph time-sync-status; chronyc tracking on each monitor",
            "the same few servers for all monitors; do not raise mon_clock_drift_allowed",
        ),
        confirm="HEALTH_OK, and skews below a millisecond in ceph time-sync-status",
    )


def _moments(items: list[Item[Event]]) -> int | None:
    for item in items:
        for moment in find_moments(item.value.text("when")):
            return moment.unix_ns
    return None


def _munge(evidence: Evidence) -> Iterator[Draft]:
    expired, rewound = evidence.events("munge-expired"), evidence.events("munge-rewound")
    if not expired and not rewound:
        yield from _munge_key(evidence)
        return
    encoded, decoded = evidence.events("munge-encoded"), evidence.events("munge-decoded")
    ttl = evidence.events("munge-ttl")
    limit = int(as_float(ttl[0].value.text("ttl_s")) or MUNGE_TTL_S) if ttl else MUNGE_TTL_S
    first, second = _moments(encoded), _moments(decoded)
    values: dict[str, object] = {"limit_s": limit}
    dates = date_difference(evidence)
    consistent = ""
    if dates is not None:
        behind, ahead, apart = dates
        values |= {
            "date_skew_s": apart,
            "ahead": f"decoder ({ahead})" if expired else f"encoder ({ahead})",
            "behind": behind,
        }
        consistent = f" `date` on {ahead} and {behind} gives {apart} s."
    if first is not None and second is not None:
        skew = round((second - first) / 1e9)
        values["skew_s"] = skew
        if dates is not None:
            agree = abs(abs(skew) - dates[2]) <= 10
            consistent = consistent.rstrip(".") + (
                ": consistent." if agree else ": that does not fit, one of the two was mended meanwhile."
            )
        what = _munge_moments(skew, limit)
        confidence = 0.95 if dates is not None and abs(abs(skew) - dates[2]) <= 10 else 0.85
    else:
        what = (
            f"munge found the credential older than its life of {limit} s: the decoding host's clock is ahead, or "
            "the message was kept that long."
            if expired
            else "munge found the credential to be from the future ('rewound'): the encoding host's clock is ahead of "
            "the decoding one's."
        )
        confidence = 0.8
    if not expired:
        values["ahead"] = values.get("ahead", "encoder")
    yield draft(
        Severity.FAULT,
        confidence,
        what + consistent,
        [*expired[:1], *rewound[:1], *encoded[:1], *decoded[:1], *date_readings(evidence)[:2]],
        values=values,
        next=(
            "date -u on both hosts; chronyc tracking there (a container has its host's clock)",
            "munge -n | ssh OTHER unmunge shows both times",
        ),
        confirm="munge -n | ssh OTHER unmunge says Success",
    )


def _munge_moments(skew: int, limit: int) -> str:
    """What encoding and decoding `skew` seconds apart mean."""
    quarter = abs(skew) > 1800 and abs(abs(skew) - round(abs(skew) / HOUR_S) * HOUR_S) < NEAR_HOUR_S
    what = (
        f"the credential was encoded at one host's time and decoded {skew} s later by the other's (limit {limit} s): "
        "the decoding host's clock is ahead of the encoding one's by about that, unless the message really was that "
        "long on its way."
        if skew > 0
        else f"the credential was decoded {-skew} s before it was encoded: the encoding host's clock is ahead by that."
    )
    return what + (" Close to whole hours: check the time zone too (a clock set to local time)." if quarter else "")


def _munge_key(evidence: Evidence) -> Iterator[Draft]:
    invalid = evidence.events("munge-invalid")
    if invalid:
        yield draft(
            Severity.EXPLAINED,
            0.8,
            "'Invalid credential' is munge's word for another key, not for a wrong clock (that would be 'Expired' "
            "or 'Rewound'): the keys of the two hosts differ, or munged was not restarted after the key was copied.",
            invalid[:2],
            next=("cksum /etc/munge/munge.key on both; systemctl restart munge; munge -n | ssh OTHER unmunge",),
            confirm="unmunge says Success",
        )


def _dates(evidence: Evidence) -> Iterator[Draft]:
    readings = date_readings(evidence)
    difference = date_difference(evidence)
    if difference is None:
        return
    hosts: dict[str, Item[DateReading]] = {}
    for one in readings:
        hosts.setdefault(one.value.host, one)
    ordered = sorted(item.value.moment.unix_ns for item in hosts.values())
    usual = ordered[len(ordered) // 2]
    off = {host: round((item.value.moment.unix_ns - usual) / 1e9) for host, item in hosts.items()}
    values: dict[str, object] = {
        f"{host}_offset_s": seconds for host, seconds in off.items() if abs(seconds) > PING_PONG_S
    }
    values |= {"spread_s": difference[2], "tol_s": PING_PONG_S}
    if difference[2] <= PING_PONG_S:
        yield draft(
            Severity.HEALTHY,
            0.4,
            f"`date` on {len(hosts)} hosts agrees within {difference[2]} s; finer than the second and the way "
            "between the commands this cannot tell.",
            list(hosts.values())[:4],
            values=values,
        )
        return
    far = [(host, seconds) for host, seconds in off.items() if abs(seconds) > PING_PONG_S]
    quarter = any(abs(s) % 900 <= PING_PONG_S and abs(s) >= 900 for _, s in far)
    told = ", ".join(
        f"{host} is {abs(s)} s {'ahead of' if s > 0 else 'behind'} {'the others' if len(hosts) > 2 else 'the other'}"
        for host, s in far
    )
    yield draft(
        Severity.FAULT,
        0.85 if difference[2] > 10 else 0.6,
        f"{told} (good to a second and the way between the commands)."
        + (" Whole quarter hours: a time zone set as clock time." if quarter else ""),
        list(hosts.values())[:4],
        values=values,
        next=(f"on {far[0][0]}: chronyc tracking; timedatectl; was it a VM that did not step at boot (makestep 1 3)?",),
        confirm="the same command again, all within a second",
    )


def _kerberos(evidence: Evidence) -> Iterator[Draft]:
    hits = evidence.events("kerberos-skew", "kerberos-not-yet")
    if hits:
        yield draft(
            Severity.FAULT,
            0.85,
            f"Kerberos refuses: client and KDC (or service) differ by more than its clockskew, {KERBEROS_LIMIT_S} s "
            "by default.",
            hits[:3],
            values={"limit_s": KERBEROS_LIMIT_S},
            next=(
                "date -u on client and KDC; chronyc tracking",
                "how much: KRB5_TRACE=/dev/stderr kinit prints the server's time",
            ),
            confirm="kinit succeeds",
        )


def _s3(evidence: Evidence) -> Iterator[Draft]:
    bodies = evidence.events("s3-skew-body")
    others = evidence.events("s3-skew", "azure-date")
    signed = evidence.events("sigv4-expired", "sigv4-early")
    if not (bodies or others or signed):
        return
    request = server = None
    limit = S3_LIMIT_S
    if bodies:
        texts = [bodies[0].value.text(n) for n in ("request", "server")]
        request, server = (next((m.unix_ns for m in find_moments(t)), None) for t in texts)
        limit = round((bodies[0].value.number("limit_ms") or S3_LIMIT_S * 1000) / 1000)
    elif signed:
        request, server = (
            next((m.unix_ns for m in find_moments(signed[0].value.text(n))), None) for n in ("request", "server")
        )
        limit = 60 * int(as_float(signed[0].value.text("allowed")) or 15)
    values: dict[str, object] = {"limit_s": limit}
    told = "the client's clock is more than the limit away from the store's"
    if request is not None and server is not None:
        skew = round((request - server) / 1e9)
        values["skew_s"] = skew
        way = "ahead of" if skew > 0 else "behind"
        told = f"the client's clock is {abs(skew)} s ({abs(skew) // 60} min {abs(skew) % 60} s) {way} the store's"
        hours = round(abs(skew) / HOUR_S)
        if hours and abs(abs(skew) - hours * HOUR_S) < NEAR_HOUR_S:
            told += (
                f"; close to {hours} h: check time zone and daylight saving (a clock set to local time) as well as NTP"
            )
    yield draft(
        Severity.FAULT,
        0.9,
        f"the object store refuses a signed request: {told} (limit {limit} s).",
        [*bodies[:2], *signed[:2], *others[:2]],
        values=values,
        next=(
            "date -u; chronyc tracking; timedatectl on the client",
            "curl -sI ENDPOINT | grep -i ^date: the store's own time",
        ),
        confirm="the request succeeds",
    )


def _tls(evidence: Evidence) -> Iterator[Draft]:
    for one in evidence.events("tls-time"):
        now, limit = (moment_at(one.value.text(n)) for n in ("now", "limit"))
        way = one.value.text("way")
        if way == "after":
            yield draft(
                Severity.UNKNOWN,
                0.5,
                f"the certificate ended at {one.value.text('limit')}, this clock says {one.value.text('now')}: it "
                "has expired, or this clock is ahead.",
                [one],
                values={"past_end_s": round((now.unix_ns - limit.unix_ns) / 1e9) if now and limit else None},
                next=("date -u against an independent time; openssl s_client ... | openssl x509 -noout -dates",),
            )
        elif way:
            early = round((limit.unix_ns - now.unix_ns) / 1e9) if now and limit else None
            yield draft(
                Severity.FAULT,
                0.85 if early is not None else 0.75,
                "a certificate is not valid yet"
                + (f": this clock is at least {early} s behind its notBefore" if early is not None else "")
                + ". This clock is behind, or the issuer's was ahead when it signed (then the certificate must be "
                "made anew).",
                [one],
                values={"skew_s": early},
                next=("date -u here and on the host that issued it",),
                confirm="the handshake succeeds",
            )
        else:
            yield draft(
                Severity.UNKNOWN,
                0.5,
                "the certificate has expired or is not valid yet; the message does not say which. A clock that is "
                "far off looks the same.",
                [one],
                next=("date -u; openssl s_client -connect HOST:PORT </dev/null | openssl x509 -noout -dates",),
            )
        return


def _token(evidence: Evidence) -> Iterator[Draft]:
    early = evidence.events("token-early")
    if early:
        yield draft(
            Severity.FAULT,
            0.75,
            "a token was used before its issue time (iat or nbf): the verifier's clock is behind the issuer's. Many "
            "libraries allow no leeway at all, so milliseconds are enough.",
            early[:2],
            values={"leeway_s": 0},
            next=(
                "chronyc tracking on issuer and verifier",
                "a leeway of some seconds in the verifier bridges what is left",
            ),
            confirm="tokens are accepted at once after issue",
        )


RULES = (
    Rule(
        id="ETCD_CLOCK_DIFFERENCE",
        title="etcd sees a peer's clock far away",
        needs="etcd's log",
        check=_etcd,
        arithmetic="mean of the stated differences for each peer; least squares over the stamps gives the drift in ppm",
        reference="etcd-io/etcd#5938, #15488",
    ),
    Rule(
        id="STATED_DRIFT",
        title="A program compared two clocks",
        needs="its message",
        check=_stated_drift,
        reference="deckhouse/deckhouse#12232",
    ),
    Rule(
        id="CEPH_CLOCK_SKEW",
        title="Ceph's monitors see clock skew",
        needs="ceph health detail, or the monitor's log",
        check=_ceph,
        arithmetic="stated skew against the limit (0.05 s)",
        reference="docs.ceph.com MON_CLOCK_SKEW",
    ),
    Rule(
        id="MUNGE_SKEW",
        title="munge refuses a credential by its time",
        needs="the log of slurmd or slurmctld (Expired or Rewound credential), ENCODED and DECODED lines",
        check=_munge,
        arithmetic="decode time minus encode time against the TTL (300 s); `date` of both hosts",
        reference="munge(7); clustervision/trinity#424",
    ),
    Rule(
        id="DATES_DISAGREE",
        title="`date` differs between hosts",
        needs="date of two or more hosts in one paste, with prompts, ssh commands or host prefixes",
        check=_dates,
        arithmetic="each reading minus the middle one; good to 2 s",
        reference="clustervision/trinity#649, #679",
    ),
    Rule(
        id="KERBEROS_SKEW",
        title="Kerberos: clock skew too great",
        needs="the message",
        check=_kerberos,
        reference="krb5.conf(5) clockskew",
    ),
    Rule(
        id="REQUEST_TIME_SKEWED",
        title="An object store refuses by the time of the request",
        needs="the error body or message (S3, OSS, GCS, Azure)",
        check=_s3,
        arithmetic="request time minus server time against 900 s; near whole hours: zone",
        reference="AWS S3 error codes; aws/aws-sdk-php#612",
    ),
    Rule(
        id="CERTIFICATE_TIME",
        title="A certificate is not valid at this clock's time",
        needs="the error of the TLS library",
        check=_tls,
        arithmetic="notBefore minus now",
        reference="RFC 5280 4.1.2.5; rancher/os#2424",
    ),
    Rule(
        id="TOKEN_TIME",
        title="A token from the future",
        needs="the error of the token library",
        check=_token,
        reference="RFC 7519 4.1.5, 4.1.6",
    ),
)
