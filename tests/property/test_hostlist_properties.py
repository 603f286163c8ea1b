"""Host lists: folding loses nothing, expanding never crashes; cluster texts give a cluster or one line."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankclock.cluster.hostlist import expand, expand_pattern, fold
from rankclock.cluster.load import parse_cluster
from rankclock.cluster.yaml_tree import YamlError, parse_yaml
from rankclock.errors import DecodeError, UserError

numbered = st.builds(
    lambda prefix, number, width, suffix: f"{prefix}{number:0{width}d}{suffix}",
    st.sampled_from(["gpu", "rack1-node", "x"]),
    st.integers(0, 120),
    st.integers(1, 4),
    st.sampled_from(["", "-ib", ".lan"]),
)
any_name = st.text(min_size=1, max_size=12).filter(lambda text: not set(text) & set("[],") and text.strip() == text)


@given(st.lists(numbered | any_name, max_size=30))
def test_what_is_folded_expands_to_the_same_names_in_the_same_order(names: list[str]) -> None:
    assert expand(fold(names)) == tuple(names) if names else fold(names) == ""


@given(st.integers(0, 500), st.integers(0, 300), st.integers(1, 5))
def test_a_range_of_numbers_folds_into_one_bracket(first: int, more: int, width: int) -> None:
    names = [f"gpu{number:0{width}d}" for number in range(first, first + more + 1)]
    assert expand(fold(names)) == tuple(names)
    assert fold(names).count("gpu") == 1


@given(st.text(alphabet="gpu[]0123456789-,. ²٣", max_size=30))
@settings(max_examples=300)
def test_expanding_any_text_gives_names_or_a_decode_error(text: str) -> None:
    try:
        names = expand(text, limit=2_000)
    except DecodeError:
        return
    assert len(names) <= 2_000
    assert all(name and not set(name) & set("[]") for name in names)


def test_several_brackets_run_like_nested_loops_with_the_left_one_slowest() -> None:
    assert expand_pattern("r[1-2]n[08-10]") == ("r1n08", "r1n09", "r1n10", "r2n08", "r2n09", "r2n10")
    assert expand("a[1,3],b") == ("a1", "a3", "b")


@pytest.mark.parametrize("text", ["", "a,", "a[", "a]", "a[[1]]", "a[]", "a[1-]", "a[x]", "a[2-1]", "a[1-99999999]"])
def test_what_is_no_host_list_is_refused(text: str) -> None:
    with pytest.raises(DecodeError):
        expand(text)


@given(
    st.text(alphabet=st.characters(codec="utf-8"), max_size=60)
    | st.text(alphabet="a:-[]{}&*!,'\"|> \n#?%@", max_size=40)
)
@settings(max_examples=300)
def test_any_text_is_a_tree_or_a_fault_with_its_line(text: str) -> None:
    try:
        parse_yaml(text)
    except YamlError as error:
        assert 1 <= error.line <= text.count("\n") + 2


HEAD = "schema: rankclock-cluster/1\nname: x\nnodes:\n"
pieces = st.sampled_from(
    ["  - name: a", "    kind: server", "    nics: []", "    nics:",
     "      - {name: e, address: 1.2.3.4/8, segment: s}",
     "  - name: b[1-3]", "    upstream: [a]", "require: {accuracy: 1us}", "sources: [{name: s, node: a}]", "pace: fast",
     "ptp: {domain: 300}", "  - 7", "nodes: 3", "    rack: 5", "network: {kind: moon}", "[", ": :"]
)  # fmt: skip


@given(st.lists(pieces, max_size=8))
@settings(max_examples=200, deadline=None)
def test_any_cluster_text_is_a_cluster_or_one_line_that_names_the_file(lines: list[str]) -> None:
    try:
        parse_cluster(HEAD + "\n".join(lines), "c.yaml")
    except UserError as error:
        assert str(error).startswith("c.yaml:")
        assert "\n" not in str(error)
