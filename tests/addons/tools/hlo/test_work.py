"""Operations and bytes counted in a program's text: those of the formulas, and those that XLA's CPU compiler tells."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxtribute._src.addons.tools.hlo import work
from jaxtribute._src.addons.tools.hlo.convolutions import convolution_flops


def compiled(function: Any, *shapes: tuple[int, ...]) -> Any:
    return jax.jit(function).lower(*(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)).compile()


@given(st.tuples(*[st.integers(1, 5)] * 4))
def test_products_have_two_operations_for_each_pair(sizes: tuple[int, ...]) -> None:
    batch, rows, inner, columns = (size + 1 for size in sizes)
    found = compiled(lambda a, b: jnp.einsum("brk,bkc->brc", a, b), (batch, rows, inner), (batch, inner, columns))
    assert work.flops(found.as_text()) == 2 * batch * rows * inner * columns


def test_a_convolution_and_its_gradients() -> None:
    layout = ("NHWC", "HWIO", "NHWC")

    def conv(x: Any, kernel: Any) -> Any:
        return jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=layout)

    shapes = (2, 8, 8, 3), (3, 3, 3, 5)
    pairs = 8 * 3 - 2  # at both ends one of three elements of the kernel meets padding
    assert work.flops(compiled(conv, *shapes).as_text()) == 2 * (2 * 5) * pairs**2 * 3


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("spread", [1, 3])
@pytest.mark.parametrize("padding", [(0, 0), (2, 1), (-1, 0)])
def test_pairs_of_a_convolution_are_those_that_meet_the_input(
    stride: int, dilation: int, spread: int, padding: tuple[int, int]
) -> None:
    # With ones for input and kernel, the sum of the result counts the pairs.
    source, kernel = jnp.ones((1, 1, 9)), jnp.ones((1, 1, 3))
    result = jax.lax.conv_general_dilated(source, kernel, (stride,), [padding], (spread,), (dilation,))
    size = result.shape[-1]
    line = (
        f"  %r = f32[1,1,{size}] convolution(%x, %k), window={{size=3 stride={stride} pad={padding[0]}_{padding[1]} "
        f"lhs_dilate={spread} rhs_dilate={dilation}}}, dim_labels=bf0_oi0->bf0"
    )
    assert convolution_flops(line, [(1, 1, size), (1, 1, 9), (1, 1, 3)]) == 2 * float(result.sum())


def test_groups_of_features_share_the_work() -> None:
    whole = "  %r = f32[1,4,7] convolution(%x, %k), window={size=3}, dim_labels=bf0_oi0->bf0"
    shapes = [(1, 4, 7), (1, 4, 9), (4, 1, 3)]
    assert convolution_flops(whole + ", feature_group_count=4", shapes) == 2 * 7 * 3 * 4
    assert convolution_flops("  %r = f32[1] convolution(%x, %k)", shapes) == 0  # no labels
    assert convolution_flops("dim_labels=b0f_0io->b1f", [(1, 7, 4), (1, 9, 4), (3, 4, 4)]) == 0  # unlike labels


CUDA = """\
ENTRY %main (a: f32[8,64], x: f32[2,8,8,3], k: f32[5,3,3,3]) -> f32[8,32] {
  %a = f32[8,64]{1,0} parameter(0)
  %b = f32[64,32]{1,0} constant({...})
  %x = f32[2,8,8,3]{3,2,1,0} parameter(1)
  %k = f32[5,3,3,3]{3,2,1,0} parameter(2)
  %y = f32[2,8,8,5]{3,2,1,0} constant({...})
  %p = (f32[8,32]{1,0}, s8[4096]{0}) custom-call(%a, %b), custom_call_target="__cublas$gemm", \
backend_config={"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],\
"rhs_contracting_dimensions":["0"]}}}
  %f = (f32[2,8,8,5]{3,2,1,0}, u8[0]{0}) custom-call(%x, %k), window={size=3x3 pad=1_1x1_1}, \
dim_labels=b01f_o01i->b01f, custom_call_target="__cudnn$convForward"
  %i = (f32[2,8,8,3]{3,2,1,0}, u8[0]{0}) custom-call(%y, %k), window={size=3x3 pad=1_1x1_1}, \
dim_labels=b01f_o01i->b01f, custom_call_target="__cudnn$convBackwardInput"
  %g = (f32[5,3,3,3]{3,2,1,0}, u8[0]{0}) custom-call(%x, %y), window={size=3x3 pad=1_1x1_1}, \
dim_labels=b01f_o01i->b01f, custom_call_target="__cudnn$convBackwardFilter"
  %s = f32[] custom-call(%x), custom_call_target="something else"
  ROOT %r = f32[8,32]{1,0} get-tuple-element(%p), index=0
}
"""


def test_calls_of_cublas_and_cudnn_are_counted() -> None:
    product, convolution = 2 * 8 * 32 * 64, 2 * (2 * 8 * 8 * 5) * (3 * 3 * 3)
    assert work.flops(CUDA) == product + 3 * convolution


@pytest.mark.parametrize("rows", [7, 64])
def test_bytes_of_a_product_are_those_of_its_arrays(rows: int) -> None:
    found = compiled(jnp.matmul, (rows, 32), (32, 16))
    assert work.traffic(found.as_text()) == found.cost_analysis()["bytes accessed"]
    assert work.traffic(found.as_text()) == 4 * (rows * 32 + 32 * 16 + rows * 16)


def test_each_instruction_of_the_entry_is_a_kernel() -> None:
    assert work.kernels(CUDA) == 5  # no names for values
    found = compiled(lambda a, b: jnp.tanh(a @ b) @ b, (8, 16), (16, 16))
    assert work.kernels(found.as_text()) == 3


def test_a_fusion_reads_its_operands_once_and_keeps_the_rest_inside() -> None:
    found = compiled(lambda x: jnp.tanh(x) * x + jnp.exp(x), (1000,))
    assert work.traffic(found.as_text()) == 4 * 2000
