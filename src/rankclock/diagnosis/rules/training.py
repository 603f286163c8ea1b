"""What breaks above the clocks.

Rendezvous, credentials, stores, checkpoints, builds. The messages carry the numbers.
"""

from __future__ import annotations

from collections.abc import Iterator

from rankclock.diagnosis.dates import date_difference, date_readings
from rankclock.diagnosis.evidence import Evidence, Item
from rankclock.diagnosis.finding import Draft, Rule, Severity, draft
from rankclock.wire.text.event import Event
from rankclock.wire.text.number import as_int

__all__ = ["RULES"]

RENDEZVOUS_S = 15


def _checkpoint(evidence: Evidence) -> Iterator[Draft]:
    saved: dict[int, Item[Event]] = {}
    for one in evidence.events("hf-saving", "hf-saved"):
        step = int(one.value.number("step_n") or 0)
        saved.setdefault(step, one)
    for gone in evidence.events("hf-deleting"):
        step = int(gone.value.number("step_n") or 0)
        before = [s for s in saved if saved[s].first < gone.first]
        if not before or step < max(before):
            continue
        began, ended = saved[max(before)].value.line.wall_ns, gone.value.line.wall_ns
        dirs = sorted({int(d.value.number("step_n") or 0) for d in evidence.events("checkpoint-dir")} - {step})
        values: dict[str, object] = {"deleted_step": step}
        if began is not None and ended is not None:
            values["seconds_after_save"] = round((ended - began) / 1e9, 1)
        if dirs:
            values["kept"] = dirs
        yield draft(
            Severity.RISK,
            0.85,
            f"the Trainer deleted checkpoint {step}, the newest by number, right after saving it: it orders "
            "checkpoints by the directories' mtime, and that order is wrong. The clock of the file server (or of "
            "the node that saved) was behind the one that stamped the older checkpoints, or was set back, or the "
            "file system does not keep mtimes. Never order by mtime across hosts.",
            [saved[max(before)], gone],
            values=values,
            next=(
                "stat -c '%y %n' OUT/checkpoint-* : does the order of times differ from the order of steps?",
                "save_total_limit off until the clocks agree; transformers later than #37260 falls back to numbers "
                "if mtimes are equal",
            ),
            confirm="times and steps of the kept checkpoints are in the same order",
        )
        return


def _rendezvous(evidence: Evidence) -> Iterator[Draft]:
    sizes = evidence.events("rdzv-joined", "world-size")
    removed = evidence.events("rdzv-removed")
    asked = [
        value
        for c in evidence.commands("torchrun")
        if (value := as_int((c.value.option("--nnodes") or "").split(":")[0])) is not None
    ]
    alone = [e for e in sizes if (e.value.number("size_n") or 0) == 1]
    dates = date_difference(evidence)
    if dates is not None and dates[2] >= RENDEZVOUS_S and (removed or alone):
        yield draft(
            Severity.FAULT,
            0.85,
            f"{dates[0]} is {dates[2]} s behind {dates[1]}: torchrun's c10d rendezvous takes a node for dead whose "
            "heartbeat is older than 15 s by the other's clock. The world splits: one part trains alone and exits "
            "with 0, the other dies.",
            [*removed[:2], *alone[:2], *date_readings(evidence)[:2]],
            values={"skew_s": dates[2], "limit_s": RENDEZVOUS_S, "behind": dates[0]},
            next=(
                "mend the clock before the next start; rankclock preflight in the job script",
                "WORLD_SIZE in the logs of all nodes",
            ),
            confirm="all nodes report the same world size",
            explains=("DATES_DISAGREE",),
        )
    elif asked and max(asked) > 1 and alone:
        yield draft(
            Severity.UNKNOWN,
            0.6,
            f"a job for {max(asked)} nodes formed a world of one. Clocks 15 s apart do that (c10d heartbeats carry "
            "the sender's time); so do an endpoint that resolves to localhost and different run ids.",
            [*evidence.commands("torchrun")[:1], *alone[:2]],
            values={"nnodes": max(asked), "world_size": 1},
            next=("date -u on all nodes (or rankclock preflight); --rdzv-endpoint and --rdzv-id of all agents",),
        )
    elif removed:
        yield draft(
            Severity.UNKNOWN,
            0.5,
            "a node was taken out of the rendezvous for missing heartbeats: it hung, lost the network, or its clock "
            "is 10 to 15 s behind.",
            removed[:2],
            next=("date -u on all nodes; rankclock preflight",),
        )
    elif evidence.events("rdzv-connection") and not evidence.events("rdzv-unreached"):
        yield draft(
            Severity.UNKNOWN,
            0.5,
            "the agent lost the rendezvous store: the network, an agent that ended, or, where this host's clock is "
            "15 s behind, a first host that trained alone, exited 0 and closed the store.",
            evidence.events("rdzv-connection")[:2],
            next=(
                "date -u on all nodes (or rankclock preflight); WORLD_SIZE in the first host's log",
                "nc -vz HOST PORT from each node",
            ),
        )


def _not_clock(evidence: Evidence) -> Iterator[Draft]:
    timeouts = evidence.events("nccl-timeout")
    connection = evidence.events("rdzv-unreached")
    if timeouts:
        yield draft(
            Severity.EXPLAINED,
            0.75,
            "NCCL's watchdog measures its timeout with a monotonic clock on one host: wall clocks and their offsets "
            "have no part in it. Some rank did not arrive: look for the one that is behind in its sequence numbers.",
            timeouts[:2],
            values={"seq": timeouts[0].value.number("seq_n"), "timeout_ms": timeouts[0].value.number("limit_ms")},
            next=(
                "TORCH_NCCL_TRACE_BUFFER_SIZE and the flight recorder: which rank lacks the collective; py-spy dump "
                "there",
            ),
        )
    elif connection:
        yield draft(
            Severity.EXPLAINED,
            0.65,
            "the agent did not reach the rendezvous endpoint over TCP: a network or address fault, no clock is "
            "asked before that.",
            connection[:2],
            next=("nc -vz HOST PORT from each node; the endpoint must be an address of the first node",),
        )


RULES = (
    Rule(
        id="NEWEST_CHECKPOINT_DELETED",
        title="The newest checkpoint was deleted: mtime order is wrong",
        needs="the Trainer's log",
        check=_checkpoint,
        arithmetic="step of the deleted checkpoint against steps saved before; seconds since its save",
        reference="huggingface/transformers#26961, #37260",
    ),
    Rule(
        id="RENDEZVOUS_SPLIT",
        title="torchrun's world split",
        needs="the agent's log or command, and `date` of the nodes",
        check=_rendezvous,
        arithmetic="difference of clocks against 15 s (keep-alive 5 s * 3)",
        reference="torch dynamic_rendezvous.py; pytorch/pytorch#76287",
    ),
    Rule(
        id="NOT_THE_CLOCK",
        title="An error that no clock causes",
        needs="the message",
        check=_not_clock,
        reference="torch ProcessGroupNCCL.hpp (steady_clock)",
    ),
)
