"""The time tree of a plan as a drawing: a box a node, the reference on the left, the training nodes on the right.

Decides where boxes stand and what each says. Refuses to colour by role: the colour is the state, and a node that nobody
read is drawn as unknown. The answer is inline SVG that takes its colours from the page's style sheet.
"""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup, escape

from rankclock.report.record import PlanNode, PlanRecord, Standing
from rankclock.report.words import offset_details, offset_words, signed_words
from rankclock.timebase import Judgement, format_span_ns

__all__ = ["Box", "draw_tree", "lay_out"]

BOX_WIDTH, BOX_HEIGHT = 264, 112
COLUMN_STEP, ROW_STEP = 336, 124
MARGIN = 6
NAME_LETTERS, ROLE_LETTERS = 20, 40
"""What fits in a box at the drawing's letter sizes; the whole text stands in the tooltip and in the table below."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A node's place: column (its distance from the reference) and row (fractions lie between two leaves)."""

    name: str
    column: int
    row: float


def lay_out(nodes: tuple[PlanNode, ...]) -> tuple[Box, ...]:
    """Places for all nodes, and for the sources that are only named as somebody's upstream.

    Children stand right of the upstream that they prefer, parents at the middle of their children. A node inside a
    circle of upstreams (a broken plan) is placed as if it had none, so that every node is drawn.
    """
    preferred = {node.node: node.upstream[0] if node.upstream else None for node in nodes}
    for node in nodes:
        for name in node.upstream:
            preferred.setdefault(name, None)
    for name, upstream in list(preferred.items()):
        seen, at = {name}, upstream
        while at is not None and at not in seen:
            seen.add(at)
            at = preferred[at]
        if at == name:
            preferred[name] = None
    children: dict[str | None, list[str]] = {}
    for name, parent in preferred.items():
        children.setdefault(parent, []).append(name)
    placed: dict[str, Box] = {}
    next_row = 0

    def place(name: str, column: int) -> float:
        nonlocal next_row
        rows = [place(child, column + 1) for child in children.get(name, ())]
        if not rows:
            rows, next_row = [next_row], next_row + 1
        placed[name] = Box(name=name, column=column, row=(rows[0] + rows[-1]) / 2)
        return placed[name].row

    for root in children.get(None, ()):
        place(root, 0)
    return tuple(placed[name] for name in preferred)


def draw_tree(plan: PlanRecord, reference: str) -> Markup:
    """The plan as one SVG element. `reference` is the clock that offsets are drawn against."""
    boxes = {box.name: box for box in lay_out(plan.nodes)}
    nodes = {node.node: node for node in plan.nodes}
    standings = {standing.state.node: standing for standing in plan.standings}
    width = MARGIN * 2 + max((box.column for box in boxes.values()), default=0) * COLUMN_STEP + BOX_WIDTH
    height = MARGIN * 2 + int(max((box.row for box in boxes.values()), default=0) * ROW_STEP) + BOX_HEIGHT
    lines = [_edge(boxes[node.node], boxes[up], rank) for node in plan.nodes for rank, up in enumerate(node.upstream)]
    drawn = [_box(box, nodes.get(name), standings.get(name), reference) for name, box in boxes.items()]
    label = f"Time tree of the {plan.protocol.upper()} plan"
    return Markup(
        '<svg class="tree" viewBox="0 0 {} {}" style="max-width:{}px" role="img" aria-label="{}">{}{}</svg>'
    ).format(width, height, width, label, Markup("").join(lines), Markup("").join(drawn))


def _corner(box: Box) -> tuple[float, float]:
    return MARGIN + box.column * COLUMN_STEP, MARGIN + box.row * ROW_STEP


def _edge(child: Box, parent: Box, rank: int) -> Markup:
    """A line from upstream to downstream: solid for the preferred one, dashed for those behind it."""
    from_x, from_y = _corner(parent)
    to_x, to_y = _corner(child)
    if parent.column >= child.column:  # a backup that stands in the same column or right of it: around the left side
        start_x, bend = from_x, -40.0
    else:
        start_x, bend = from_x + BOX_WIDTH, (COLUMN_STEP - BOX_WIDTH) / 2
    middle = BOX_HEIGHT / 2
    return Markup('<path class="edge {}" d="M{:.0f} {:.0f} C{:.0f} {:.0f} {:.0f} {:.0f} {:.0f} {:.0f}"/>').format(
        "preferred" if rank == 0 else "backup",
        start_x,
        from_y + middle,
        start_x + bend,
        from_y + middle,
        to_x - abs(bend),
        to_y + middle,
        to_x,
        to_y + middle,
    )


def _box(box: Box, node: PlanNode | None, standing: Standing | None, reference: str) -> Markup:
    x, y = _corner(box)
    state = "reference" if box.name == reference else standing.state.state.value if standing else "unknown"
    missed = (
        standing is not None and standing.true_ns is not None and not standing.state.measured.contains(standing.true_ns)
    )
    parts = [
        Markup("<title>{}</title>").format(_tooltip(box.name, node, standing)),
        Markup('<rect class="body" width="{}" height="{}" rx="6"/>').format(BOX_WIDTH, BOX_HEIGHT),
        Markup('<rect class="stripe" width="7" height="{}" rx="3"/>').format(BOX_HEIGHT),
        _text("name", 18, 22, _cut(box.name, NAME_LETTERS)),
        Markup('<text class="state" x="{}" y="22" text-anchor="end">{}</text>').format(BOX_WIDTH - 10, state),
        _text("role", 18, 39, _cut(_role(node), ROLE_LETTERS)),
        *_numbers(box.name, node, standing, reference, missed),
    ]
    css = f"node state-{state}{' missed' if missed else ''}"
    return Markup('<g class="{}" transform="translate({:.0f} {:.0f})">{}</g>').format(css, x, y, Markup("").join(parts))


def _text(css: str, x: int, y: int, words: str) -> Markup:
    return Markup('<text class="{}" x="{}" y="{}">{}</text>').format(css, x, y, words)


def _role(node: PlanNode | None) -> str:
    return "source, not configured by this plan" if node is None else node.role


def _budget(node: PlanNode | None, standing: Standing | None) -> str:
    if node is None or node.budget_ns is None:
        return "none given"
    judged = standing.state.measured.judge(node.budget_ns) if standing else Judgement.CANNOT_TELL
    return f"{format_span_ns(node.budget_ns)}: {judged.value}"


def _numbers(name: str, node: PlanNode | None, standing: Standing | None, reference: str, missed: bool) -> list[Markup]:
    if standing is None:
        known = name == reference
        words = "offsets are drawn against this clock" if known else "unknown: nobody read this clock"
        return [_text("none", 18, 58, words)]
    rows = [
        ("measured", offset_words(standing.state.measured)),
        ("claimed", offset_words(standing.state.claimed)),
        ("true", signed_words(standing.true_ns) + (": bound missed it" if missed else "")),
        ("budget", _budget(node, standing)),
    ]
    lines = []
    for row, (kind, words) in enumerate(rows):
        lines.append(_text(f"label {kind}", 18, 57 + 15 * row, kind))
        lines.append(_text(f"value {kind}", 88, 57 + 15 * row, words))
    return lines


def _cut(words: str, letters: int) -> str:
    return words if len(words) <= letters else words[: letters - 1] + "…"


def _tooltip(name: str, node: PlanNode | None, standing: Standing | None) -> str:
    lines = [name, _role(node), f"budget {_budget(node, standing)}"]
    if node is not None and node.upstream:
        lines.append(f"takes time from {', '.join(node.upstream)}")
    if standing is not None:
        lines.append(f"measured {offset_words(standing.state.measured)}: {offset_details(standing.state.measured)}")
        lines.append(f"claimed {offset_words(standing.state.claimed)}: {offset_details(standing.state.claimed)}")
        lines.extend(standing.state.reasons)
    return escape("\n".join(lines))
