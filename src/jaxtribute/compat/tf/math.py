"""Arithmetic, comparisons, reductions and products, by their names in `tf.math`."""

from typing import Any

from jaxtribute._src.addons.compat.catalog.lookup import explain_absent as _explain_absent
from jaxtribute._src.addons.compat.tf.math import *
from jaxtribute._src.addons.compat.tf.math import ceil as ceil
from jaxtribute._src.addons.compat.tf.math import divide_no_nan as divide_no_nan
from jaxtribute._src.addons.compat.tf.math import erf as erf
from jaxtribute._src.addons.compat.tf.math import expm1 as expm1
from jaxtribute._src.addons.compat.tf.math import floordiv as floordiv
from jaxtribute._src.addons.compat.tf.math import floormod as floormod
from jaxtribute._src.addons.compat.tf.math import global_norm as global_norm
from jaxtribute._src.addons.compat.tf.math import is_finite as is_finite
from jaxtribute._src.addons.compat.tf.math import is_nan as is_nan
from jaxtribute._src.addons.compat.tf.math import l2_normalize as l2_normalize
from jaxtribute._src.addons.compat.tf.math import log as log
from jaxtribute._src.addons.compat.tf.math import log1p as log1p
from jaxtribute._src.addons.compat.tf.math import matvec as matvec
from jaxtribute._src.addons.compat.tf.math import reciprocal as reciprocal
from jaxtribute._src.addons.compat.tf.math import reduce_std as reduce_std
from jaxtribute._src.addons.compat.tf.math import reduce_variance as reduce_variance
from jaxtribute._src.addons.compat.tf.math import rsqrt as rsqrt
from jaxtribute._src.addons.compat.tf.math import softplus as softplus
from jaxtribute._src.addons.compat.tf.math import squared_difference as squared_difference
from jaxtribute._src.addons.compat.tf.math import top_k as top_k


def __getattr__(name: str) -> Any:
    raise _explain_absent(__name__, "tf.math", name)
