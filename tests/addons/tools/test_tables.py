"""Figures and tables as a reader sees them."""

import pytest
from rich.console import Console

from jaxtribute._src.addons.tools.tables import bytes_text, seconds_text, shape_text, table


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (66_000, "66.0 KB"), (1.2e9, "1.2 GB"), (3e15, "3000.0 TB")]
)
def test_bytes(count: float, text: str) -> None:
    assert bytes_text(count) == text


@pytest.mark.parametrize(("seconds", "text"), [(35e-6, "35.0 us"), (1.25e-3, "1.25 ms"), (3.1, "3.10 s")])
def test_seconds(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text


def test_shapes() -> None:
    assert shape_text(()) == "scalar"
    assert shape_text((3, 4)) == "3 x 4"


def test_numbers_stand_to_the_right_and_words_to_the_left() -> None:
    drawn = table("Sizes", ("name", "bytes", ""), [("w", "12", "fits")], words=("name",))
    drawn.add_row("bias", "4", "")
    console = Console(width=60, color_system=None)
    with console.capture() as captured:
        console.print(drawn)
    assert [line.rstrip() for line in captured.get().splitlines()] == [
        "Sizes",
        "name  bytes",
        "w        12  fits",
        "bias      4",
    ]
