"""The page: whole, offline, escaped, nothing missing, an unknown shown as unknown and a miss said in words."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from rankclock.errors import HostError
from rankclock.report.html import render_html, write_html
from rankclock.report.record import Check, Event, Host, Matrix, PlanNode, RunRecord, Series
from rankclock.report.words import offset_words
from rankclock.timebase import Judgement

VOID = {"meta", "br", "hr", "img", "input", "link", "rect", "path"}
EVIL = '</script><script>alert("1 & 2")</script>'
LIMIT_BYTES = 6_000_000


class Page(HTMLParser):
    """Elements in balance, the words outside scripts and styles, and every attribute."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.words: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.scripts: list[str] = []
        self.ids: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == [], f"left open: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(name, value or "") for name, value in attrs]
        self.ids += [value or "" for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
            self.open.pop()

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts.append(data)
        elif not (self.open and self.open[-1] == "style"):
            self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words))


@pytest.fixture(scope="module")
def page(run: RunRecord) -> Page:
    return Page(render_html(run))


def _data(page: Page) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(page.scripts[0])
    return document


def test_the_page_is_well_formed_and_no_id_is_used_twice(page: Page) -> None:
    assert len(page.ids) == len(set(page.ids))
    for name, value in page.attributes:
        if name == "href":
            assert value.startswith("#")
            assert value[1:] in page.ids


def test_the_page_is_one_file_of_reasonable_size_with_plotly_in_it_once(run: RunRecord, tmp_path: Path) -> None:
    write_html(tmp_path / "report.html", run)
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert (tmp_path / "report.html").stat().st_size < LIMIT_BYTES
    assert text.count("plotly.js v") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_a_large_run_keeps_the_page_small_and_says_what_it_does_not_draw(run: RunRecord, tmp_path: Path) -> None:
    many = tuple(replace(run.series[n % 10], node=f"node{n}") for n in range(120))
    names = tuple(f"node{n}" for n in range(120))
    cell = run.matrices[1].cells[0][1]
    matrix = Matrix(
        title="all",
        names=names,
        cells=((cell,) * 120,) * 120,
        threshold_ns=1_000_000,
        verdict=Judgement.WITHIN,
    )
    write_html(tmp_path / "report.html", replace(run, series=many, matrices=(matrix,)))
    assert (tmp_path / "report.html").stat().st_size < LIMIT_BYTES
    page = Page((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert "Shown are the 40 nodes that were farthest off; 80 more are in the run record." in page.text
    assert "Shown are the 40 clocks with the worst pairs; 80 more are in the run record." in page.text


def test_nothing_outside_plotlys_own_source_names_an_address(run: RunRecord) -> None:
    from plotly.offline import get_plotlyjs

    ours = render_html(run).replace(get_plotlyjs().replace("</script", "<\\/script"), "")
    assert len(ours) < 1_000_000
    assert re.findall(r"(?:https?:)?//[a-z0-9]", ours, flags=re.IGNORECASE) == []
    assert not re.search(r"\b(?:src|action|srcset)=|@import|url\(", ours)


def test_the_page_forbids_the_browser_to_load_anything(page: Page) -> None:
    (policy,) = (value for name, value in page.attributes if name == "content" and "default-src" in value)
    assert policy.startswith("default-src 'none';")
    assert "http" not in policy


def test_every_node_is_in_the_tree_the_tables_and_the_pictures(run: RunRecord, page: Page) -> None:
    drawn = {panel["node"] for panel in _data(page)["panels"]}
    assert drawn == {series.node for series in run.series}
    for plan in run.plans:
        for node in plan.nodes:
            assert page.text.count(f" {node.node} ") >= 2


def test_the_numbers_in_the_pictures_are_those_of_the_record(run: RunRecord, page: Page) -> None:
    series = next(series for series in run.series if series.node == "gpu2")
    panel = next(panel for panel in _data(page)["panels"] if panel["node"] == "gpu2")
    recorded = {round(s.t_s, 3): (s.measured.lo_ns, s.measured.hi_ns, s.true_ns) for s in series.samples}
    columns = zip(panel["t"], panel["measured"]["lo"], panel["measured"]["hi"], panel["true"], strict=True)
    assert len(panel["t"]) > 200
    for t_s, lo_ns, hi_ns, true_ns in columns:
        assert recorded[t_s] == (lo_ns, hi_ns, true_ns)


def test_an_offset_is_never_shown_without_its_bound_method_and_age(run: RunRecord, page: Page) -> None:
    text = page.text.replace("\u00a0", " ")
    for plan in run.plans:
        for standing in plan.standings:
            measured = standing.state.measured
            if measured.known:
                assert f"{offset_words(measured)} against upstream; {measured.method}; " in text
    assert re.search(r"two-way, kernel stamps; [0-9.]+ (?:ms|s) old", text)


def test_an_unknown_is_shown_as_unknown_with_its_reason(page: Page) -> None:
    assert "unknown the daemon has no source (chronyd tracking)" in page.text
    assert page.text.count("unknown") > 10
    time1 = next(panel for panel in _data(page)["panels"] if panel["node"] == "time1")
    assert time1["unknown"] == [[61.8, 79.8]]
    assert time1["measured"]["estimate"][-1] is None


def test_a_node_that_nobody_read_is_unknown_and_not_fine(run: RunRecord) -> None:
    plan = replace(run.plans[0], standings=())
    page = Page(render_html(replace(run, plans=(plan,))))
    assert page.text.count("unknown: nobody read this clock") == 2 * (len(plan.nodes) - 1)
    css = [value for name, value in page.attributes if name == "class"]
    assert "node state-unknown" in css
    assert "node state-synchronised" not in css


def test_a_bound_that_misses_the_truth_is_red_and_said_in_words(lying_run: RunRecord) -> None:
    page = Page(render_html(lying_run))
    assert "1 measured bound of " in page.text
    assert "did not contain the truth." in page.text
    assert "Bounds that missed the truth" in page.text
    assert re.search(r"gpu2 - upstream \(4\d\.\d+ s, apply PTP\) was measured as \+9\d\.\d µs ± 2.00 µs", page.text)
    assert "Every measured bound contained the truth" not in page.text
    panel = next(panel for panel in _data(page)["panels"] if panel["node"] == "gpu2")
    assert sum(panel["missed"]) == 1
    assert ("class", "verdict bad") in page.attributes


def test_a_miss_in_a_matrix_and_in_a_standing_is_red_too(run: RunRecord) -> None:
    matrix = run.matrices[2]
    truths = [list(row) for row in matrix.true_ns or ()]
    truths[0][1] = 77_000
    standing = replace(run.plans[1].standings[4], true_ns=99_000)
    plan = replace(run.plans[1], standings=(*run.plans[1].standings[:4], standing, *run.plans[1].standings[5:]))
    wrong = replace(matrix, true_ns=tuple(map(tuple, truths)))
    page = Page(render_html(replace(run, matrices=(wrong,), plans=(plan,))))
    assert "1 bound missed the truth." in page.text
    assert "2 measured bounds of " in page.text
    css = [value for name, value in page.attributes if name == "class"]
    assert any("missed" in value and "shade" in value for value in css)
    assert "node state-synchronised missed" in css


def test_every_text_from_a_file_is_escaped(run: RunRecord) -> None:
    node = PlanNode(node=EVIL, role=EVIL, upstream=(EVIL + "2",), owner=EVIL, tier=0, budget_ns=1)
    plan = replace(run.plans[0], tree=EVIL, decision=(EVIL,), nodes=(node,), protocol=EVIL)
    series = Series(node=EVIL, reference="upstream", samples=run.series[0].samples)
    matrix = replace(run.matrices[0], title=EVIL, names=(EVIL, *run.matrices[0].names[1:]))
    record = replace(
        run,
        title=EVIL,
        command=EVIL,
        host=Host(kernel=EVIL, cores=1, versions={EVIL: EVIL}),
        plans=(plan,),
        series=(series,),
        matrices=(matrix,),
        events=(Event(t_s=1.0, node=EVIL, text=EVIL),),
        checks=(Check(name=EVIL, passed=False, detail=EVIL),),
    )
    page = Page(render_html(record))
    assert len(page.scripts) == 3
    assert "alert(" not in "".join(page.scripts[1:])
    assert _data(page)["panels"][0]["node"] == EVIL
    assert page.text.count("alert(") > 10


def _partial_runs(run: RunRecord) -> Iterator[RunRecord]:
    yield RunRecord(title="t", created_utc="", command="", reference="", host=Host(kernel="", cores=1, versions={}))
    for part in ("plans", "series", "matrices", "events", "phases", "checks", "figures", "left_out"):
        yield replace(run, **{part: ()})
    yield replace(run, takeover=None)
    yield replace(run, takeover=replace(run.takeover, new=None, taken_over_s=None)) if run.takeover else run
    yield replace(run, series=tuple(replace(series, samples=()) for series in run.series))


def test_a_run_of_which_any_part_is_missing_still_makes_a_page(run: RunRecord) -> None:
    for record in _partial_runs(run):
        Page(render_html(record))


def test_without_a_takeover_the_page_says_that_nobody_took_over(run: RunRecord) -> None:
    assert run.takeover is not None
    page = Page(render_html(replace(run, takeover=replace(run.takeover, new=None, taken_over_s=None))))
    assert "Nobody took over before the run ended." in page.text


def test_a_run_that_checked_nothing_does_not_claim_success() -> None:
    empty = RunRecord(title="t", created_utc="", command="", reference="", host=Host(kernel="", cores=1, versions={}))
    page = Page(render_html(empty))
    assert "Nothing was checked in this run." in page.text
    assert ("class", "verdict good") not in page.attributes


def test_without_plotly_one_line_says_what_to_install(run: RunRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly", None)
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(HostError, match=re.escape("pip install 'rankclock[report]'")):
        render_html(run)


def test_a_folder_that_cannot_be_written_is_named(run: RunRecord, tmp_path: Path) -> None:
    with pytest.raises(HostError, match="nowhere"):
        write_html(tmp_path / "nowhere" / "report.html", run)


def test_importing_the_report_does_not_import_plotly() -> None:
    import subprocess

    code = "import rankclock.report.html, rankclock.report.text, sys; sys.exit('plotly' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
