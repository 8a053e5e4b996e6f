"""One string, as elements of datasets and results of `tf.strings` are, has the methods of Python's bytes."""

from typing import Any

import numpy as np
import pytest

from jaxtribute.compat import tf

ONE: dict[str, Any] = {
    "an element": lambda: next(iter(tf.data.Dataset.from_tensor_slices(["A b"]))),
    "a result": lambda: tf.strings.strip(next(iter(tf.data.Dataset.from_tensor_slices([" A b "])))),
    "a constant": lambda: tf.constant("A b"),
    "a mapped element": lambda: next(iter(tf.data.Dataset.from_tensor_slices(["A b"]).map(tf.strings.strip))),
    "joined ones": lambda: tf.strings.join([tf.constant("A"), tf.constant("b")], " "),
}


@pytest.mark.parametrize("make", ONE.values(), ids=ONE)
def test_methods_of_one_string(make: Any) -> None:
    text = make()
    assert text.split() == [b"A", b"b"]
    assert text.decode().lower() == "a b"
    assert text.startswith(b"A")
    assert text.item() == b"A b"
    assert not hasattr(text, "nonsense")
    assert np.shape(text) == ()


def test_methods_of_one_string_are_not_those_of_several() -> None:
    texts = tf.strings.lower(tf.constant(["A b", "c"]))
    told = r"'split' is a method of one string, and these are of shape \(2,\). HINT: write \[text.split\(\) for text in"
    with pytest.raises(AttributeError, match=told):
        texts.split()
    assert [text.split() for text in texts] == [[b"a", b"b"], [b"c"]]
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = texts.nonsense
