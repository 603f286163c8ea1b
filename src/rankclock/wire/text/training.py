"""Messages of training stacks.

Torchrun's rendezvous, process groups, NCCL, the Hugging Face Trainer, and steps of ranks.
"""
# ruff: noqa: E501  (one message a line)

from __future__ import annotations

import re
from dataclasses import dataclass

from rankclock.wire.text.event import EventTable
from rankclock.wire.text.line import Line

__all__ = ["EVENTS", "RankStep", "read_rank_step"]

EVENTS = EventTable(
    (
        ("hf-saving", "Saving model checkpoint to", r"Saving model checkpoint to (?P<path>\S+?)(?P<step_n>\d+)/?\s*$"),
        (
            "hf-saved",
            "saved in",
            r"(?:Model weights|tokenizer config file|Configuration) saved in (?P<path>\S*?checkpoint-(?P<step_n>\d+))",
        ),
        (
            "hf-deleting",
            "Deleting older checkpoint",
            r"Deleting older checkpoint \[(?P<path>\S*?checkpoint-(?P<step_n>\d+))\]",
        ),
        (
            "hf-resuming",
            "Continuing training from",
            r"Continuing training from (?:global step|checkpoint)[, ](?P<what>.*)",
        ),
        (
            "checkpoint-dir",
            "checkpoint-",
            r"^(?:[drwxst.-]{10,11}\s.*\s)?\s*(?P<path>(?:\S*/)?checkpoint-(?P<step_n>\d+))/?\s*$",
        ),
        (
            "rdzv-attempt",
            "attempts to join the next round of the rendezvous",
            r"The node '(?P<node>[^']+)' attempts to join",
        ),
        (
            "rdzv-joined",
            "has joined round",
            r"The node '(?P<node>[^']+)' has joined round (?P<round_n>\d+) of the rendezvous '(?P<run>[^']*)' as rank (?P<rank_n>\d+) in a world of size (?P<size_n>\d+)",
        ),
        ("rdzv-removed", "failed to send a keep-alive heartbeat", r"failed to send a keep-alive heartbeat"),
        ("rdzv-removed", "has not responded in time", r"(?P<node>'[^']*')?.*has not responded in time"),
        ("rdzv-removed", "removed from the rendezvous", r"removed from the rendezvous"),
        ("rdzv-closed", "RendezvousClosedError", r"RendezvousClosedError"),
        ("rdzv-timeout", "RendezvousTimeoutError", r"RendezvousTimeoutError"),
        ("rdzv-connection", "RendezvousConnectionError", r"RendezvousConnectionError"),
        ("rdzv-unreached", "client socket has failed", r"client socket has failed to connect to (?P<peer>\S+)"),
        (
            "rdzv-unreached",
            "client socket has timed out",
            r"client socket has timed out after (?P<after>\S+) while trying to connect to (?P<peer>\S+?)\.?$",
        ),
        ("world-size", "group_world_size=", r"group_world_size=(?P<size_n>\d+)"),
        ("world-size", "world_size", r"(?i)\bworld[_ ]size['\"]?\s*[:=]\s*(?P<size_n>\d+)"),
        (
            "nccl-timeout",
            "Watchdog caught collective operation timeout",
            r"WorkNCCL\(SeqNum=(?P<seq_n>\d+).*?(?:Timeout\(ms\)=(?P<limit_ms>\d+))?\).*?(?:ran for (?P<ran_ms>\d+))?",
        ),
        ("nccl-timeout", "collective operation timeout", r"collective operation timeout"),
        ("nccl-message", "NCCL ", r"NCCL (?P<level>INFO|WARN|TRACE) "),
        ("gloo-closed", "Connection closed by peer", r"Connection closed by peer"),
        ("nvrx-unresponsive", "UNRESPONSIVE", r"UNRESPONSIVE"),
        ("time-tensor", "torch.tensor", r"torch\.tensor\(\s*\[?\s*time\.time\(\)"),
    )
)

_STEP = re.compile(r"(?:global[_ ])?(?:step|iter(?:ation)?)\b['\"]?[ =:#]*(?P<step>\d{1,9})", re.IGNORECASE)
_RANK = re.compile(r"(?:\[?\brank\b[ =:_]*|\[rank|\[Rank |\br)(?P<rank>\d{1,6})\b\]?", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStep:
    """A log line of one rank about one step, with its wall clock. rank: '' where only the host or the file says who."""

    rank: str
    step: int
    wall_ns: int


def read_rank_step(line: Line) -> RankStep | None:
    """A stamped line that names a step; the rank where the line says it."""
    if line.wall_ns is None or not (step := _STEP.search(line.body)):
        return None
    rank = _RANK.search(line.text)
    return RankStep(rank=rank["rank"] if rank else "", step=int(step["step"]), wall_ns=line.wall_ns)
