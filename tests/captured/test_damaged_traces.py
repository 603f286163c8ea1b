"""Real profiler traces, damaged in two hundred ways: an answer or one clear line, and no event lost in silence."""

from __future__ import annotations

import gzip
import json
import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from rankclock.errors import RankclockError
from rankclock.traces.inspect import inspect_file
from rankclock.traces.read import by_rank, read_one
from rankclock.traces.recover import recover
from rankclock.traces.rewrite import common_base_ns, merged

REAL = sorted((Path(__file__).parent / "traces").glob("torch-*.json.gz"))
TEXTS = [gzip.decompress(path.read_bytes()) for path in REAL]
PHASE = re.compile(rb'"ph"\s*:')
NUMBER = re.compile(rb"(?<=[:\s])-?\d+(?:\.\d+)?(?=[,\s}\]])")
HUGE = (
    b"9" * 60,
    b"1e400",
    b"-1e308",
    b"18446744073709551616",
    b"-9223372036854775809",
    b"NaN",
    b"0x7f",
    b"1.-5",
    b'""',
)

Damage = Callable[[bytes, random.Random], tuple[bytes, int]]
"""The damaged text, and how many places were touched."""


def cut(text: bytes, chance: random.Random) -> tuple[bytes, int]:
    return text[: chance.randrange(1, len(text))], 1


def beheaded(text: bytes, chance: random.Random) -> tuple[bytes, int]:
    return text[chance.randrange(1, len(text)) :], 1


def flipped(text: bytes, chance: random.Random) -> tuple[bytes, int]:
    out, count = bytearray(text), chance.choice((1, 5, 50))
    for _ in range(count):
        out[chance.randrange(len(out))] ^= 1 << chance.randrange(8)
    return bytes(out), count


def doubled(text: bytes, chance: random.Random) -> tuple[bytes, int]:
    if chance.random() < 0.3:
        return text + text, 1
    start = chance.randrange(len(text))
    end = chance.randrange(start, len(text))
    return text[:end] + text[start:], 1


def holed(text: bytes, chance: random.Random) -> tuple[bytes, int]:
    start = chance.randrange(len(text))
    fill = chance.choice((b"", b"\0" * 512, b"\xff" * 512))
    return text[:start] + fill + text[start + 512 :], 1


def huge(text: bytes, chance: random.Random) -> tuple[bytes, int]:
    count = chance.choice((1, 20))
    for match in sorted(chance.sample(list(NUMBER.finditer(text)), count), key=lambda one: -one.start()):
        text = text[: match.start()] + chance.choice(HUGE) + text[match.end() :]
    return text, count


DAMAGES: tuple[Damage, ...] = (cut, beheaded, flipped, doubled, holed, huge)
VARIANTS = [(damage, seed) for damage in DAMAGES for seed in range(34)]


def damaged(damage: Damage, seed: int) -> tuple[bytes, int]:
    chance = random.Random(f"{damage.__name__} {seed}")
    return damage(TEXTS[seed % 2], chance)


@pytest.mark.parametrize(("damage", "seed"), VARIANTS, ids=lambda one: getattr(one, "__name__", str(one)))
def test_damage_gets_an_answer_or_one_line_and_every_event_is_counted(
    damage: Damage, seed: int, tmp_path: Path
) -> None:
    text, places = damaged(damage, seed)
    path = tmp_path / "rank0.json"
    path.write_bytes(text)
    try:
        findings = inspect_file(path)
        traces = read_one(path).traces
    except RankclockError as error:
        assert "\n" not in str(error)
        assert str(path) in str(error)
        return
    assert findings
    there = len(PHASE.findall(text))
    counted = sum(trace.read + trace.lost for trace in traces)
    # A damaged place may hide a phase, or leave two events as one piece that is counted by its phases.
    assert there - 2 * places <= counted <= there + 2 * places
    if there > 2 * places:
        assert counted, findings
    lost = sum(trace.lost for trace in traces)
    assert all(finding.messages for finding in findings) or not lost


@pytest.mark.parametrize("seed", range(12))
def test_a_cut_trace_gives_every_event_that_is_whole(seed: int, tmp_path: Path) -> None:
    text = TEXTS[seed % 2]
    at = random.Random(seed).randrange(text.index(b'"traceEvents"') + 40, len(text))
    path = tmp_path / "rank0.json"
    path.write_bytes(text[:at])
    whole, decoder, place = 0, json.JSONDecoder(), text.index(b"[", text.index(b'"traceEvents"')) + 1
    string = text[:at].decode("latin-1")
    while (begin := string.find("{", place)) >= 0:
        try:
            _, place = decoder.raw_decode(string, begin)
        except ValueError:
            break
        whole += 1
    (trace,) = read_one(path).traces
    assert trace.read == whole
    assert whole > 0


@pytest.mark.parametrize(("damage", "seed"), [one for one in VARIANTS if one[1] % 9 == 0])
def test_a_damaged_rank_beside_a_whole_one_is_recovered_or_refused_in_one_line(
    damage: Damage, seed: int, tmp_path: Path
) -> None:
    text, _ = damaged(damage, 2 * seed)
    (tmp_path / "rank0.json").write_bytes(text)
    (tmp_path / "rank1.json").write_bytes(TEXTS[1])
    try:
        digests = by_rank([read_one(tmp_path / f"rank{rank}.json") for rank in (0, 1)])
        found = recover(digests)
    except RankclockError as error:
        assert "\n" not in str(error)
        return
    # One host, one clock: whatever is left, a bound that leaves out zero is wrong. Damage that makes other digits of
    # digits, or takes the base away, tells another truth.
    if damage in (cut, doubled) and all(digest.realtime for digest in digests.values()):
        for clock in found.clocks:
            assert not clock.offset.known or clock.offset.contains(0), clock
    try:
        written = b"".join(merged(digests, found.alignment, common_base_ns(digests)))
    except RankclockError as error:
        assert "\n" not in str(error)
        return
    path = tmp_path / "merged.json"
    path.write_bytes(written)
    (again,) = read_one(path).traces
    assert again.read + again.lost >= sum(digest.read + digest.lost for digest in digests.values())
    assert again.lost <= sum(digest.lost for digest in digests.values())


@pytest.mark.parametrize("seed", range(6))
def test_a_packed_trace_that_is_cut_or_flipped_says_where(seed: int, tmp_path: Path) -> None:
    packed = REAL[seed % 2].read_bytes()
    at = random.Random(seed).randrange(300, len(packed))
    path = tmp_path / "rank0.json.gz"
    path.write_bytes(packed[:at] if seed < 3 else packed[:at] + bytes([packed[at] ^ 0x40]) + packed[at + 1 :])
    try:
        findings = inspect_file(path)
    except RankclockError as error:
        assert "\n" not in str(error)
        return
    assert any("gzip data" in message for finding in findings for message in finding.messages), findings
