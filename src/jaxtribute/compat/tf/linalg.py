"""A little of `tf.linalg`."""

from jaxtribute.compat.tf.math import einsum as einsum
from jaxtribute.compat.tf.math import global_norm as global_norm
from jaxtribute.compat.tf.math import l2_normalize as l2_normalize
from jaxtribute.compat.tf.math import matmul as matmul
from jaxtribute.compat.tf.math import matvec as matvec
from jaxtribute.compat.tf.math import norm as norm
from jaxtribute.compat.tf.math import tensordot as tensordot
