"""Redaction keeps what the rules reason from; a change mends what it says, and the old file is kept."""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path

import pytest

from rankclock.cli.doctor import doctor
from rankclock.cli.doctor_fix import BEFORE
from rankclock.diagnosis.bundle import bundled
from rankclock.diagnosis.change import edited, propose, unified_diff
from rankclock.diagnosis.redact import Redactor
from rankclock.diagnosis.scan import read_sources
from rankclock.diagnosis.verdict import Answer, diagnose
from rankclock.errors import UserError

CAPTURED = Path(__file__).parents[2] / "captured"


def texts() -> list[str]:
    reports = (CAPTURED / "reports/reports.jsonl").read_text(encoding="utf-8").splitlines()
    found = [json.loads(line)["input"] for line in reports]
    for path in sorted((CAPTURED / "doctor").glob("*.case")):
        blocks = re.split(r"^== ", path.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
        found.extend(block.partition("\n--\n")[2] for block in blocks)
    return found


def ask(text: str, name: str = "-") -> Answer:
    return diagnose(read_sources([(name, [text.encode()])]))


def test_a_redacted_paste_gets_the_same_verdict_from_the_same_rules() -> None:
    for text in texts():
        evidence = read_sources([("-", [text.encode()])])
        plain = diagnose(evidence)
        bundle = bundled(evidence, plain)
        hidden = ask(bundle.texts["1.txt"])
        assert hidden.verdict is plain.verdict, text
        assert {finding.id for finding in hidden.findings} == {finding.id for finding in plain.findings}, text


@pytest.mark.parametrize(
    "secret",
    [
        "gpu17.prod.acme.com",
        "10.20.30.40",
        "2001:db8:1:2::77",
        "aa:bb:cc:dd:ee:ff",
        "a1b2c3.fffe.d4e5f6",
        "jane@acme.com",
    ],
)
def test_names_and_addresses_are_replaced_the_same_by_the_same(secret: str) -> None:
    redactor = Redactor()
    first, second = redactor.text(f"from {secret} to {secret}\n").split(" to ")
    assert secret not in first + second
    assert first.removeprefix("from ") == second.strip()


@pytest.mark.parametrize(
    "kept",
    [
        "169.254.169.123", "127.127.1.0", "224.0.1.129", "time1.google.com", "2.debian.pool.ntp.org", "chrony.conf",
        "trainer.py", "libptscotch.so", "4.3", "2024-03-05T08:00:00Z", "/dev/ptp0", "CLOCK_REALTIME", "12:34:56",
        "3.1.1",
    ],
)  # fmt: skip
def test_what_rules_need_and_what_is_no_name_is_kept(kept: str) -> None:
    assert Redactor().text(f"x {kept} y") == f"x {kept} y"


def test_host_names_of_prompts_and_logs_are_replaced_everywhere() -> None:
    text = "[root@login7 ~]# chronyc -n tracking\nMar  5 08:00:00 login7 chronyd[1]: Selected source 10.1.2.3\n"
    evidence = read_sources([("-", [text.encode()])])
    bundle = bundled(evidence, diagnose(evidence))
    assert "login7" not in bundle.texts["1.txt"] + json.dumps(bundle.answer)
    assert "10.1.2.3" not in bundle.texts["1.txt"]
    assert bundle.texts["1.txt"].count("host-1") == 2


def test_the_bundle_is_a_zip_with_evidence_and_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = tmp_path / "acme-node.log", tmp_path / "bundle.zip"
    source.write_text("Mar  5 08:00:00 acme7 chronyd[1]: Can't synchronise: no majority\n")
    assert doctor([str(source)], bundle=target) == 1
    with zipfile.ZipFile(target) as archive:
        assert archive.namelist() == ["README.txt", "evidence/1.txt", "answer.json"]
        everything = b"".join(archive.read(name) for name in archive.namelist())
    assert b"acme" not in everything
    assert json.loads(zipfile.ZipFile(target).read("answer.json"))["verdict"] == "fault"
    assert "read it before you give it away" in capsys.readouterr().err


CONFIGURATIONS = {
    "LEAP_TABLE_WITH_SMEAR": "server 169.254.169.123 prefer iburst\nleapsectz right/UTC\nrtcsync\nmakestep 1 3\n",
    "SMEAR_MIX": "server 169.254.169.123 iburst\npool 2.debian.pool.ntp.org iburst\nrtcsync\nmakestep 1 3\n",
    "LOCAL_DRIVER_IN_CHRONY": "server 10.0.0.1 iburst\nserver 127.127.1.0\nrtcsync\nmakestep 1 3\n",
    "PTP4L_CONF": "[global]\ntime_stamping software\nboundary_clock_jbod 1\nclockClass 6\n[eth0]\n",
}


@pytest.mark.parametrize("rule", CONFIGURATIONS)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_change_mends_its_finding_and_nothing_else(rule: str, end: str) -> None:
    before = CONFIGURATIONS[rule].replace("\n", end)
    evidence = read_sources([("f.conf", [before.encode()])])
    answer = diagnose(evidence)
    assert rule in {finding.id for finding in answer.findings}
    after = edited(before, list(propose(answer, evidence).edits))
    assert rule not in {finding.id for finding in ask(after).findings}
    assert after.count("\n") == after.count(end)
    assert unified_diff("f.conf", before, after).startswith("--- f.conf.before\n+++ f.conf\n")


def test_fix_prints_and_changes_nothing_apply_changes_and_keeps_the_old_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "chrony.conf"
    before = CONFIGURATIONS["LEAP_TABLE_WITH_SMEAR"]
    path.write_text(before)
    path.chmod(0o640)
    assert doctor([str(path)], fix=True) == 1
    assert "-leapsectz right/UTC" in capsys.readouterr().err
    assert path.read_text() == before
    doctor([str(path)], fix=True, apply=True)
    assert "leapsectz" not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o640
    assert (tmp_path / ("chrony.conf" + BEFORE)).read_text() == before
    assert f"mv {path}{BEFORE} {path}" in capsys.readouterr().err
    assert sorted(one.name for one in tmp_path.iterdir()) == ["chrony.conf", "chrony.conf" + BEFORE]


def test_commands_are_printed_and_never_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "units.txt"
    path.write_text(
        "  chrony.service            loaded active running chrony\n"
        "  systemd-timesyncd.service loaded active running timesyncd\n"
    )
    doctor([str(path)], fix=True, apply=True)
    said = capsys.readouterr().err
    assert "TWO_CONTROLLERS: run by hand: systemctl disable --now systemd-timesyncd" in said


def test_apply_without_fix_is_refused() -> None:
    with pytest.raises(UserError, match="--apply goes with --fix"):
        doctor(["-"], apply=True)
