"""Random pipelines of `tf.data` against a model of them in plain Python: elements, specs and numbers of elements."""

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
import pytest

import jaxtribute.compat.tf as tf

Dataset = tf.data.Dataset
MANY = 24
"""Elements that are compared of a pipeline. Models have fewer, or for ever."""
PROGRAMS = 600


@dataclass(frozen=True)
class Model:
    """A dataset, and what it is to give.

    Attributes:
      dataset: the dataset.
      open: gives the elements; arrays are lists.
      kind: of the elements: numbers, texts, arrays of either, or pairs.
      endless: whether it never ends.
      is_counted: whether TensorFlow knows how many elements it has.
      text: how it was made.
    """

    dataset: Any
    open: Callable[[], Iterator[Any]]
    kind: str
    text: str
    endless: bool = False
    is_counted: bool = True

    def then(self, text: str, change: Callable[[Iterator[Any]], Iterator[Any]], **changes: Any) -> "Model":
        """Returns the model after a call of a method, which is evaluated."""
        made, before = eval(f"d.{text}", {"d": self.dataset, "D": Dataset, "tf": tf, "np": np}), self.open
        return replace(self, dataset=made, open=lambda: change(before()), text=f"{self.text}.{text}", **changes)


def listed(element: Any) -> Any:
    """An element with lists for arrays."""
    if isinstance(element, tuple):
        return tuple(map(listed, element))
    return np.asarray(element).tolist()


def chunks(rows: Iterator[Any], size: int, drop: bool) -> Iterator[Any]:
    """Batches: of pairs, a pair of lists."""
    while batch := list(itertools.islice(rows, size)):
        if len(batch) == size or not drop:
            yield joined(batch)


def joined(rows: list[Any]) -> Any:
    if not isinstance(rows[0], tuple):
        return rows
    return tuple(joined(list(column)) for column in zip(*rows, strict=True))


def sources(rng: random.Random) -> Model:
    count = rng.randint(0, 6)
    numbers = list(range(count))
    texts = [rng.choice(["ab", "q", "é"]) for _ in range(count + 1)]
    of = {
        "number": (f"D.range({count})", numbers),
        "numbers": (
            f"D.from_tensor_slices(np.arange({2 * count}).reshape({count}, 2))",
            [[2 * n, 2 * n + 1] for n in numbers],
        ),
        "text": (f"D.from_tensor_slices({texts})", [text.encode() for text in texts]),
        "pair": (f"D.zip((D.range({count}), D.range(9)))", [(n, n) for n in numbers]),
        "generated": (
            f"D.from_generator(lambda: iter(range({count})), output_signature=tf.TensorSpec([], tf.int64))",
            numbers,
        ),
    }
    kind = rng.choice(list(of))
    text, elements = of[kind]
    made = eval(text, {"D": Dataset, "tf": tf, "np": np})
    known = kind != "generated"
    return Model(made, lambda: iter(elements), "number" if not known else kind, text, is_counted=known)


def repeated(model: Model, count: int) -> Model:
    def elements(_: Iterator[Any]) -> Iterator[Any]:
        return itertools.chain.from_iterable(model.open() for _ in range(count))

    if count == 0:
        return model.then("repeat(0)", lambda _: iter(()), endless=False, is_counted=True)
    return model.then(f"repeat({count})", elements)


def for_ever(model: Model) -> Model:
    def elements(_: Iterator[Any]) -> Iterator[Any]:
        while True:
            rows = model.open()
            first = next(rows, None)
            if first is None:
                return
            yield first
            yield from rows

    empty = next(model.open(), None) is None
    return model.then("repeat()", elements, endless=not empty, is_counted=model.is_counted or not empty)


def windows(rows: Iterator[Any], size: int, shift: int) -> Iterator[Any]:
    held: list[Any] = []
    while True:
        held += itertools.islice(rows, max(size, shift) - len(held))
        if not held:
            return
        yield held[:size]
        held = held[shift:]


def any_stage(model: Model, rng: random.Random) -> Model:
    count, size, drop = rng.randint(0, 7), rng.randint(1, 3), rng.random() < 0.5
    index = rng.randrange(size)
    # Batches are not batched again: the last one may be smaller, and rows of different lengths make no batch.
    kind = {"number": "numbers", "text": "texts", "pair": "array"}.get(model.kind, "")
    stages: dict[str, Callable[[], Model]] = {
        "take": lambda: model.then(f"take({count})", lambda rows: itertools.islice(rows, count), endless=False),
        "skip": lambda: model.then(f"skip({count})", lambda rows: itertools.islice(rows, count, None)),
        "shard": lambda: model.then(f"shard({size}, {index})", lambda rows: itertools.islice(rows, index, None, size)),
        "repeat": lambda: repeated(model, count % 4),
        "for ever": lambda: for_ever(model),
        "cache": lambda: model if model.endless else model.then("cache()", lambda rows: rows),
        "prefetch": lambda: model.then("prefetch(1)", lambda rows: rows),
        "batch": lambda: (
            model.then(f"batch({size}, drop_remainder={drop})", lambda rows: chunks(rows, size, drop), kind=kind)
            if kind
            else model
        ),
        "concatenate": lambda: model.then("concatenate(d)", lambda rows: itertools.chain(rows, model.open())),
        "shuffle": lambda: model.then("shuffle(1)", lambda rows: rows),
    }
    return rng.choice(list(stages.values()))()


def stages_of_numbers(model: Model, rng: random.Random) -> Model:
    size, shift = rng.randint(1, 3), rng.randint(1, 4)
    least = rng.randint(0, 3)

    def unique(rows: Iterator[Any]) -> Iterator[Any]:
        return iter(dict.fromkeys(itertools.islice(rows, 99)))

    def multiples(rows: Iterator[Any]) -> Iterator[Any]:
        return (n for row in rows for n in range(row % 3))

    stages: list[tuple[str, Callable[[Iterator[Any]], Iterator[Any]], dict[str, Any]]] = [
        ("map(lambda x: x * 2)", lambda rows: (row * 2 for row in rows), {}),
        ("map(lambda x: [x, x + 1])", lambda rows: ((row, row + 1) for row in rows), {"kind": "pair"}),
        ("map(lambda x: tf.stack([x, x]))", lambda rows: ([row, row] for row in rows), {"kind": "numbers"}),
        ("enumerate(2)", lambda rows: enumerate(rows, 2), {"kind": "pair"}),
        ("scan(np.int64(0), lambda s, x: (s + x, s + x))", itertools.accumulate, {}),
        (
            f"window({size}, shift={shift}).flat_map(lambda w: w.batch({size}))",
            lambda rows: windows(rows, size, shift),
            {"kind": "array", "is_counted": False},
        ),
        (f"padded_batch({size})", lambda rows: chunks(rows, size, False), {"kind": "numbers"}),
    ]
    if not model.endless:
        stages += [
            ("flat_map(lambda x: D.range(int(x) % 3))", multiples, {"is_counted": False}),
            (f"filter(lambda x: x > {least})", lambda rows: (r for r in rows if r > least), {"is_counted": False}),
            (
                f"take_while(lambda x: x < {least})",
                lambda rows: itertools.takewhile(lambda row: row < least, rows),
                {"is_counted": False},
            ),
            ("unique()", unique, {"is_counted": False}),
        ]
    text, change, changes = rng.choice(stages)
    return model.then(text, change, **changes)


def stage(model: Model, rng: random.Random) -> Model:
    if rng.random() < 0.5 or model.kind in ("array", "texts"):
        return any_stage(model, rng)
    if model.kind == "number":
        return stages_of_numbers(model, rng)
    if model.kind == "text":
        if model.endless or rng.random() < 0.5:
            return model.then("map(lambda s: s + 'é')", lambda rows: (row + "é".encode() for row in rows))
        return model.then("filter(lambda s: s != 'ab')", lambda rows: (r for r in rows if r != b"ab"), is_counted=False)
    if model.kind == "pair":
        return model.then("map(lambda a, b: (b, a))", lambda rows: ((b, a) for a, b in rows))
    size = rng.randint(1, 3)
    flat = model.then("unbatch()", itertools.chain.from_iterable, kind="number", is_counted=False)
    if rng.random() < 0.5:
        return flat
    text = f"rebatch({size})"
    return model.then(text, lambda rows: chunks(itertools.chain.from_iterable(rows), size, False), is_counted=False)


def fits(spec: Any, element: Any) -> bool:
    """True if an element is what a spec describes."""
    if jax.tree.structure(spec) != jax.tree.structure(element):
        return False
    return all(
        leaf.shape.rank == np.ndim(part)
        and leaf.shape.is_compatible_with(np.shape(part))
        and leaf.dtype == (tf.string if np.asarray(part).dtype.kind in "OS" else np.asarray(part).dtype)
        for leaf, part in zip(jax.tree.leaves(spec), jax.tree.leaves(element), strict=True)
    )


def random_model(seed: int) -> Model:
    rng = random.Random(seed)
    model = sources(rng)
    for _ in range(rng.randint(1, 5)):
        model = stage(model, rng)
    return model


@pytest.mark.parametrize("seeds", [range(first, first + 100) for first in range(0, PROGRAMS, 100)], ids=str)
def test_random_pipelines_give_what_the_model_gives(seeds: range) -> None:
    for seed in seeds:
        model = random_model(seed)
        expected = list(itertools.islice(model.open(), MANY))
        spec = model.dataset.element_spec
        for number in range(3):
            given = list(itertools.islice(model.dataset.as_numpy_iterator(), MANY))
            assert list(map(listed, given)) == expected, (seed, model.text, number)
            assert all(fits(spec, element) for element in given), (seed, model.text, spec)
        assert list(map(listed, itertools.islice(model.dataset, MANY))) == expected, (seed, model.text)
        # As in TensorFlow, what is repeated for ever counts as endless unless it is known to be empty.
        if not expected and "repeat()" in model.text:
            continue
        cardinality = model.dataset.cardinality()
        if cardinality == tf.data.UNKNOWN_CARDINALITY:
            assert not model.is_counted, (seed, model.text)
        elif cardinality == tf.data.INFINITE_CARDINALITY:
            assert len(expected) == MANY or not expected, (seed, model.text)
        else:
            assert min(cardinality, MANY) == len(expected), (seed, model.text, cardinality)
