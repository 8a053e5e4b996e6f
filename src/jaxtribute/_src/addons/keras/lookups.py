"""Keras's lookups of strings and integers in a vocabulary, on the host with NumPy: Keras's own need TensorFlow.

JAX has no arrays of strings, and tables of Python's are faster than a program. So these layers work where values are
known: in a dataset's `map`, in models that are called and not compiled, and before `fit`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from jaxtribute._src.addons.keras import internals
from jaxtribute.errors import ArgumentError
from jaxtribute.extending import Tracer
from jaxtribute.typing import HostArray, Leaf, Nest

_MODES = ("int", "one_hot", "multi_hot", "count")
_OLDER_MODES = {"binary": "multi_hot"}


class _Lookup(keras.layers.Layer):
    """The number of each token in a vocabulary, or the token of each number.

    Args:
      settings: the arguments of the public classes that both share.
      name: the layer's name.
    """

    def __init__(self, settings: Mapping[str, Any], name: str | None, kwargs: Mapping[str, Any]) -> None:
        unknown = sorted(set(kwargs) - {"trainable", "dtype"})
        if unknown:
            raise ArgumentError(f"{type(self).__name__} has no argument {unknown[0]!r}. HINT: leave it out.")
        super().__init__(name=name, trainable=False)
        internals.take_host_values(self)
        self.max_tokens: int | None = settings["max_tokens"]
        self.num_oov_indices: int = settings["num_oov_indices"]
        self.mask_token: Leaf = settings["mask_token"]
        self.oov_token: Leaf = settings["oov_token"]
        self.invert: bool = settings["invert"]
        mode: str = settings["output_mode"]
        self.output_mode = _OLDER_MODES.get(mode, mode)
        self.pad_to_max_tokens: bool = settings["pad_to_max_tokens"]
        self._check()
        self._tokens: list[Any] = []
        self._numbers: dict[Any, int] = {}
        if settings["vocabulary"] is not None:
            self.set_vocabulary(settings["vocabulary"])

    def _check(self) -> None:
        kind = type(self).__name__
        if self.output_mode not in _MODES:
            raise ArgumentError(
                f"{kind}: output_mode is {self.output_mode!r}. HINT: choose one of {', '.join(_MODES)}."
            )
        if self.invert and self.output_mode != "int":
            raise ArgumentError(f"{kind}: invert=True has no output_mode {self.output_mode!r}. HINT: leave that out.")
        if self.num_oov_indices < 0:
            raise ArgumentError(f"{kind}: num_oov_indices is {self.num_oov_indices}. HINT: give 0 or more.")
        if self.max_tokens is not None and self.max_tokens <= 1:
            raise ArgumentError(f"{kind}: max_tokens is {self.max_tokens}. HINT: give 2 or more.")
        if self.pad_to_max_tokens and self.max_tokens is None:
            raise ArgumentError(f"{kind}: pad_to_max_tokens without max_tokens. HINT: give both.")

    # The vocabulary.

    def get_vocabulary(self, include_special_tokens: bool = True) -> list[Any]:
        """Returns the tokens in the order of their numbers, by default with those for masks and for unknown ones."""
        return [*self._special(), *self._tokens] if include_special_tokens else list(self._tokens)

    def vocabulary_size(self) -> int:
        """Returns the number of tokens, those for masks and for unknown ones included."""
        return self._first() + len(self._tokens)

    def set_vocabulary(self, vocabulary: Leaf, idf_weights: None = None) -> None:
        """Replaces the vocabulary.

        Args:
          vocabulary: its tokens in a sequence or array, with the special ones before them or not, or the path of a
            file with one token a line.
          idf_weights: not supported.

        Raises:
          ArgumentError: no tokens, one twice, more than `max_tokens`, or a special one among them.
        """
        _refuse(type(self).__name__, idf_weights=idf_weights)
        listed: Any = vocabulary
        if isinstance(vocabulary, str):
            listed = Path(vocabulary).read_text().splitlines()
        tokens = list(map(self._token, np.asarray(listed, object).reshape(-1).tolist()))
        # What `get_vocabulary` gives begins with the special tokens, and can be given back as it is.
        special = self._special()
        if special and tokens[: len(special)] == special:
            tokens = tokens[len(special) :]
        self._check_tokens(tokens)
        self._tokens = tokens
        self._numbers = {token: number for number, token in enumerate(tokens, self._first())}

    def _check_tokens(self, tokens: Sequence[Any]) -> None:
        if not tokens:
            raise ArgumentError(f"{self.name}: the vocabulary is empty. HINT: give it at least one token.")
        twice = [token for token, count in Counter(tokens).items() if count > 1]
        if twice:
            raise ArgumentError(f"{self.name}: {twice[0]!r} is in the vocabulary twice. HINT: give each token once.")
        # An unknown token's own text matters only where numbers become tokens again.
        reserved = {"mask_token": self.mask_token, "oov_token": self.oov_token if self.invert else None}
        for argument, token in reserved.items():
            if token is not None and token in tokens:
                raise ArgumentError(
                    f"{self.name}: {argument} {token!r} stands among the tokens. HINT: leave special tokens out, or "
                    f"put them first: {self._special()}."
                )
        size = self._first() + len(tokens)
        if self.max_tokens is not None and size > self.max_tokens:
            raise ArgumentError(
                f"{self.name}: the vocabulary has {size} tokens with the special ones, and max_tokens is "
                f"{self.max_tokens}. HINT: give fewer tokens."
            )

    def adapt(self, data: Nest, steps: int | None = None) -> None:
        """Takes the vocabulary from data: the most frequent tokens first, of equal ones the last in their order.

        Args:
          data: tokens in an array or lists of any shape, or batches of them in a dataset.
          steps: the number of batches to read; by default all.
        """
        # One array is a single batch; anything else gives batches when it is walked.
        counts: Counter[Any] = Counter()
        for number, batch in enumerate([data] if is_array(data) else data):
            if number == steps:
                break
            counts.update(self._read(batch)[0])
        if self.mask_token is not None:
            del counts[self.mask_token]
        del counts[self.oov_token]
        ordered = sorted(counts, key=lambda token: (counts[token], token), reverse=True)
        most = None if self.max_tokens is None else self.max_tokens - self._first()
        self.set_vocabulary(ordered[:most])

    def _special(self) -> list[Any]:
        return [self.mask_token] * self._masks() + [self.oov_token] * self.num_oov_indices

    def _masks(self) -> int:
        return int(self.mask_token is not None and self.output_mode == "int")

    def _first(self) -> int:
        """The number of the first token."""
        return self._masks() + self.num_oov_indices

    # Looking up.

    def call(self, inputs: Nest) -> Any:
        """Looks up each token, or with `invert` each number.

        Args:
          inputs: an array or lists of any shape; strings may be bytes.

        Returns:
          An array: for `int` of the inputs' shape, for `one_hot` with a last axis of the vocabulary's size in addition
          (in place of one of length 1), for `multi_hot` and `count` with it in place of the last axis. Strings come
          in a NumPy array of bytes.

        Raises:
          ArgumentError: the layer has no vocabulary; an unknown token where `num_oov_indices` is 0; `multi_hot` or
            `count` of more than two axes; or the values are not known, as in a compiled function.
        """
        if not self._tokens:
            raise ArgumentError(f"{self.name} has no vocabulary. HINT: pass vocabulary=, or call adapt() first.")
        if self.invert:
            return self._tokens_of(inputs)
        tokens, shape = self._read(inputs)
        numbers = np.array(list(map(self._number, tokens)), np.int64).reshape(shape)
        if self.output_mode == "int":
            return keras.ops.convert_to_tensor(numbers)
        return keras.ops.convert_to_tensor(self._encoded(numbers))

    def _number(self, token: Leaf) -> int:
        if self.mask_token is not None and token == self.mask_token:
            return 0 if self._masks() else -1  # those who encode leave it out
        found = self._numbers.get(token)
        if found is not None:
            return found
        if self.num_oov_indices == 0:
            raise ArgumentError(
                f"{self.name}: {token!r} is not in the vocabulary, and num_oov_indices is 0. HINT: leave that at 1."
            )
        return self._masks() + (token % self.num_oov_indices if self.num_oov_indices > 1 else 0)

    def _encoded(self, numbers: HostArray) -> HostArray:
        depth = self._depth()
        if numbers.ndim > 1 and numbers.shape[-1] == 1 and self.output_mode == "one_hot":
            numbers = numbers[..., 0]
        if numbers.ndim > 2 and self.output_mode != "one_hot":
            raise ArgumentError(
                f"{self.name}: output_mode {self.output_mode!r} of an array of shape {numbers.shape}, of which Keras "
                "encodes the second axis and describes the last. HINT: give a row of tokens for each example."
            )
        # A scalar counts as a row of one token. The -1 of a mask equals no column, so that its row stays empty.
        hot = numbers.reshape(*(numbers.shape or (1,)), 1) == np.arange(depth)
        if self.output_mode == "one_hot":
            return hot.astype(np.int64)
        return hot.any(-2).astype(np.int64) if self.output_mode == "multi_hot" else hot.sum(-2)

    def _tokens_of(self, inputs: Nest) -> Any:
        numbers = np.asarray(concrete(inputs, self.name))
        listed: list[Any] = []
        for number in numbers.reshape(-1).tolist():
            place = number - self._first()
            if number == 0 and self.mask_token is not None:
                listed.append(self.mask_token)
            else:
                listed.append(self._tokens[place] if 0 <= place < len(self._tokens) else self.oov_token)
        return self._as_output(listed, numbers.shape)

    def _read(self, inputs: Nest) -> tuple[list[Any], tuple[int, ...]]:
        """The tokens in one list, and the shape in which they were."""
        array = np.asarray(concrete(inputs, self.name))
        return list(map(self._token, array.reshape(-1).tolist())), array.shape

    def _token(self, value: Leaf) -> Any:
        raise NotImplementedError

    def _as_output(self, tokens: list[Any], shape: tuple[int, ...]) -> Any:
        raise NotImplementedError

    # What Keras asks for.

    def compute_output_shape(self, input_shape: Sequence[int | None]) -> tuple[int | None, ...]:
        """The shape of the results for a shape of inputs."""
        shape = tuple(input_shape)
        if self.output_mode == "int":
            return shape
        if self.output_mode == "one_hot" and not (len(shape) > 1 and shape[-1] == 1):
            return (*shape, self._depth())
        return (*shape[:-1], self._depth())

    def compute_output_spec(self, inputs: Any) -> Any:
        """The shape and the dtype of the results, of which a model is built."""
        return keras.KerasTensor(self.compute_output_shape(inputs.shape), self._output_dtype())

    def _output_dtype(self) -> str:
        return "int64"

    def _depth(self) -> int:
        return self.max_tokens if self.pad_to_max_tokens and self.max_tokens else self.vocabulary_size()

    def build(self, input_shape: object = None) -> None:
        """Nothing is to be made."""
        self.built = True

    def get_config(self) -> dict[str, Any]:
        """The arguments, the present vocabulary among them."""
        own = (
            "max_tokens",
            "num_oov_indices",
            "mask_token",
            "oov_token",
            "invert",
            "output_mode",
            "pad_to_max_tokens",
        )
        return {
            "name": self.name,
            "vocabulary": list(self._tokens) or None,
            **{name: getattr(self, name) for name in own},
        }


@keras.saving.register_keras_serializable("jaxtribute")
class StringLookup(_Lookup):
    """A layer that gives strings their number in a vocabulary, on the host.

    Args:
      max_tokens: the most tokens that a vocabulary has, special ones included; None for any number.
      num_oov_indices: how many numbers stand for unknown tokens: 1, or 0 if an unknown one is to be an error.
      mask_token: the token that stands for nothing: 0 for `int`, left out of the other results; None for none.
      oov_token: the token that `invert` gives for numbers that have none.
      vocabulary: the tokens, or the path of a file of them; see `set_vocabulary`.
      idf_weights: not supported.
      invert: gives tokens for numbers instead.
      output_mode: `int`; or a vector as long as the vocabulary is large, for each token (`one_hot`), or for the tokens
        along the last axis: which are there (`multi_hot`), and how often (`count`).
      pad_to_max_tokens: makes these vectors `max_tokens` long.
      sparse: not supported.
      encoding: that of bytes.
      name: the layer's name.
      salt: not supported.

    Raises:
      ArgumentError: an argument that is not supported, or that does not fit the others.

    Source: `keras.layers.StringLookup`.
    """

    def __init__(
        self,
        max_tokens: int | None = None,
        num_oov_indices: int = 1,
        mask_token: str | None = None,
        oov_token: str = "[UNK]",
        vocabulary: Leaf = None,
        idf_weights: None = None,
        invert: bool = False,
        output_mode: str = "int",
        pad_to_max_tokens: bool = False,
        sparse: bool = False,
        encoding: str = "utf-8",
        name: str | None = None,
        salt: None = None,
        **kwargs: Leaf,
    ) -> None:
        # Before any other name is assigned: `locals()` holds the arguments alone.
        settings = dict(locals())
        _refuse("StringLookup", idf_weights=idf_weights, sparse=sparse, salt=salt)
        if num_oov_indices > 1:
            raise ArgumentError(
                f"StringLookup: num_oov_indices is {num_oov_indices}, for which TensorFlow divides unknown strings by "
                "a hash function of its own. HINT: give 0 or 1."
            )
        self.encoding = encoding
        super().__init__(settings, name, kwargs)

    def text(self, value: Leaf) -> str:
        """A string of what data holds, which may be bytes."""
        return value.decode(self.encoding) if isinstance(value, bytes) else str(value)

    def _token(self, value: Leaf) -> Any:
        return self.text(value)

    def _as_output(self, tokens: list[Any], shape: tuple[int, ...]) -> Any:
        # Filled when it is made: of a list NumPy would choose a type of its own, which drops zeros at the ends of
        # bytes.
        encoded = np.empty(len(tokens), object)
        encoded[:] = [token.encode(self.encoding) for token in tokens]
        return encoded.reshape(shape)

    def _output_dtype(self) -> str:
        return "string" if self.invert else "int64"

    def get_config(self) -> dict[str, Any]:
        """The arguments, the present vocabulary among them."""
        return {**super().get_config(), "encoding": self.encoding}


@keras.saving.register_keras_serializable("jaxtribute")
class IntegerLookup(_Lookup):
    """A layer that gives integers their number in a vocabulary, on the host.

    Args:
      max_tokens: as of `StringLookup`.
      num_oov_indices: how many numbers stand for unknown tokens, which are divided by their remainder.
      mask_token: as of `StringLookup`.
      oov_token: as of `StringLookup`.
      vocabulary: as of `StringLookup`.
      vocabulary_dtype: `"int64"`.
      idf_weights: not supported.
      invert: as of `StringLookup`.
      output_mode: as of `StringLookup`.
      sparse: not supported.
      pad_to_max_tokens: as of `StringLookup`.
      oov_method: `"floormod"`.
      salt: not supported.
      name: the layer's name.

    Raises:
      ArgumentError: an argument that is not supported, or that does not fit the others.

    Source: `keras.layers.IntegerLookup`.
    """

    def __init__(
        self,
        max_tokens: int | None = None,
        num_oov_indices: int = 1,
        mask_token: int | None = None,
        oov_token: int = -1,
        vocabulary: Leaf = None,
        vocabulary_dtype: str = "int64",
        idf_weights: None = None,
        invert: bool = False,
        output_mode: str = "int",
        sparse: bool = False,
        pad_to_max_tokens: bool = False,
        oov_method: str = "floormod",
        salt: None = None,
        name: str | None = None,
        **kwargs: Leaf,
    ) -> None:
        # Before any other name is assigned, as in `StringLookup`.
        settings = dict(locals())
        _refuse("IntegerLookup", idf_weights=idf_weights, sparse=sparse, salt=salt)
        if oov_method != "floormod" or vocabulary_dtype != "int64":
            given = (
                f"oov_method={oov_method!r}" if oov_method != "floormod" else f"vocabulary_dtype={vocabulary_dtype!r}"
            )
            raise ArgumentError(f"IntegerLookup: {given} is not supported. HINT: leave it out.")
        super().__init__(settings, name, kwargs)

    def _token(self, value: Leaf) -> Any:
        return int(value)

    def _as_output(self, tokens: list[Any], shape: tuple[int, ...]) -> Any:
        return keras.ops.convert_to_tensor(np.array(tokens, np.int64).reshape(shape))


def _refuse(layer: str, **given: Leaf) -> None:
    for argument, value in given.items():
        if value is not None and value is not False:
            raise ArgumentError(
                f"{layer}: {argument}={value!r} is not supported, as it takes TensorFlow. HINT: leave it out."
            )


def concrete(values: Nest, layer: str) -> Nest:
    """Values that are known.

    Raises:
      ArgumentError: they are traced.
    """
    if isinstance(values, Tracer):
        raise ArgumentError(
            f"{layer} looks tokens up on the host, and cannot be a part of a compiled program. HINT: look them up "
            "before, in the dataset's map, dataset.map(lambda x: layer(x)), or in a model of its own."
        )
    return values


def is_array(data: Nest) -> bool:
    """True if data is one batch, not batches of it."""
    return isinstance(data, (list, tuple, np.ndarray, np.generic, str, bytes)) or keras.ops.is_tensor(data)
