"""`tf.image`: the operations of input pipelines, on `jax.image`, for images of shape (..., height, width, channels)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from jaxtribute._src.addons.compat.tf.conversion import ShapeLike, TensorLike, as_tensor
from jaxtribute._src.addons.compat.tf.random import host_generator
from jaxtribute.errors import ArgumentError
from jaxtribute.typing import DType

_METHODS = {"bilinear": "linear", "nearest": "nearest", "bicubic": "cubic", "lanczos3": "lanczos3"}


class ResizeMethod:
    """Ways of `resize`. Source: `tf.image.ResizeMethod`."""

    BILINEAR = "bilinear"
    NEAREST_NEIGHBOR = "nearest"
    BICUBIC = "bicubic"
    LANCZOS3 = "lanczos3"


def resize(
    images: TensorLike,
    size: ShapeLike,
    method: Literal["bilinear", "nearest", "bicubic", "lanczos3"] = "bilinear",
    preserve_aspect_ratio: bool = False,
    antialias: bool = False,
) -> jax.Array:
    """Resizes to `size`, (height, width); float32 unless the method is "nearest".

    "bicubic" and "lanczos3" differ from TensorFlow's by some thousandths of the range.

    Raises:
      ArgumentError: a method that is not here.

    Source: `tf.image.resize`.
    """
    if method not in _METHODS:
        raise ArgumentError(f"resize by {method!r} is not here. HINT: one of {sorted(_METHODS)}.")
    array = as_tensor(images)
    array = array if method == "nearest" else array.astype(jnp.float32)
    height, width = (int(one) for one in size)
    if preserve_aspect_ratio:
        old = array.shape[-3:-1]
        scale = min(height / old[0], width / old[1])
        height, width = (max(1, round(one * scale)) for one in old)
    shape = (*array.shape[:-3], height, width, array.shape[-1])
    return jax.image.resize(array, shape, _METHODS[method], antialias=antialias)


def convert_image_dtype(image: TensorLike, dtype: DType, saturate: bool = False) -> jax.Array:
    """Changes the type: integers use the range of theirs, floats [0, 1]. Source: `tf.image.convert_image_dtype`."""
    array, new = as_tensor(image), np.dtype(dtype)
    if array.dtype == new:
        return array
    old_floats, new_floats = jnp.issubdtype(array.dtype, jnp.floating), jnp.issubdtype(new, jnp.floating)
    if old_floats and new_floats:
        return array.astype(new)
    if new_floats:
        return array.astype(new) * (1.0 / np.iinfo(array.dtype).max)
    most = np.iinfo(new).max
    if old_floats:
        scaled = array * (most + 0.5)
        return (jnp.clip(scaled, np.iinfo(new).min, most) if saturate else scaled).astype(new)
    ratio = (np.iinfo(array.dtype).max + 1) / (most + 1)
    return (array // int(ratio)).astype(new) if ratio > 1 else array.astype(new) * int(1 / ratio)


def flip_left_right(image: TensorLike) -> jax.Array:
    """Mirrors the width. Source: `tf.image.flip_left_right`."""
    return jnp.flip(as_tensor(image), -2)


def flip_up_down(image: TensorLike) -> jax.Array:
    """Mirrors the height. Source: `tf.image.flip_up_down`."""
    return jnp.flip(as_tensor(image), -3)


def rot90(image: TensorLike, k: int = 1) -> jax.Array:
    """Turns counter-clockwise by 90 degrees, `k` times. Source: `tf.image.rot90`."""
    return jnp.rot90(as_tensor(image), int(k), (-3, -2))


def central_crop(image: TensorLike, central_fraction: float) -> jax.Array:
    """Keeps the middle of height and width, a fraction of each. Source: `tf.image.central_crop`."""
    array = as_tensor(image)
    height, width = array.shape[-3:-1]
    top, left = (int((one - one * central_fraction) / 2) for one in (height, width))
    return crop_to_bounding_box(array, top, left, height - 2 * top, width - 2 * left)


def crop_to_bounding_box(
    image: TensorLike, offset_height: int, offset_width: int, target_height: int, target_width: int
) -> jax.Array:
    """Cuts a box out.

    Raises:
      ArgumentError: the box does not lie in the image.

    Source: `tf.image.crop_to_bounding_box`.
    """
    array = as_tensor(image)
    bottom, right = offset_height + target_height, offset_width + target_width
    if min(offset_height, offset_width) < 0 or bottom > array.shape[-3] or right > array.shape[-2]:
        raise ArgumentError(
            f"rows {offset_height} to {bottom} and columns {offset_width} to {right} do not lie in an image of shape "
            f"{array.shape}. HINT: pad it first, or use resize_with_crop_or_pad."
        )
    return array[..., offset_height:bottom, offset_width:right, :]


def pad_to_bounding_box(
    image: TensorLike, offset_height: int, offset_width: int, target_height: int, target_width: int
) -> jax.Array:
    """Puts zeros around an image. Source: `tf.image.pad_to_bounding_box`."""
    array = as_tensor(image)
    after = (target_height - offset_height - array.shape[-3], target_width - offset_width - array.shape[-2])
    widths = [(0, 0)] * (array.ndim - 3) + [(offset_height, after[0]), (offset_width, after[1]), (0, 0)]
    return jnp.pad(array, widths)


def resize_with_crop_or_pad(image: TensorLike, target_height: int, target_width: int) -> jax.Array:
    """Cuts off or pads evenly on both sides. Source: `tf.image.resize_with_crop_or_pad`."""
    array = as_tensor(image)
    size = array.shape[-3:-1]
    (top, above, height), (left, before, width) = map(_cut_or_pad, size, (target_height, target_width))
    return pad_to_bounding_box(
        crop_to_bounding_box(array, top, left, height, width), above, before, target_height, target_width
    )


def _cut_or_pad(old: int, new: int) -> tuple[int, int, int]:
    """Entries to cut at the beginning of an axis, zeros to put there, and entries that stay."""
    return max((old - new) // 2, 0), max((new - old) // 2, 0), min(old, new)


def random_crop(value: TensorLike, size: ShapeLike, seed: int | None = None) -> jax.Array:
    """Cuts out a box of shape `size`, which has as many axes as the array. Source: `tf.image.random_crop`.

    Raises:
      ArgumentError: `size` is larger than the array.
    """
    return _cropped(value, size, host_generator("image.random_crop", seed))


def stateless_random_crop(value: TensorLike, size: ShapeLike, seed: Sequence[int]) -> jax.Array:
    """Cuts out the box that belongs to a seed of two integers. Source: `tf.image.stateless_random_crop`."""
    return _cropped(value, size, _of(seed))


def _cropped(value: TensorLike, size: ShapeLike, generator: np.random.Generator) -> jax.Array:
    array, sizes = as_tensor(value), [int(one) for one in size]
    if len(sizes) != array.ndim or any(one > old for one, old in zip(sizes, array.shape, strict=False)):
        raise ArgumentError(f"a crop of {sizes} out of an array of shape {array.shape}. HINT: size has all axes.")
    starts = [int(generator.integers(old - one + 1)) for one, old in zip(sizes, array.shape, strict=True)]
    return array[tuple(slice(start, start + one) for start, one in zip(starts, sizes, strict=True))]


def adjust_brightness(image: TensorLike, delta: float) -> jax.Array:
    """Adds to each value, of which 1 is the most. Source: `tf.image.adjust_brightness`."""
    return _as_floats(image, lambda array: array + delta)


def adjust_contrast(images: TensorLike, contrast_factor: float) -> jax.Array:
    """Multiplies the distance from the mean of each channel. Source: `tf.image.adjust_contrast`."""

    def adjusted(array: jax.Array) -> jax.Array:
        mean = jnp.mean(array, (-3, -2), keepdims=True)
        return (array - mean) * contrast_factor + mean

    return _as_floats(images, adjusted)


def adjust_saturation(image: TensorLike, saturation_factor: float) -> jax.Array:
    """Multiplies the saturation of RGB images. Source: `tf.image.adjust_saturation`."""

    def adjusted(array: jax.Array) -> jax.Array:
        most, least = jnp.max(array, -1, keepdims=True), jnp.min(array, -1, keepdims=True)
        old = jnp.where(most > 0, (most - least) / jnp.where(most > 0, most, 1), 0)
        new = jnp.clip(old * saturation_factor, 0, 1)
        return most - (most - array) * jnp.where(old > 0, new / jnp.where(old > 0, old, 1), 0)

    return _as_floats(image, adjusted)


def _as_floats(image: TensorLike, function: Callable[[jax.Array], jax.Array]) -> jax.Array:
    array = as_tensor(image)
    return convert_image_dtype(function(convert_image_dtype(array, jnp.float32)), array.dtype, saturate=True)


def rgb_to_grayscale(images: TensorLike) -> jax.Array:
    """Weighs the channels into one. Source: `tf.image.rgb_to_grayscale`."""
    weights = jnp.array([0.2989, 0.587, 0.114], jnp.float32)
    return _as_floats(images, lambda array: jnp.sum(array * weights, -1, keepdims=True))


def grayscale_to_rgb(images: TensorLike) -> jax.Array:
    """Repeats the channel three times. Source: `tf.image.grayscale_to_rgb`."""
    return jnp.repeat(as_tensor(images), 3, -1)


def per_image_standardization(image: TensorLike) -> jax.Array:
    """Scales each image to mean 0 and variance 1. Source: `tf.image.per_image_standardization`."""
    array = as_tensor(image).astype(jnp.float32)
    axes = (-3, -2, -1)
    least = float(np.prod(array.shape[-3:])) ** -0.5
    mean, deviation = jnp.mean(array, axes, keepdims=True), jnp.std(array, axes, keepdims=True)
    return (array - mean) / jnp.maximum(deviation, least)


def total_variation(images: TensorLike) -> jax.Array:
    """Sums the differences between neighbouring pixels of each image. Source: `tf.image.total_variation`."""
    array = as_tensor(images)
    down, right = (jnp.sum(jnp.abs(jnp.diff(array, axis=axis)), (-3, -2, -1)) for axis in (-3, -2))
    return down + right


def _of(seed: Sequence[int]) -> np.random.Generator:
    return np.random.default_rng([int(one) for one in np.asarray(seed).ravel()])


def _drawn(function: Callable[..., jax.Array], name: str) -> tuple[Callable[..., jax.Array], Callable[..., jax.Array]]:
    """A function with a drawn argument, or applied or not, and the same for a seed of two integers."""

    def changed(image: TensorLike, bounds: Sequence[float], generator: np.random.Generator) -> jax.Array:
        if not bounds:
            return function(image) if generator.random() < 0.5 else as_tensor(image)
        first, last = bounds if len(bounds) == 2 else (-bounds[0], bounds[0])
        return function(image, float(generator.uniform(first, last)))

    def stateful(image: TensorLike, *bounds: float, seed: int | None = None, **named: float) -> jax.Array:
        return changed(image, (*bounds, *named.values()), host_generator(f"image.{name}", seed))

    def stateless(image: TensorLike, *bounds: float, seed: Any = None, **named: float) -> jax.Array:
        given: list[Any] = [*bounds, *named.values()]
        # It is the last argument by its place.
        last = given.pop() if seed is None else seed
        return changed(image, given, _of(last))

    stateful.__name__, stateless.__name__ = name, f"stateless_{name}"
    stateful.__doc__ = f"Draws from NumPy's generator. Source: `tf.image.{name}`."
    stateless.__doc__ = f"Draws by a seed of two integers. Source: `tf.image.stateless_{name}`."
    return stateful, stateless


random_flip_left_right, stateless_random_flip_left_right = _drawn(flip_left_right, "random_flip_left_right")
random_flip_up_down, stateless_random_flip_up_down = _drawn(flip_up_down, "random_flip_up_down")
random_brightness, stateless_random_brightness = _drawn(adjust_brightness, "random_brightness")
random_contrast, stateless_random_contrast = _drawn(adjust_contrast, "random_contrast")
random_saturation, stateless_random_saturation = _drawn(adjust_saturation, "random_saturation")
