"""What breaks in a training stack when a host's clock is off, and at which offset: one table, each row with its source.

Only offsets are in it: between hosts, or against UTC where the other side is outside of the cluster. What a step of one
clock breaks is another matter. Limits are the defaults of the software; where a setting moves one, the row says which.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from rankclock.timebase import NS_PER_MS, NS_PER_S, NS_PER_US, Offset

__all__ = ["TOLERANCES", "TRAINING", "Against", "Broken", "Direction", "Tolerance", "Verified", "broken_by"]


class Direction(StrEnum):
    """Which clock suffers: one that is behind the others, one that is ahead, or either."""

    AHEAD = "ahead"
    BEHIND = "behind"
    EITHER = "apart"


class Against(StrEnum):
    """What the offset is measured against: other hosts of the cluster, or UTC (services outside of it)."""

    HOSTS = "hosts"
    UTC = "UTC"


class Verified(StrEnum):
    """How sure the limit is: a script measured it, its source code was read, or its documentation says so."""

    MEASURED = "measured"
    READ = "read in its source"
    DOCUMENTED = "its documentation"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """One thing that breaks. breaks_at_ns: the smallest |offset| at which it does. setting: what moves that limit.

    reads: what of it reads a clock. training: whether it is a part of a training job itself.
    """

    component: str
    reads: str
    breaks_at_ns: int
    direction: Direction
    effect: str
    source: str
    verified: Verified
    against: Against = Against.HOSTS
    training: bool = False
    setting: str = ""

    def to_json(self) -> dict[str, Any]:
        """A JSON object with every field."""
        return {
            "component": self.component,
            "reads": self.reads,
            "breaks_at_ns": self.breaks_at_ns,
            "direction": self.direction.value,
            "effect": self.effect,
            "against": self.against.value,
            "training": self.training,
            "setting": self.setting,
            "source": self.source,
            "verified": self.verified.value,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """A tolerance that an offset breaks; not certain where the offset's bound reaches to both sides of the limit."""

    tolerance: Tolerance
    certain: bool


_MIN = 60 * NS_PER_S

TOLERANCES: tuple[Tolerance, ...] = (
    Tolerance(
        component="S3, OSS and other stores with signed requests",
        reads="the date in the request's signature",
        breaks_at_ns=15 * _MIN,
        direction=Direction.EITHER,
        effect="refuse requests of this host with RequestTimeTooSkewed: data, checkpoints",
        against=Against.UTC,
        source="AWS and Alibaba documentation: 15 minutes; MaxAllowedSkewMilliseconds 900000 in the error itself",
        verified=Verified.DOCUMENTED,
    ),
    Tolerance(
        component="GCS signed requests (V4)",
        reads="X-Goog-Date",
        breaks_at_ns=15 * _MIN,
        direction=Direction.EITHER,
        effect="refuses requests of this host",
        against=Against.UTC,
        source="Google Cloud Storage documentation, V4 signing: within 15 minutes",
        verified=Verified.DOCUMENTED,
    ),
    Tolerance(
        component="munge credentials (Slurm)",
        reads="encode time in the credential, judged by the decoder's clock",
        breaks_at_ns=5 * _MIN,
        direction=Direction.BEHIND,
        effect="credentials made here are 'Expired' elsewhere: Slurm refuses its messages",
        setting="munge --ttl, munged --max-ttl",
        source="munge(1): time to live 300 s; measured, munge 0.5.15 (benchmarks.tolerances): 299 s works, 301 s not",
        verified=Verified.MEASURED,
    ),
    Tolerance(
        component="munge credentials from the future (Slurm)",
        reads="encode time in the credential, judged by the decoder's clock",
        breaks_at_ns=5 * _MIN,
        direction=Direction.AHEAD,
        effect="credentials made here are 'Rewound' elsewhere: Slurm refuses its messages",
        setting="munged's clock skew follows the time to live of the credential",
        source="measured, munge 0.5.15 (benchmarks.tolerances): 299 s works, 301 s not",
        verified=Verified.MEASURED,
    ),
    Tolerance(
        component="Kerberos",
        reads="timestamp in the authenticator",
        breaks_at_ns=5 * _MIN,
        direction=Direction.EITHER,
        effect="'Clock skew too great': no tickets, no kerberised NFS",
        setting="clockskew in krb5.conf",
        source="krb5.conf(5): 300 s by default",
        verified=Verified.DOCUMENTED,
    ),
    Tolerance(
        component="Kubernetes leases and leader election",
        reads="renew time that the holder wrote, judged by others only after they saw it unchanged",
        breaks_at_ns=15 * NS_PER_S,
        direction=Direction.EITHER,
        effect="controllers that compare stamps (not client-go's elector) see leases as expired",
        setting="leaseDurationSeconds",
        source="client-go leaderelection.go: 15 s lease; it tolerates skew of clocks, not of rates",
        verified=Verified.READ,
    ),
    Tolerance(
        component="torchrun c10d last call",
        reads="a deadline written by one node's clock, judged by all",
        breaks_at_ns=30 * NS_PER_S,
        direction=Direction.AHEAD,
        effect="ends the wait for more nodes at once: an elastic job starts with fewer of them",
        training=True,
        setting="--rdzv-conf last_call_timeout",
        source="torch 2.13 distributed/elastic/rendezvous/dynamic_rendezvous.py:744,946",
        verified=Verified.READ,
    ),
    Tolerance(
        component="NVRx in-process restart",
        reads="a sibling's time.time() from the store against the own one",
        breaks_at_ns=29 * NS_PER_S,
        direction=Direction.BEHIND,
        effect="its healthy ranks are declared unresponsive and killed",
        training=True,
        setting="soft and hard timeouts of the wrapper",
        source="NVIDIA/nvidia-resiliency-ext d8686d9 inprocess/sibling_monitor.py:116, wrap.py:155",
        verified=Verified.READ,
    ),
    Tolerance(
        component="torchrun exit barrier",
        reads="heartbeats of the others at the end of the job",
        breaks_at_ns=20 * NS_PER_S,
        direction=Direction.AHEAD,
        effect="agents may disagree on the world's size and hang for 300 s after the training",
        training=True,
        source="measured: 3 hangs in 5 runs at +20 and +40 s, torch 2.13",
        verified=Verified.MEASURED,
    ),
    Tolerance(
        component="torchrun c10d rendezvous",
        reads="heartbeats that carry the sender's clock, judged by the reader's",
        breaks_at_ns=15 * NS_PER_S,
        direction=Direction.BEHIND,
        effect="is counted dead: the others start without it, with a smaller WORLD_SIZE and exit code 0",
        training=True,
        setting="--rdzv-conf keep_alive_interval, keep_alive_max_attempt",
        source="torch 2.13 distributed/elastic/rendezvous/dynamic_rendezvous.py:475 (3 x 5 s); measured 8 of 8 runs",
        verified=Verified.MEASURED,
    ),
    Tolerance(
        component="torchrun c10d keep-alive",
        reads="heartbeats up to 5 s old when they are read",
        breaks_at_ns=10 * NS_PER_S,
        direction=Direction.BEHIND,
        effect="is counted dead now and then: heartbeats are up to 5 s old when they are read",
        training=True,
        setting="--rdzv-conf keep_alive_interval, keep_alive_max_attempt",
        source="torch 2.13 distributed/elastic/rendezvous/dynamic_rendezvous.py:475,720; measured at -12 and -14 s",
        verified=Verified.READ,
    ),
    Tolerance(
        component="Dynolog start time",
        reads="the common start that a profiling request names",
        breaks_at_ns=10 * NS_PER_S,
        direction=Direction.AHEAD,
        effect="refuses a common profile start that is 10 s ahead for the others: it is past here",
        training=True,
        setting="--start-time-delay; profiling by iterations needs no clock",
        source="pytorch/kineto 114171d libkineto/src/Config.cpp:44,291",
        verified=Verified.READ,
    ),
    Tolerance(
        component="etcd's warning",
        reads="the peer's clock in each probe",
        breaks_at_ns=NS_PER_S,
        direction=Direction.EITHER,
        effect="'the clock difference against peer is too high': leases and logs suffer, Raft does not",
        source="etcd rafthttp probing_status.go: 1 s",
        verified=Verified.READ,
    ),
    Tolerance(
        component="TensorBoard",
        reads="Unix seconds in the name of the event file",
        breaks_at_ns=NS_PER_S,
        direction=Direction.BEHIND,
        effect="what a writer restarted here writes is never shown: its file sorts before the old one",
        training=True,
        source="tensorboard directory_watcher.py:38,199; measured (benchmarks.tolerances) after a restart of 1.1 s",
        verified=Verified.MEASURED,
    ),
    Tolerance(
        component="TLS certificates just issued",
        reads="notBefore against the verifier's clock",
        breaks_at_ns=NS_PER_S,
        direction=Direction.BEHIND,
        effect="'certificate is not yet valid' here until the clock has caught up",
        setting="issuers that date back (kubeadm, cert-manager: minutes) give that much",
        source="RFC 5280 4.1.2.5; measured with OpenSSL (benchmarks.tolerances): no leeway, seconds resolution",
        verified=Verified.MEASURED,
    ),
    Tolerance(
        component="JWT and OIDC tokens without leeway",
        reads="iat and nbf against the verifier's clock",
        breaks_at_ns=NS_PER_S,
        direction=Direction.BEHIND,
        effect="fresh tokens are 'not yet valid' here: logins, workload identities, stores with web identity",
        setting="leeway of the library (PyJWT 0, golang-jwt 0, Kubernetes none for iat)",
        source="RFC 7519 4.1.5; measured, PyJWT 2.15 (benchmarks.tolerances): no leeway, seconds resolution",
        verified=Verified.MEASURED,
    ),
    Tolerance(
        component="file times on shared file systems (make, ninja, torch cpp_extension)",
        reads="mtime that another host or the server wrote against the own clock",
        breaks_at_ns=100 * NS_PER_MS,
        direction=Direction.BEHIND,
        effect="'modification time in the future', builds that never settle, newest-file choices that are wrong",
        source="POSIX make; measured with GNU make (benchmarks.tolerances): warns at once",
        verified=Verified.MEASURED,
    ),
    Tolerance(
        component="HF Trainer's checkpoint rotation",
        reads="mtime of checkpoint directories",
        breaks_at_ns=10 * _MIN,
        direction=Direction.BEHIND,
        effect="deletes the newest checkpoint when save_total_limit * save interval is shorter (here: 1 * 10 min)",
        training=True,
        setting="save_total_limit, save_steps",
        source="transformers 5 trainer_utils.py; measured (benchmarks.tolerances): 598 s works, 602 s not",
        verified=Verified.MEASURED,
    ),
    Tolerance(
        component="Ceph monitors",
        reads="the leader's clock in each round",
        breaks_at_ns=50 * NS_PER_MS,
        direction=Direction.EITHER,
        effect="HEALTH_WARN clock skew; beyond 0.2 s leases expire early and elections begin",
        setting="mon_clock_drift_allowed",
        source="Ceph documentation, MON_CLOCK_SKEW: 0.05 s",
        verified=Verified.DOCUMENTED,
    ),
    Tolerance(
        component="order of logs and traces",
        reads="each host's own CLOCK_REALTIME",
        breaks_at_ns=10 * NS_PER_MS,
        direction=Direction.EITHER,
        effect="lines and spans of this host stand before their causes or after their effects",
        training=True,
        source="log stamps are each host's own CLOCK_REALTIME; 10 ms is a short training step",
        verified=Verified.READ,
    ),
    Tolerance(
        component="straggler reports from traces",
        reads="absolute times of all ranks",
        breaks_at_ns=100 * NS_PER_US,
        direction=Direction.EITHER,
        effect="the clock's error is taken for a late rank",
        training=True,
        source="HolisticTraceAnalysis f4d0062 analyzers/straggler.py compares absolute times of ranks",
        verified=Verified.READ,
    ),
)
"""By theme. `python -m benchmarks.tolerances` measures those rows whose component runs here."""

TRAINING: tuple[Tolerance, ...] = tuple(
    sorted((one for one in TOLERANCES if one.training), key=lambda one: -one.breaks_at_ns)
)
"""What breaks inside a training job itself, largest limit first: what `rankclock preflight` judges by."""


def broken_by(offset: Offset, tolerances: Sequence[Tolerance] = TRAINING) -> tuple[Broken, ...]:
    """What an offset (this host - the others) breaks, or may break within its bound. Nothing where it is unknown."""
    if offset.lo_ns is None or offset.hi_ns is None:
        return ()
    broken = []
    for one in tolerances:
        ahead = (offset.lo_ns >= one.breaks_at_ns, offset.hi_ns >= one.breaks_at_ns)
        behind = (offset.hi_ns <= -one.breaks_at_ns, offset.lo_ns <= -one.breaks_at_ns)
        sides = {Direction.AHEAD: [ahead], Direction.BEHIND: [behind], Direction.EITHER: [ahead, behind]}
        certain = any(surely for surely, _ in sides[one.direction])
        if certain or any(maybe for _, maybe in sides[one.direction]):
            broken.append(Broken(tolerance=one, certain=certain))
    return tuple(broken)
