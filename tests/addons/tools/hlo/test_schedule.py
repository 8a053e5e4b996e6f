"""Times along a program's schedule: what runs beside what, and who waits."""

from dataclasses import replace

import pytest

from jaxtribute._src.addons.tools.hlo.exchanges import collectives
from jaxtribute._src.addons.tools.hlo.schedule import Rates, timing
from jaxtribute._src.addons.tools.hlo.work import traffic

RATES = Rates(1e3, 1e12, kernels=1e12, traffic=1e12, host=1e6, launch=0.0, exchange=lambda one: one.nbytes / 1e3)
"""A cycle is a millisecond, and so is a byte of a collective."""


def fusion(name: str, cycles: int, after: str = "%x") -> str:
    told = f'backend_config={{"estimated_cycles":"{cycles}"}}'
    return f"  %{name} = f32[1]{{0}} fusion({after}), kind=kLoop, calls=%f, {told}"


def program(*lines: str) -> str:
    body = ["%f (p: f32[1]) -> f32[1] {", "  ROOT %p = f32[1]{0} parameter(0)", "}", ""]
    return "\n".join([*body, "ENTRY %main (x: f32[1]) -> f32[1] {", "  %x = f32[1]{0} parameter(0)", *lines, "}"])


START = "  %s = (f32[1]{0}, f32[1]{0}) all-reduce-start(%x), replica_groups={{0,1}}, to_apply=%f"
DONE = "  %d = f32[1]{0} all-reduce-done(%s)"


@pytest.mark.parametrize(("before", "between", "exposed"), [(5, 0, 4), (0, 1, 3), (7, 3, 1), (2, 9, 0)])
def test_a_collective_is_hidden_as_far_as_something_runs_beside_it(before: int, between: int, exposed: int) -> None:
    found = timing(program(fusion("a", before), START, fusion("b", between), DONE, fusion("c", 2)), 2, RATES)
    assert found.compute == pytest.approx((before + between + 2) * 1e-3)
    assert found.told == found.compute
    assert found.exchange == pytest.approx(4e-3)
    assert (found.exposed, found.hidden) == pytest.approx((exposed * 1e-3, (4 - exposed) * 1e-3))
    assert found.step == pytest.approx(found.compute + found.exposed)


def test_one_that_is_not_begun_apart_hides_nothing() -> None:
    both = "  %r = f32[1]{0} all-reduce(%x), replica_groups={{0,1}}, to_apply=%f"
    found = timing(program(fusion("a", 9), both, fusion("b", 9)), 2, RATES)
    assert (found.exposed, found.step) == pytest.approx((4e-3, 22e-3))
    assert found.waits == {("all-reduce", 2): pytest.approx(4e-3)}


def test_two_share_the_links() -> None:
    second = START.replace("%s =", "%t =")
    found = timing(program(START, second, fusion("a", 5), DONE, DONE.replace("%s", "%t").replace("%d", "%e")), 2, RATES)
    assert (found.exchange, found.exposed) == pytest.approx((8e-3, 3e-3))


def test_a_chain_runs_beside_its_fusions() -> None:
    gather = '  ROOT %g = f32[1]{0} all-gather(%p), replica_groups={{0,1}}, frontend_attributes={chain_id="7"}'
    parts = ["%h (p: f32[1]) -> f32[1] {", "  %p = f32[1]{0} parameter(0)", gather, "}", ""]
    lines = [fusion(name, cycles).replace("calls=%f", "calls=%h") for name, cycles in (("a", 1), ("b", 1))]
    text = "\n".join([*parts, program(lines[0], fusion("m", 1), lines[1], fusion("z", 9))])
    found = timing(text, 2, RATES)
    assert (found.exchange, found.exposed) == pytest.approx((4e-3, 1e-3))
    assert found.step == pytest.approx(13e-3)


def test_loops_count_as_often_as_they_turn() -> None:
    body = ["%b (p: f32[1]) -> f32[1] {", "  %x = f32[1]{0} parameter(0)", fusion("one", 3), "}", ""]
    loop = '  %w = f32[1]{0} while(%x), condition=%f, body=%b, backend_config={"known_trip_count":{"n":"6"}}'
    assert timing("\n".join([*body, program(loop, fusion("a", 2))]), 2, RATES).step == pytest.approx(20e-3)


def test_what_the_compiler_does_not_tell_goes_by_operations_and_bytes() -> None:
    product = "  %d = f32[100,200]{1,0} dot(%l, %r), lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    operands = ["  %l = f32[100,300]{1,0} parameter(1)", "  %r = f32[300,200]{1,0} parameter(2)"]
    slow = replace(RATES, clock=None, operations=1e9)
    found = timing(program(*operands, product), 2, slow)
    assert (found.step, found.told) == pytest.approx((2 * 100 * 200 * 300 / 1e9, 0.0))
    quick = replace(RATES, clock=None, operations=1e15)
    assert timing(program(*operands, product), 2, quick).step == pytest.approx(4 * (30_000 + 60_000 + 20_000) / 1e12)


def test_two_kinds_may_have_chains_of_one_number() -> None:
    lines: list[str] = []
    parts: list[str] = []
    for name, kind in (("h", "all-gather"), ("i", "all-to-all")):
        exchange = (
            f'  ROOT %g = f32[1]{{0}} {kind}(%p), replica_groups={{{{0,1}}}}, frontend_attributes={{chain_id="7"}}'
        )
        parts += [f"%{name} (p: f32[1]) -> f32[1] {{", "  %p = f32[1]{0} parameter(0)", exchange, "}", ""]
        lines += [fusion(f"{name}_{i}", 1).replace("calls=%f", f"calls=%{name}") for i in range(2)]
    found = timing("\n".join([*parts, program(*lines)]), 2, RATES)
    assert found.exchange == pytest.approx(8e-3)
    assert set(found.waits) == {("all-gather", 2), ("all-to-all", 2)}


def test_a_slice_that_is_fetched_moves_the_slice() -> None:
    start = "  %s = ((f32[1000]{0}), f32[10]{0}, s32[]) slice-start(%x), slice={[0:10]}"
    copy = "  %t = (f32[10]{0}, f32[10]{0}, u32[]) copy-start(%x)"
    for begun, done in ((start, "  %d = f32[10]{0} slice-done(%s)"), (copy, "  %d = f32[10]{0} copy-done(%t)")):
        assert timing(program(begun, done), 2, RATES).step == pytest.approx(40 / 1e12)


HOSTED = "f32[6,1024]{1,0:S(5)}"
AWAY = f"(({HOSTED}, f32[1,1024]{{1,0}}, s32[], s32[]), {HOSTED}, u32[]{{:S(2)}}) dynamic-update-slice-start(%x)"
BACK = f"(({HOSTED}, s32[], s32[]), f32[1,1024]{{1,0}}, u32[]{{:S(2)}}) dynamic-slice-start(%x)"


@pytest.mark.parametrize("written_out", [False, True])
@pytest.mark.parametrize("start", [AWAY, BACK])
@pytest.mark.parametrize("beside", [0, 3, 9])
def test_what_goes_to_the_host_or_comes_from_there_takes_its_time_beside(
    start: str, beside: int, written_out: bool
) -> None:
    done = f"  %d = {HOSTED} copy-done(%s)"
    apart: list[str] = []
    if written_out:  # as in a text before code generation
        shape, _, kind = start.removesuffix("(%x)").rpartition(" ")
        start = f"{shape} async-start(%x), calls=%apart"
        operation = f"  ROOT %r = {HOSTED} {kind.removesuffix('-start')}(%p)"
        apart = ["%apart (p: f32[1]) -> f32[1] {", "  %p = f32[1]{0} parameter(0)", operation, "}", ""]
    text = "\n".join([*apart, program(f"  %s = {start}", fusion("a", beside), done)])
    assert timing(text, 1, RATES).step == pytest.approx(max(beside * 1e-3, 4096 / RATES.host))


@pytest.mark.parametrize("order", [1, -1])
def test_a_kernel_costs_what_it_states(order: int) -> None:
    stated = ",".join(['"flops":"5000"', '"transcendentals":"0"', '"bytes_accessed":"7000"'][::order])
    costs = f'{{"cost_estimate":{{{stated}}}}}'
    kernel = f'  %k = f32[1]{{0}} custom-call(%x), custom_call_target="tpu_custom_call", backend_config={costs}'
    for rate in ("kernels", "traffic"):
        found = timing(program(kernel), 1, replace(RATES, **{rate: 1e3}))
        assert found.step == pytest.approx(5.0 if rate == "kernels" else 7.0)


def test_a_part_of_a_tuple_that_is_named_without_an_instruction_is_that_part() -> None:
    """As in a text before code generation."""
    pair = "  %pair = (f32[8]{0:T(128)}, (s32[]{:T(128)}, u32[2]{0}), /*index=2*/f32[100,300]{1,0:T(8,128)}) fusion(%x)"
    product = "  %d = f32[100,200]{1,0} dot(%pair#2, %r), lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    text = program(pair, "  %r = f32[300,200]{1,0} parameter(2)", product)
    apart = product.replace("%pair#2", "%part")
    part = "  %part = f32[100,300]{1,0:T(8,128)} get-tuple-element(%pair), index=2"
    whole = program(pair, part, "  %r = f32[300,200]{1,0} parameter(2)", apart)
    slow = replace(RATES, clock=None, operations=1e9)
    assert timing(text, 1, slow) == timing(whole, 1, slow)
    assert timing(text, 1, slow).step >= 2 * 100 * 200 * 300 / 1e9
    assert traffic(text) == traffic(whole)


def test_a_sum_of_which_each_takes_a_slice_is_a_reduce_scatter() -> None:
    """As the compiler of TPUs writes one, for v5e:2x2 in libtpu 0.0.52."""
    lines = [
        "%all-reduce-scatter.1 (input: f32[8]) -> f32[4] {",
        "  %input = f32[8]{0} parameter(0)",
        "  %sum = f32[8]{0} all-reduce(%input), replica_groups={{0,1}}, to_apply=%f",
        "  ROOT %slice = f32[4]{0} dynamic-slice(%sum, %input), dynamic_slice_sizes={4}",
        "}",
        "",
    ]
    fused = "  %r = f32[4]{0} fusion(%x), kind=kCustom, calls=%all-reduce-scatter.1"
    text = "\n".join([*lines, program(fused)])
    assert set(timing(text, 2, RATES).waits) == {("reduce-scatter", 2)}
    (found,) = collectives(text, 2)
    assert (found.kind, found.nbytes, found.sent(2)) == ("reduce-scatter", 32, 16)
