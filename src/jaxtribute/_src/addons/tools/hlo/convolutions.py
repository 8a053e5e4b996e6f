"""Operations of a convolution: those with elements of the input, not with its padding.

The compiler of TPUs writes every product of matrices as a convolution, and the batch of a product as a dimension with
padding or dilation. Few pairs of an output and an element of the kernel meet an element of the input there.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import numpy as np

from jaxtribute._src.addons.tools.hlo.text import Dims

_LABELS = re.compile(r"dim_labels=(?P<input>\w+)_(?P<kernel>\w+)->(?P<result>\w+)")
_WINDOW = re.compile(r"window=\{(?P<fields>[^}]*)\}")
_GROUPS = re.compile(r"(?:feature|batch)_group_count=(\d+)")


def convolution_flops(line: str, arrays: Sequence[Dims]) -> float:
    """Operations of a convolution: two for each product of an element of the input and one of the kernel.

    Args:
      line: its text, such as `... convolution(%x, %k), window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f`.
      arrays: shapes of its result, its input and its kernel.
    """
    labels = _LABELS.search(line)
    if labels is None or len(arrays) < 3:
        return 0.0
    result, source, kernel = (
        dict(zip(labels[name], shape, strict=False))
        for name, shape in zip(("result", "input", "kernel"), arrays, strict=False)
    )
    written = _WINDOW.search(line)
    fields = dict(field.split("=", 1) for field in written["fields"].split()) if written else {}
    pairs = 1
    for place in range(sum(label.isdigit() for label in labels["input"])):
        label = str(place)
        if label not in result.keys() & source.keys() & kernel.keys():
            return 0.0
        pairs *= _pairs(fields, place, result[label], source[label], kernel[label])
    shared = math.prod(map(int, _GROUPS.findall(line)))
    return 2.0 * pairs * source.get("b", 1) * source.get("f", 1) * kernel.get("o", 1) / shared


def _pairs(fields: dict[str, str], place: int, outputs: int, inputs: int, taps: int) -> int:
    """The number of pairs of an output and an element of the kernel that meet an input, along one dimension."""

    def field(name: str, default: str) -> str:
        parts = fields.get(name, "").split("x")
        return parts[place] if place < len(parts) and parts[place] else default

    stride, before = int(field("stride", "1")), int(field("pad", "0_0").split("_")[0])
    dilation, apart = int(field("rhs_dilate", "1")), int(field("lhs_dilate", "1"))
    met = np.arange(outputs)[:, None] * stride + np.arange(taps)[None, :] * dilation - before
    return int(((met >= 0) & (met % apart == 0) & (met // apart < inputs)).sum())
