"""Facts, clock states and several sources as evidence; large inputs; what a cannot-tell says."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from rankclock.diagnosis.evidence import KEPT
from rankclock.diagnosis.finding import Severity
from rankclock.diagnosis.scan import WHOLE, read_sources
from rankclock.diagnosis.verdict import Answer, diagnose
from rankclock.timebase import ClockState, Offset, SyncState


def ask(*sources: tuple[str, str]) -> Answer:
    return diagnose(read_sources([(name, [text.encode()]) for name, text in sources]))


def facts(**more: Any) -> str:
    values = {
        "virtualisation": {"kind": "none", "container": "none", "cloud": "none"},
        "realtime_owner": {"owners": ["chronyd"], "evidence": ["chronyd (pid 812)"]},
        **more,
    }
    items = {key: {"value": value, "why": None, "source": "test"} for key, value in values.items()}
    return json.dumps({"schema": "rankclock-facts/1", "node": "gpu1", "collected_at_ns": 1, "facts": items})


def state(claimed: Offset, measured: Offset, sync: SyncState = SyncState.SYNCHRONISED) -> str:
    value = ClockState(
        node="gpu1",
        state=sync,
        owner="chronyd",
        source="time1",
        claimed=claimed,
        measured=measured,
        reasons=("follows time1",),
    )
    return json.dumps(value.to_json())


def offset(estimate_ns: int, bound_ns: int) -> Offset:
    return Offset.around(estimate_ns, bound_ns, reference="time1", method="test")


UNKNOWN = Offset.unknown("not measured", reference="time1", method="test")


def ids(answer: Answer) -> set[str]:
    return {finding.id for finding in answer.findings}


def test_facts_with_two_owners_of_the_clock_are_a_fault() -> None:
    answer = ask(("gpu1.json", facts(realtime_owner={"owners": ["chronyd", "phc2sys"], "evidence": []})))
    assert (answer.verdict, "TWO_CONTROLLERS" in ids(answer)) == (Severity.FAULT, True)


def test_facts_without_an_owner_are_a_fault_on_a_host_and_cannot_be_told_in_a_container() -> None:
    nobody = {"owners": [], "evidence": []}
    assert ask(("a", facts(realtime_owner=nobody))).verdict is Severity.FAULT
    inside = facts(realtime_owner=nobody, virtualisation={"kind": "kvm", "container": "docker", "cloud": None})
    assert ask(("a", inside)).verdict is Severity.UNKNOWN


def test_a_hardware_clock_that_stands_still_is_a_fault() -> None:
    answer = ask(("a", facts(**{"phc.0": {"device": "/dev/ptp0", "advances": False}})))
    assert "PHC_FROZEN" in ids(answer)


def test_a_claim_that_the_measurement_excludes_is_a_fault_and_one_that_it_covers_is_healthy() -> None:
    assert ask(("s", state(offset(0, 10_000), offset(5_000_000, 20_000)))).verdict is Severity.FAULT
    assert ask(("s", state(offset(0, 10_000), offset(5_000, 20_000)))).verdict is Severity.HEALTHY


def test_a_claim_that_nobody_measured_is_not_called_healthy() -> None:
    assert ask(("s", state(offset(0, 10_000), UNKNOWN))).verdict is Severity.UNKNOWN


def test_measured_offsets_are_judged_by_their_whole_interval() -> None:
    def line(estimate_ns: int, bound_ns: int) -> str:
        value = offset(estimate_ns, bound_ns).to_json()
        return json.dumps(
            {
                "schema": "rankclock-measured/1",
                "node": "a",
                "peer": "b",
                "at_raw_ns": 1,
                "at_real_ns": 1,
                "offset": value,
            }
        )

    assert ask(("m", line(2_000_000_000, 1000))).verdict is Severity.FAULT
    assert ask(("m", line(20_000, 10_000))).verdict is Severity.HEALTHY
    assert ask(("m", line(900_000, 500_000))).verdict is Severity.UNKNOWN


def test_findings_name_the_file_and_line_of_their_evidence() -> None:
    answer = ask(("a.log", "nothing\n"), ("b.log", "\nchronyd[1]: Can't synchronise: no majority\n"))
    quote = answer.findings[0].draft.evidence[0]
    assert (quote.source, quote.line) == ("b.log", 2)
    assert answer.unrecognised[0].source == "a.log"


def test_logs_of_ranks_in_files_of_their_own_are_compared() -> None:
    def log(shift_s: int) -> str:
        return "".join(
            f"2024-03-05 08:{10 + shift_s // 60}:{(i * 2) % 60:02d},100 step {i} loss 2.0\n" for i in range(10)
        )

    answer = ask(("rank0.log", log(0)), ("rank1.log", log(600)))
    assert ids(answer) == {"RANK_LOGS_APART"}
    assert answer.values["offset_s"] == 600.0


def test_nothing_to_read_is_cannot_tell_with_a_command_to_run() -> None:
    for text in ("", "\n\n", "lorem ipsum dolor\n"):
        answer = ask(("-", text))
        assert answer.verdict is Severity.UNKNOWN
        assert answer.findings[0].draft.next


def journal(megabytes: int, message: str) -> Iterator[bytes]:
    """A journal in which one line of a fault stands in the middle, and the samples of a healthy ptp4l all over."""
    noise = b"Sep  3 10:32:28 gpu1 kubelet[812]: operation_generator.go:515] MountVolume.SetUp succeeded pvc-0a1b2c\n"
    sample = (
        b"Sep  3 10:32:28 gpu1 ptp4l[263]: [%d.057] master offset        -12 s2 freq   -8120 path delay       735\n"
    )
    block = noise * 9000
    for index in range(megabytes):
        yield block + b"".join(sample % (index * 100 + i) for i in range(50))
        if index == megabytes // 2:
            yield message.encode()


def test_a_fault_in_a_large_journal_is_found_with_its_line_and_the_samples_are_counted() -> None:
    message = "Sep  3 10:40:00 gpu1 chronyd[9]: Can't synchronise: no majority\n"
    answer = diagnose(read_sources([("journal", journal(3, message))]))
    fault = answer.findings[0]
    assert (fault.id, fault.draft.evidence[0].line) == ("NO_MAJORITY", 2 * 9050 + 1)
    assert answer.skipped == 3 * 9000
    assert any(span.count == 150 for span in answer.recognised)


def test_an_outlier_among_a_hundred_thousand_samples_is_kept() -> None:
    def chunks() -> Iterator[bytes]:
        for i in range(60_000):
            value = (1 << 33) + 7 if i == 41_000 else i % 17
            yield b"ptp4l[%d.5]: master offset %10d s2 freq -8120 path delay 735\n" % (i, value)

    evidence = read_sources([("log", chunks())])
    assert evidence.series[0].count == 60_000
    assert len(evidence.series[0].samples) < 3 * KEPT
    answer = diagnose(evidence)
    assert answer.findings[0].id == "TIMESTAMP_WRAP"
    assert answer.findings[0].draft.evidence[0].line == 41_001


def test_a_table_in_a_large_input_is_read_whole() -> None:
    filler = b"some other line that says nothing\n" * (WHOLE // 30)
    table = (
        b"     remote           refid      st t when poll reach   delay   offset  jitter\n"
        b"==============================================================================\n"
        b" 192.0.2.77      .INIT.          16 u    -  512    0    0.000   +0.000   0.000\n"
    )
    answer = diagnose(read_sources([("log", [filler, table, filler])]))
    assert "NEVER_REACHED" in ids(answer)


@pytest.mark.parametrize("cut", [1, 7, 30])
def test_input_that_ends_in_mid_line_is_read(cut: int) -> None:
    text = "chronyd[1]: Can't synchronise: no majority\nchronyd[1]: Selected source 192.0.2.1"
    assert "NO_MAJORITY" in ids(ask(("-", text[:-cut])))


LINES = {
    "mixed": b"Sep  3 10:32:28 gpu1 kubelet[812]: MountVolume.SetUp succeeded pvc-%d 5a1f9c\n",
    "ptp4l": b"Sep  3 10:32:28 gpu1 ptp4l[263]: [%d.057] master offset        -12 s2 freq   -8120 path delay     735\n",
    "chronyd": b"Sep  3 10:32:28 gpu1 chronyd[263]: Selected source 10.0.%d.7\n",
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", LINES)
def test_a_hundred_megabytes_take_less_than_ten_seconds(kind: str) -> None:
    chunks: list[bytes] = []
    while sum(map(len, chunks)) < 100_000_000:
        chunks.append(b"".join(LINES[kind] % (len(chunks) * 9_000 + i) for i in range(9_000)))
    began = time.process_time()
    answer = diagnose(read_sources([(kind, iter(chunks))]))
    assert time.process_time() - began < 10
    assert answer.verdict in (Severity.HEALTHY, Severity.UNKNOWN)
