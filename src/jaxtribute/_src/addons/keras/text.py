"""Keras's layer from texts to numbers, on the host with Python's strings: Keras's own needs TensorFlow."""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import keras
import numpy as np

from jaxtribute._src.addons.keras import internals
from jaxtribute._src.addons.keras.lookups import StringLookup, concrete, is_array
from jaxtribute.errors import ArgumentError
from jaxtribute.typing import HostArray, Leaf, Nest

_Rows: TypeAlias = "list[list[str]]"
_Function: TypeAlias = "Callable[[HostArray], Any]"
_LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)
"""TensorFlow makes ASCII's letters small alone."""
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_STANDARDIZE = {
    "lower": (_LOWER,),
    "strip_punctuation": (_PUNCTUATION,),
    "lower_and_strip_punctuation": (_LOWER, _PUNCTUATION),
}
_SPLIT = ("whitespace", "character")
_MODES = ("int", "multi_hot", "count")
_OLDER_MODES = {"binary": "multi_hot"}


@keras.saving.register_keras_serializable("jaxtribute")
class TextVectorization(keras.layers.Layer):
    """A layer that gives the words of texts their numbers in a vocabulary, on the host.

    Args:
      max_tokens: the most tokens that the vocabulary has, those for nothing and for unknown ones included; None for
        any number.
      standardize: changes to each text first: `lower`, `strip_punctuation`, both (`lower_and_strip_punctuation`),
        None, or a function of an array of strings that returns one of the same shape.
      split: how a text is cut: at `whitespace`, after each `character`, None for texts that are tokens already, or a
        function of an array of texts that returns a list of tokens for each.
      ngrams: None; or the sizes of groups of neighbors that are the tokens, in a tuple, or the largest of them.
      output_mode: `int`; or a vector as long as the vocabulary for each text: which tokens are in it (`multi_hot`),
        and how often (`count`).
      output_sequence_length: the length of each row of an `int` result, which is cut, or filled with 0; by default
        that of the longest.
      pad_to_max_tokens: makes the vectors `max_tokens` long.
      vocabulary: the tokens, or the path of a file of them.
      idf_weights: not supported.
      sparse: not supported.
      ragged: not supported.
      encoding: that of bytes.
      name: the layer's name.

    Raises:
      ArgumentError: an argument that is not supported, or that does not fit the others.

    Source: `keras.layers.TextVectorization`.
    """

    def __init__(
        self,
        max_tokens: int | None = None,
        standardize: str | _Function | None = "lower_and_strip_punctuation",
        split: str | _Function | None = "whitespace",
        ngrams: int | tuple[int, ...] | None = None,
        output_mode: str = "int",
        output_sequence_length: int | None = None,
        pad_to_max_tokens: bool = False,
        vocabulary: Leaf = None,
        idf_weights: None = None,
        sparse: bool = False,
        ragged: bool = False,
        encoding: str = "utf-8",
        name: str | None = None,
        **kwargs: Leaf,
    ) -> None:
        unknown = sorted(set(kwargs) - {"trainable", "dtype"})
        if unknown:
            raise ArgumentError(f"TextVectorization has no argument {unknown[0]!r}. HINT: leave it out.")
        for argument, value in {"idf_weights": idf_weights, "sparse": sparse, "ragged": ragged}.items():
            if value is not None and value is not False:
                raise ArgumentError(f"TextVectorization: {argument}={value!r} is not supported. HINT: leave it out.")
        super().__init__(name=name, trainable=False)
        internals.take_host_values(self)
        self.standardize, self.split = standardize, split
        self.ngrams = tuple(ngrams) if isinstance(ngrams, (list, tuple)) else ngrams
        self.output_mode = _OLDER_MODES.get(output_mode, output_mode)
        self.output_sequence_length = output_sequence_length
        self._check()
        self._lookup = StringLookup(
            max_tokens=max_tokens,
            vocabulary=vocabulary,
            mask_token="",
            output_mode=self.output_mode,
            pad_to_max_tokens=pad_to_max_tokens,
            encoding=encoding,
        )

    def _check(self) -> None:
        chosen: dict[str, tuple[Leaf, Sequence[str]]] = {
            "standardize": (self.standardize, tuple(_STANDARDIZE)),
            "split": (self.split, _SPLIT),
        }
        for argument, (value, known) in chosen.items():
            if value is not None and not callable(value) and value not in known:
                raise ArgumentError(
                    f"TextVectorization: {argument} is {value!r}. HINT: choose one of {', '.join(known)}, None, or a "
                    "function."
                )
        if self.output_mode not in _MODES:
            raise ArgumentError(
                f"TextVectorization: output_mode is {self.output_mode!r}. HINT: choose one of {', '.join(_MODES)}."
            )
        sizes = (self.ngrams,) if isinstance(self.ngrams, int) else self.ngrams or ()
        if not all(isinstance(size, int) and size > 0 for size in sizes):
            raise ArgumentError(f"TextVectorization: ngrams is {self.ngrams!r}. HINT: give sizes of 1 or more.")
        if self.output_sequence_length is not None and self.output_mode != "int":
            raise ArgumentError(
                f"TextVectorization: output_mode {self.output_mode!r} has no output_sequence_length "
                f"{self.output_sequence_length}. HINT: leave that out."
            )

    # The vocabulary.

    def get_vocabulary(self, include_special_tokens: bool = True) -> list[str]:
        """Returns the tokens in the order of their numbers, by default with those for nothing and for unknown ones."""
        return self._lookup.get_vocabulary(include_special_tokens)

    def vocabulary_size(self) -> int:
        """Returns the number of tokens, those for nothing and for unknown ones included."""
        return self._lookup.vocabulary_size()

    def set_vocabulary(self, vocabulary: Leaf, idf_weights: None = None) -> None:
        """Replaces the vocabulary; see `StringLookup.set_vocabulary`."""
        self._lookup.set_vocabulary(vocabulary, idf_weights)

    def adapt(self, data: Nest, batch_size: int | None = None, steps: int | None = None) -> None:
        """Takes the vocabulary from texts: the most frequent tokens first, of equal ones the last in their order.

        Args:
          data: texts in an array or a list, or batches of them in a dataset.
          batch_size: without effect.
          steps: the number of batches to read; by default all.
        """
        batches: Any = [data] if is_array(data) else data
        self._lookup.adapt((self._flat(batch) for batch in batches), steps)

    def _flat(self, batch: Nest) -> HostArray:
        return _objects([token for row in self._rows(batch)[0] for token in row])

    # Reading texts.

    def call(self, inputs: Nest) -> Any:
        """Looks up the tokens of each text.

        Args:
          inputs: texts in an array or lists, one in a row; strings may be bytes.

        Returns:
          An array with a row for each text; for a single text, its row.

        Raises:
          ArgumentError: the layer has no vocabulary; several texts in a row while `split` is set; or the values are not
            known, as in a compiled function.
        """
        rows, single = self._rows(inputs)
        if self.output_mode == "int":
            length = self.output_sequence_length
            if length is None:
                length = max(map(len, rows), default=0)
            numbers = np.zeros((len(rows), length), np.int64)
            for place, row in enumerate(rows):
                known = np.asarray(self._lookup(_objects(row)))[:length]
                numbers[place, : len(known)] = known
            return keras.ops.convert_to_tensor(numbers[0] if single else numbers)
        vectors = [np.asarray(self._lookup(_objects(row))) for row in rows]
        made = np.stack(vectors) if vectors else np.zeros((0, self._depth()), np.int64)
        return keras.ops.convert_to_tensor(made[0] if single else made)

    def _rows(self, inputs: Nest) -> tuple[_Rows, bool]:
        """The tokens of each text, and True if there is one text without an axis around it."""
        array = np.asarray(concrete(inputs, self.name), object)
        texts = _objects([self._lookup.text(value) for value in array.reshape(-1).tolist()]).reshape(array.shape)
        if callable(self.standardize):
            texts = np.asarray(self.standardize(texts.astype(np.str_)), object).reshape(array.shape)
        elif self.standardize is not None:
            for table in _STANDARDIZE[self.standardize]:
                texts = _objects([text.translate(table) for text in texts.reshape(-1)]).reshape(array.shape)
        if self.split is not None and texts.ndim > 1:
            if texts.shape[-1] != 1 or texts.ndim > 2:
                raise ArgumentError(
                    f"{self.name}: texts of shape {texts.shape} cannot be cut. HINT: give one text in a row, or "
                    "split=None."
                )
            texts = texts[..., 0]
        rows = [list(row) for row in self._cut(texts)]
        return [self._grouped(row) for row in rows], array.ndim == 0 or (self.split is None and array.ndim == 1)

    def _cut(self, texts: HostArray) -> Sequence[Sequence[str]]:
        if self.split is None:
            return texts.reshape(-1, texts.shape[-1]).tolist() if texts.ndim > 1 else [texts.reshape(-1).tolist()]
        flat = texts.reshape(-1)
        if callable(self.split):
            return [list(map(self._lookup.text, row)) for row in self.split(flat.astype(np.str_))]
        if self.split == "character":
            return [list(text) for text in flat]
        # Of bytes, since ASCII's blanks alone divide.
        return [[word.decode() for word in text.encode().split()] for text in flat]

    def _grouped(self, row: list[str]) -> list[str]:
        """The tokens of a row, or their groups."""
        if self.ngrams is None:
            return row
        sizes = range(1, self.ngrams + 1) if isinstance(self.ngrams, int) else self.ngrams
        found: list[str] = []
        for size in sizes:
            found += [" ".join(row[start : start + size]) for start in range(len(row) - size + 1)]
        return found

    # What Keras asks for.

    def compute_output_shape(self, input_shape: Sequence[int | None]) -> tuple[int | None, ...]:
        """The shape of the results for a shape of inputs."""
        if self.output_mode == "int":
            return (input_shape[0], self.output_sequence_length)
        return (input_shape[0], self._depth())

    def compute_output_spec(self, inputs: Any) -> Any:
        """The shape and the dtype of the results, of which a model is built."""
        return keras.KerasTensor(self.compute_output_shape(inputs.shape), "int64")

    def _depth(self) -> int:
        return self._lookup.compute_output_shape((None, None))[-1] or 0

    def build(self, input_shape: object = None) -> None:
        """Nothing is to be made."""
        self.built = True

    def get_config(self) -> dict[str, Any]:
        """The arguments, the present vocabulary among them."""
        looked_up = self._lookup.get_config()
        own = ("standardize", "split", "ngrams", "output_mode", "output_sequence_length")
        return {
            **{name: looked_up[name] for name in ("max_tokens", "pad_to_max_tokens", "vocabulary", "encoding")},
            **{name: getattr(self, name) for name in own},
            "name": self.name,
        }


def _objects(texts: Sequence[str]) -> HostArray:
    # Filled when it is made: of a list NumPy would choose a type of its own.
    array = np.empty(len(texts), object)
    array[:] = texts
    return array
