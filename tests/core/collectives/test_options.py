"""Hints for collectives."""

import pytest

import jaxtribute as jd
from jaxtribute.errors import ArgumentError

Implementation = jd.experimental.CommunicationImplementation


def test_defaults_are_those_of_tensorflow() -> None:
    options = jd.experimental.CommunicationOptions()
    assert (options.bytes_per_pack, options.timeout_seconds, options.implementation) == (0, None, Implementation.AUTO)


def test_keeps_what_it_is_given() -> None:
    options = jd.experimental.CommunicationOptions(50, 120.0, Implementation.NCCL)
    assert (options.bytes_per_pack, options.timeout_seconds, options.implementation) == (50, 120.0, Implementation.NCCL)
    assert "bytes_per_pack=50" in repr(options)


@pytest.mark.parametrize("name", ["RING", "ring"])
def test_an_implementation_may_be_given_by_name(name: str) -> None:
    assert jd.experimental.CommunicationOptions(implementation=name).implementation is Implementation.RING


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [({"bytes_per_pack": -1}, "-1"), ({"timeout_seconds": -2.0}, "-2.0"), ({"implementation": "mpi"}, "'mpi'")],
)
def test_what_makes_no_sense_is_an_error(arguments: dict[str, object], shown: str) -> None:
    with pytest.raises(ArgumentError, match=shown):
        jd.experimental.CommunicationOptions(**arguments)  # pyright: ignore[reportArgumentType]
