"""Which scheme the cluster should use, as a list of questions: answer, evidence, threshold, what would change it.

The tree asks: provider's time? small? network stable? accuracy below a millisecond? Ethernet everywhere? hardware
stamps everywhere? a PTP path to every rack? It goes to PTP only by yes after yes; an unknown answer leads to NTP.
What the owner asked for is done where it can be, and the tree's own choice is still stated.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from rankclock.cluster.measured import worst_loss
from rankclock.cluster.model import NetworkKind, Node, Protocol
from rankclock.planning.budget import FIGURES, PHC2SYS_BOUND_NS, PHC2SYS_TYPICAL_NS
from rankclock.planning.model import Answer, Decision, Expectation, Question, Scheme
from rankclock.planning.ptp_tree import PtpTree
from rankclock.planning.references import names
from rankclock.planning.survey import Survey
from rankclock.timebase import format_span_ns

__all__ = ["decide", "obstacles"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Branch:
    """Which answer ends the tree at NTP, and with what reason."""

    question: Question
    ends_here: bool
    reason: str


def decide(survey: Survey, asked: Protocol, hardware: PtpTree, software: PtpTree) -> Decision:
    """Ask every question in order; the first that ends the tree decides, the rest are not asked."""
    expectations = _expectations(survey, hardware, software)
    questions: list[Question] = []
    reason, tree_scheme = "every question on the way to PTP was answered with yes", Scheme.PTP_HARDWARE
    for step in _steps(survey, expectations, hardware):
        branch = step()
        questions.append(branch.question)
        if branch.ends_here:
            reason, tree_scheme = branch.reason, Scheme.NTP
            break
    scheme: Scheme | None = tree_scheme
    chosen_by = "tree"
    if asked is not Protocol.AUTO:
        scheme, asked_reason = _asked_for(asked, hardware, software)
        agreed = scheme is not None and scheme.protocol == tree_scheme.protocol
        reason = f"{asked_reason}; the questions alone lead to {tree_scheme.protocol}" + (
            " too" if agreed else f": {reason}"
        )
        chosen_by = "owner"
    return Decision(
        scheme=scheme,
        chosen_by=chosen_by,
        tree_scheme=tree_scheme,
        reason=reason,
        questions=tuple(questions),
        expectations=expectations,
        excluded=tuple(survey.excluded),
    )


def obstacles(survey: Survey, hardware: PtpTree, software: PtpTree) -> tuple[tuple[Question, str], ...]:
    """Every question that speaks against PTP here, with the reason; `decide` stops at the first of them."""
    expectations = _expectations(survey, hardware, software)
    branches = [step() for step in _steps(survey, expectations, hardware)]
    return tuple((branch.question, branch.reason) for branch in branches if branch.ends_here)


def _steps(
    survey: Survey, expectations: tuple[Expectation, ...], hardware: PtpTree
) -> tuple[Callable[[], _Branch], ...]:
    """The questions in their order. Without figures (in a cloud) the size of the cluster decides nothing."""
    sized = (lambda: _small(survey, expectations[0]),) if expectations else ()
    return (
        lambda: _nodes(survey),
        lambda: _cloud(survey),
        *sized,
        lambda: _stable(survey),
        lambda: _need(survey),
        lambda: _ethernet(survey),
        lambda: _hardware(survey),
        lambda: _path(hardware),
    )


def _asked_for(asked: Protocol, hardware: PtpTree, software: PtpTree) -> tuple[Scheme | None, str]:
    if asked is Protocol.NTP:
        return Scheme.NTP, "NTP was asked for"
    if asked is Protocol.HYBRID and not (hardware.masters and hardware.ordinary):
        return None, "PTP with NTP behind it was asked for, and it needs hardware stamps at the nodes"
    if hardware.masters and (hardware.ordinary or hardware.boundaries):
        return Scheme.PTP_HARDWARE, "PTP was asked for, and there are hardware stamps from a grandmaster on"
    if software.masters and (software.ordinary or software.boundaries):
        return Scheme.PTP_SOFTWARE, "PTP was asked for, and only software stamps are there"
    return None, "PTP was asked for, and no grandmaster reaches anybody with stamps that are known to be there"


def _nodes(survey: Survey) -> _Branch:
    excluded = survey.excluded
    evidence = tuple(f"{name}: {why}" for name, why in list(excluded.items())[:3]) or (
        "no container without CAP_SYS_TIME",
    )
    without = [node.name for node in survey.planned if node.name not in survey.facts]
    if without:
        evidence = (*evidence, f"no facts of {names(without)}")
    question = Question(
        key="nodes",
        question="Does every machine in the list have a clock of its own?",
        answer=Answer.NO if excluded else Answer.UNKNOWN if without else Answer.YES,
        evidence=evidence,
        threshold=None,
        would_change="containers that run with CAP_SYS_TIME, or their hosts in the list instead",
        leads_to=f"{names(list(excluded))} left out" if excluded else "all are planned",
    )
    return _Branch(question=question, ends_here=False, reason="")


def _cloud(survey: Survey) -> _Branch:
    question = Question(
        key="cloud",
        question="Are the machines a cloud provider's?",
        answer=Answer.YES if survey.in_cloud else Answer.NO,
        evidence=survey.cloud_evidence or ("neither the cluster file nor the facts name a provider",),
        threshold=None,
        would_change="machines of your own: network.kind other than cloud and facts that name no provider",
        leads_to="the provider's own time by NTP" if survey.in_cloud else "next question",
    )
    reason = "a provider's virtual NICs carry no PTP, and its own time service is one hop away"
    return _Branch(question=question, ends_here=survey.in_cloud, reason=reason)


def _small(survey: Survey, ntp: Expectation) -> _Branch:
    count, limit = len(survey.training), survey.settings.small_cluster_nodes
    small, enough = count < limit, ntp.bound_ns <= survey.cluster.require.accuracy_ns
    asked = format_span_ns(survey.cluster.require.accuracy_ns)
    evidence = [f"{count} training nodes"]
    if small:
        evidence.append(f"NTP keeps two nodes within {format_span_ns(ntp.bound_ns)}, {asked} is asked for")
    if small and enough:
        would_change = f"{limit} training nodes or more, or an accuracy below {format_span_ns(ntp.bound_ns)}"
    elif small:
        would_change = f"an accuracy of {format_span_ns(ntp.bound_ns)} or more"
    else:
        would_change = f"fewer than {limit} training nodes, where {format_span_ns(ntp.bound_ns)} is accurate enough"
    question = Question(
        key="small",
        question="Is the cluster small, so that NTP with a local server does?",
        answer=Answer.YES if small and enough else Answer.NO,
        evidence=tuple(evidence),
        threshold=f"small_cluster_nodes = {limit}",
        would_change=would_change,
        leads_to="NTP with a local server" if small and enough else "next question",
    )
    reason = f"{count} nodes are fewer than {limit}, and NTP with a local server is accurate enough for {asked}"
    return _Branch(question=question, ends_here=small and enough, reason=reason)


def _stable(survey: Survey) -> _Branch:
    """What was measured weighs more than what the file says; without measurements its word is the evidence."""
    said = survey.cluster.network.stable
    evidence = [f"the cluster file says network.stable: {str(said).lower()}"]
    worst, most = worst_loss(survey.paths), survey.settings.most_loss
    lossy = worst is not None and worst[1] > most
    trips = [path.round_trip_ns for path in survey.paths if path.round_trip_ns is not None]
    if worst is not None:
        one, share = worst
        evidence.append(
            f"measured on {len(survey.paths)} paths: at most {share:.1%} of the probes lost, {one.local} to {one.peer}"
        )
    if trips:
        evidence.append(f"least round trips of {format_span_ns(min(trips))} to {format_span_ns(max(trips))}")
    stable = said and not lossy
    question = Question(
        key="stable",
        question="Is the network stable?",
        answer=Answer.YES if stable else Answer.NO,
        evidence=tuple(evidence),
        threshold=f"most_loss = {most:g}" if worst is not None else None,
        would_change="less loss, measured again (preflight --json, --measured)"
        if lossy
        else f"network.stable: {str(not said).lower()}",
        leads_to="next question" if stable else "NTP with a local reference",
    )
    reason = "on an unstable network chrony's filtering of bad samples is worth more than PTP's rate"
    return _Branch(question=question, ends_here=not stable, reason=reason)


def _need(survey: Survey) -> _Branch:
    asked_ns, limit_ns = survey.cluster.require.accuracy_ns, survey.settings.ntp_suffices_ns
    below = asked_ns < limit_ns
    question = Question(
        key="need",
        question="Is an accuracy below what tuned NTP always reaches needed?",
        answer=Answer.YES if below else Answer.NO,
        evidence=(f"require.accuracy is {format_span_ns(asked_ns)}",),
        threshold=f"ntp_suffices_ns = {limit_ns}",
        would_change=f"an accuracy of {format_span_ns(limit_ns)} or more" if below else "a smaller accuracy",
        leads_to="next question" if below else "tuned NTP",
    )
    reason = f"{format_span_ns(asked_ns)} is reached by tuned NTP"
    return _Branch(question=question, ends_here=not below, reason=reason)


def _ethernet(survey: Survey) -> _Branch:
    groups: dict[Answer, list[str]] = {answer: [] for answer in (Answer.YES, Answer.NO, Answer.UNKNOWN)}
    for node in survey.planned:
        groups[_has_ethernet(survey, node)].append(node.name)
    answer = Answer.NO if groups[Answer.NO] else Answer.UNKNOWN if groups[Answer.UNKNOWN] else Answer.YES
    words = {Answer.YES: "yes", Answer.NO: "only links that carry no PTP", Answer.UNKNOWN: "not known"}
    evidence = tuple(f"{names(nodes)}: {words[found]}" for found, nodes in groups.items() if nodes)
    kind = survey.cluster.network.kind.value
    question = Question(
        key="ethernet",
        question="Does every node have an Ethernet (or RoCE) port for PTP?",
        answer=answer,
        evidence=(*evidence, f"the cluster file says network.kind: {kind}"),
        threshold=None,
        would_change="an Ethernet port on each node, named under nics: and joined by switches",
        leads_to="next question" if answer is Answer.YES else "NTP: chrony",
    )
    lacking = groups[Answer.NO] or groups[Answer.UNKNOWN]
    word = "have none" if groups[Answer.NO] else "are not known to have one"
    reason = f"PTP needs an Ethernet port on every node, and {names(lacking)} {word}" if lacking else ""
    return _Branch(question=question, ends_here=answer is not Answer.YES, reason=reason)


def _has_ethernet(survey: Survey, node: Node) -> Answer:
    """By what was seen or declared of its NICs, otherwise by the fabric that the file names."""
    nics = survey.nics[node.name]
    if not nics:
        return Answer.UNKNOWN
    known = [nic.ethernet for nic in nics]
    if any(known):
        return Answer.YES
    if all(value is False for value in known):
        return Answer.NO
    return Answer.UNKNOWN if survey.cluster.network.kind is NetworkKind.INFINIBAND else Answer.YES


def _hardware(survey: Survey) -> _Branch:
    groups: dict[bool | None, list[str]] = {True: [], False: [], None: []}
    reasons: dict[bool | None, str] = {}
    for node in survey.planned:
        seen = {nic.hardware: nic.why for nic in survey.nics[node.name]}
        verdict = True if True in seen else None if None in seen else False
        groups[verdict].append(node.name)
        reasons.setdefault(verdict, seen.get(verdict, "no NIC in the cluster file"))
    evidence = tuple(
        f"{names(groups[verdict])}: {word} ({reasons[verdict]})"
        for verdict, word in ((True, "yes"), (False, "no"), (None, "unknown"))
        if groups[verdict]
    )
    answer = Answer.NO if groups[False] else Answer.UNKNOWN if groups[None] else Answer.YES
    question = Question(
        key="hardware",
        question="Does every node have a NIC with hardware time stamps and a clock (PHC)?",
        answer=answer,
        evidence=evidence,
        threshold=None,
        would_change="such a NIC on every node, shown by its facts (rankclock probe) or declared (stamps: hardware)",
        leads_to="next question" if answer is Answer.YES else "NTP: chrony",
    )
    lacking = groups[False] or groups[None]
    word = "have no PHC" if groups[False] else "are not known to have a PHC"
    reason = (
        f"{names(lacking)} {word}: with software stamps chrony and ptp4l reach the same order of accuracy, "
        "and chrony has fewer parts and filters bad sources"
    )
    return _Branch(question=question, ends_here=answer is not Answer.YES, reason=reason)


def _path(tree: PtpTree) -> _Branch:
    gone = tuple(tree.left_out)
    good = tree.complete
    if good:
        count = len(tree.boundaries)
        masters = names([node.name for node, _ in tree.masters])
        evidence: tuple[str, ...] = (f"{masters} reach every node through {count} boundary clock{'s' * (count != 1)}",)
    elif not tree.masters:
        evidence = ("no node can be grandmaster",)
    else:
        evidence = tuple(f"{name}: {tree.left_out[name]}" for name in gone[:3])
    question = Question(
        key="path",
        question="Does PTP reach every node from the grandmaster?",
        answer=Answer.YES if good else Answer.NO,
        evidence=evidence,
        threshold=None,
        would_change="a switch or host with PTP ports in both segments where a rack is cut off",
        leads_to="PTP with hardware stamps" if good else "NTP: chrony",
    )
    return _Branch(question=question, ends_here=not good, reason=f"PTP does not reach every node: {evidence[0]}")


def _expectations(survey: Survey, hardware: PtpTree, software: PtpTree) -> tuple[Expectation, ...]:
    """NTP first. Two nodes apart: by NTP one hop below a common server, by PTP two hops below a grandmaster.

    None in a cloud: no figure here was measured on a provider's network.
    """
    if survey.in_cloud:
        return ()
    emulated = any(nic.emulated for nics in survey.nics.values() for nic in nics)
    chrony, soft = FIGURES["chrony", survey.cluster.pace], FIGURES["ptp-software"]
    hard = FIGURES["ptp-emulated" if emulated else "ptp-hardware"]
    out = math.isqrt(hard.second_ns**2 + PHC2SYS_TYPICAL_NS**2)
    rows = (
        (Scheme.NTP, Answer.YES, chrony.adds_ns(2), chrony.hop_bound_ns, chrony.source),
        (
            Scheme.PTP_HARDWARE,
            _possible(hardware),
            out,
            2 * hard.hop_bound_ns + PHC2SYS_BOUND_NS,
            f"{hard.source}; phc2sys within about 1 µs",
        ),
        (Scheme.PTP_SOFTWARE, _possible(software), soft.second_ns, 2 * soft.hop_bound_ns, soft.source),
    )
    return tuple(
        Expectation(scheme=scheme, possible=can, typical_ns=math.isqrt(2 * rms**2), bound_ns=2 * bound, source=source)
        for scheme, can, rms, bound, source in rows
    )


def _possible(tree: PtpTree) -> Answer:
    if tree.complete:
        return Answer.YES
    unknown = any("no facts" in why or "could not be seen" in why for why in tree.left_out.values())
    return Answer.UNKNOWN if unknown else Answer.NO
