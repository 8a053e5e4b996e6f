"""Edits of a program's text, and the places of its nodes."""

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxtribute._src.addons.compat.migrate.findings import Edit, Source, whole_changes

TEXT = "a = 1\nlong = 'é', a\n\nlast = 3"


class TestSource:
    def test_text_of_nodes(self) -> None:
        source = Source(TEXT)
        assert [source.of(node) for node in source.tree.body] == ["a = 1", "long = 'é', a", "last = 3"]

    def test_places_count_bytes(self) -> None:
        source = Source(TEXT)
        tuple_node = source.tree.body[1]
        assert isinstance(tuple_node, ast.Assign)
        assert isinstance(tuple_node.value, ast.Tuple)
        assert source.of(tuple_node.value.elts[1]) == "a"

    @pytest.mark.parametrize(
        ("first", "last", "text"),
        [(1, 1, "a = 1\n"), (2, 3, "long = 'é', a\n\n"), (4, 4, "last = 3"), (4, 9, "last = 3")],
    )
    def test_lines(self, first: int, last: int, text: str) -> None:
        assert Source(TEXT).lines(first, last) == text

    def test_what_is_not_python(self) -> None:
        with pytest.raises(SyntaxError):
            Source("a b")


class TestEdits:
    def test_a_node_is_replaced(self) -> None:
        source = Source(TEXT)
        assert source.apply([source.replace(source.tree.body[1], "x")]) == "a = 1\nx\n\nlast = 3"

    def test_lines_are_replaced(self) -> None:
        source = Source(TEXT)
        assert source.apply([source.replace_lines(2, 3, "x\n")]) == "a = 1\nx\nlast = 3"

    def test_an_insertion_comes_before_a_change_at_the_same_place(self) -> None:
        assert Source("old").apply([Edit(0, 3, "new"), Edit(0, 0, "first ")]) == "first new"

    def test_the_outer_of_two_changes_wins_and_the_other_is_not_made_in_part(self) -> None:
        inner, outer = (Edit(2, 3, "y"), Edit(6, 7, "z")), (Edit(0, 4, "g"),)
        assert Source("f(x), x").apply(whole_changes([inner, outer])) == "g, x"

    def test_the_same_change_twice_is_one(self) -> None:
        assert Source("abc").apply(whole_changes([(Edit(0, 1, "x"),), (Edit(0, 1, "x"),)])) == "xbc"

    def test_two_insertions_at_a_place_are_made_in_turns(self) -> None:
        assert whole_changes([(Edit(0, 0, "a"), Edit(3, 3, ")")), (Edit(0, 0, "b"),)]) == [
            Edit(0, 0, "a"),
            Edit(3, 3, ")"),
        ]

    @given(st.lists(st.integers(0, 30), unique=True), st.text("é数ab", min_size=31, max_size=31))
    def test_edits_that_do_not_touch_are_all_made(self, places: list[int], letters: str) -> None:
        text = f'"{letters}"'
        starts = [len(text[: place + 1].encode()) for place in places]
        ends = [len(text[: place + 2].encode()) for place in places]
        edits = [Edit(start, end, "-") for start, end in zip(starts, ends, strict=True)]
        expected = "".join("-" if place in places else letter for place, letter in enumerate(letters))
        assert Source(text).apply(edits) == f'"{expected}"'
