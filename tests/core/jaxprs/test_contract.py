"""What the library relies on inside JAX, one fact a test: a release of JAX that breaks one fails here, by name.

Each test says in its assertion what follows where the fact no longer holds.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import Mesh, PartitionSpec

import jaxtribute
from jaxtribute._src.core.jaxprs import core, kinds, walking
from jaxtribute._src.core.jaxprs.flow import scan_counts
from jaxtribute._src.core.jaxprs.telltale import Telltale

AXIS = "replica"
TWO = jnp.ones(2)


def traced(fn: Callable[..., Any], *inputs: Any) -> Any:
    """The program of `fn`, closed."""
    return jax.make_jaxpr(fn, axis_env=[(AXIS, 2)])(*inputs)


def operations(program: Any, name: str) -> list[Any]:
    """All operations of a name in a program, at any depth."""
    found: list[Any] = []
    for eqn in core.opened(program).eqns:
        found += [eqn] if eqn.primitive.name == name else []
        for inner in walking.programs_in(eqn):
            found += operations(inner, name)
    return found


def only(fn: Callable[..., Any], name: str, *inputs: Any) -> Any:
    """The one operation of a name that tracing `fn` gives."""
    found = operations(traced(fn, *inputs), name)
    assert len(found) == 1, f"JAX no longer traces this to one operation named {name!r}: see jaxprs/walking.py"
    return found[0]


# --- programs ---------------------------------------------------------------------------------------------------------


def test_a_closed_program_is_opened_and_closed_again() -> None:
    whole = traced(lambda x: x + np.arange(2000.0, dtype=np.float32), jnp.ones(2000))
    jaxpr, values = core.opened(whole), core.constants(whole)
    assert len(jaxpr.constvars) == len(values) == 1, "arrays that a function closes over are no constants any more"
    again = core.closed(jaxpr, [values[0] * 2])
    (result,) = core.as_function(again)(jnp.ones(2000))
    assert float(result[3]) == 7, "a program cannot be given other constants: core.closed"
    assert core.is_program(whole)
    assert core.is_program(jaxpr)


def test_operations_and_programs_are_replaced_in_parts() -> None:
    jaxpr = core.opened(traced(lambda x: (x + 1, x * 2), TWO))
    first, second = jaxpr.eqns
    swapped = jaxpr.replace(outvars=jaxpr.outvars[::-1], eqns=[second, first])
    up, down = core.as_function(core.closed(swapped, []))(TWO)
    assert (float(up[0]), float(down[0])) == (2, 2), "Jaxpr.replace does something else: jaxprs/walking.py"
    other = first.replace(params=dict(first.params), outvars=list(first.outvars))
    assert other.primitive is first.primitive, "JaxprEqn.replace does something else"


def test_an_operation_is_bound_again_under_its_settings() -> None:
    eqn = only(jnp.sort, "sort", jnp.array([3.0, 1.0]))
    (result,) = core.bind(eqn, [jnp.array([5.0, 4.0])])
    assert result.tolist() == [4, 5], "eqn.ctx.manager or primitive.bind has changed: core.bind"


def test_dead_code_is_cut_and_unused_inputs_are_told() -> None:
    table = np.arange(2000.0, dtype=np.float32)

    def fn(x: Any, y: Any, z: Any) -> Any:
        return lax.scan(lambda c, a: (c + a, None), z, y)[0], (x * table).sum()

    whole = traced(fn, jnp.ones(2000), TWO, jnp.float32(1))
    first, used = core.pruned(whole, core.opened(whole).outvars[:1])
    assert used == [False, True, True], "dead-code elimination of JAX has changed: core.pruned"
    assert list(core.constants(first)) == []
    assert float(core.as_function(first)(TWO, jnp.float32(1))[0]) == 3
    second, used = core.pruned(whole, core.opened(whole).outvars[1:])
    assert used == [True, False, False]
    assert float(core.as_function(second)(jnp.ones(2000))[0]) == table.sum()


def test_literals_are_in_place_and_variables_are_keys() -> None:
    (eqn,) = core.opened(traced(lambda x: x + 1.0, TWO)).eqns
    assert isinstance(eqn.invars[1], core.Literal), "numbers are no literals of a program any more"
    assert len({*eqn.outvars, *walking.variables(eqn.invars)}) == 2


def test_the_current_trace_is_told_and_entered() -> None:
    outer: list[Any] = []

    def fn(x: Any) -> Any:
        outer.append(core.current_trace())
        assert core.is_traced(), "a trace under way is not seen: core.is_traced"

        def body(carry: Any, _: Any) -> Any:
            assert core.current_trace() is not outer[0], "scan does not trace its body by itself any more"
            with core.recorded_in(outer[0]):
                return carry + jnp.zeros(()), None

        return lax.scan(body, x, None, length=2)[0]

    assert not core.is_traced()
    traced(fn, jnp.float32(1))
    assert outer


def test_the_line_of_an_operation_is_known() -> None:
    eqn = only(lambda x: lax.psum(x, AXIS), "psum", TWO)
    assert (core.user_line(eqn, "/nowhere/") or "").startswith(f"{__file__}:"), "source lines: core.user_line"


def test_mutable_references_are_known_by_their_type_and_have_effects() -> None:
    def fn(x: Any) -> Any:
        ref = jax.new_ref(x)
        return ref[...]

    jaxpr = core.opened(traced(fn, TWO))
    assert core.is_ref(jaxpr.eqns[0].outvars[0]), "the type of jax.Ref has another name: core.is_ref"
    assert not core.is_ref(jaxpr.invars[0])
    assert all(eqn.effects for eqn in jaxpr.eqns), "reads of a Ref have no effect any more: kinds.repeatable"


def test_arrays_are_of_one_class() -> None:
    assert type(TWO) is core.ArrayImpl, "arrays have another class: the arguments of jd.function are slower to sort"


# --- operations that run other programs -------------------------------------------------------------------------------


@jax.custom_jvp
def doubled(x: Any) -> Any:
    """A function with a derivative of its own."""
    return x * 2


@doubled.defjvp
def _(primals: Any, tangents: Any) -> Any:
    return doubled(*primals), tangents[0] * 3


@jax.custom_vjp
def tripled(x: Any) -> Any:
    """A function with a gradient of its own."""
    return x * 3


tripled.defvjp(lambda x: (x * 3, None), lambda _, g: (g,))
batched = jax.custom_batching.custom_vmap(lambda x: x * 2)
batched.def_vmap(lambda _size, _batched, x: (x * 2, True))
parted = custom_partitioning(lambda x: x * 2)
parted.def_partition(infer_sharding_from_operands=None, partition=None, sharding_rule="i -> i")

CALLS: dict[str, Callable[[Any], Any]] = {
    "jit": jax.jit(lambda x: x * 2),
    "custom_jvp_call": doubled,
    "custom_vjp_call": tripled,
    "custom_vmap_call": batched,
    "remat2": jax.checkpoint(jnp.sin),
    "composite": lax.composite(lambda x: x * 2, "my.op"),
    "custom_partitioning": parted,
    "linear_call": lambda x: jax.custom_derivatives.linear_call(lambda r, y: y * r, lambda r, y: y * r, x, x),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_has_one_program_of_its_own_operands(name: str) -> None:
    eqn = only(CALLS[name], name, TWO)
    inner = walking.called(eqn)
    assert inner is not None, f"{name} holds its program otherwise: walking.called"
    given = [TWO * 3] * len(eqn.invars)
    np.testing.assert_allclose(core.as_function(inner)(*given)[0], core.bind(eqn, given)[0])


def test_a_custom_derivative_has_a_rule_that_can_be_traced() -> None:
    rule, zeros = core.derivative_rule(only(doubled, "custom_jvp_call", TWO))
    assert zeros == (False,), "the rule of custom_jvp is called otherwise: core.derivative_rule"
    assert [float(x[0]) for x in core.as_function(rule)(TWO, TWO)] == [2, 3]


SCANS: dict[str, tuple[Callable[..., Any], tuple[int, int, int]]] = {
    "plain": (lambda c, xs: lax.scan(lambda a, x: (a + x, a), c, xs), (0, 1, 1)),
    "constant": (lambda c, xs: lax.scan(lambda a, _: (a + xs.sum(), a), c, None, length=3), (1, 1, 0)),
    "two carried": (lambda c, xs: lax.scan(lambda a, x: ((a[1], a[0] + x), None), (c, c), xs), (0, 2, 1)),
    "vmapped": (jax.vmap(lambda c, xs: lax.scan(lambda a, x: (a + x, a), c, xs), (None, 0)), (0, 1, 1)),
}


@pytest.mark.parametrize("name", SCANS)
def test_the_operands_of_a_scan_are_constants_then_carried_then_rows(name: str) -> None:
    fn, counts = SCANS[name]
    xs = jnp.ones((4, 3)) if name == "vmapped" else jnp.ones(3)
    eqn = only(fn, "scan", jnp.float32(0), xs)
    consts, carries, turns = scan_counts(eqn)
    assert (consts, carries, len(eqn.invars) - consts - carries) == counts, "parameters of scan: flow.scan_counts"
    assert len(core.opened(eqn.params["jaxpr"]).invars) == len(eqn.invars)
    assert turns == 3


def test_a_scan_is_counted_after_differentiation_too() -> None:
    def loss(w: Any, xs: Any) -> Any:
        return lax.scan(lambda c, x: (jnp.tanh(c * w + x), None), w, xs)[0]

    scans = operations(traced(jax.grad(loss), jnp.float32(2), jnp.ones(3)), "scan")
    assert len(scans) == 2
    for eqn in scans:
        consts, carries, _ = scan_counts(eqn)
        body = core.opened(eqn.params["jaxpr"])
        before = [core.aval(var).shape for var in body.invars[consts : consts + carries]]
        after = [core.aval(atom).shape for atom in body.outvars[:carries]]
        assert before == after, "a differentiated scan has other parameters: flow.scan_counts"
        assert all(core.aval(atom).shape[:1] == (3,) for atom in eqn.invars[consts + carries :])


def test_the_operands_of_a_while_are_constants_of_test_and_body_then_carried() -> None:
    eqn = only(lambda n, y: lax.while_loop(lambda c: c < n, lambda c: c + y, 0.0), "while", 3.0, 1.0)
    assert (eqn.params["cond_nconsts"], eqn.params["body_nconsts"]) == (1, 1), "parameters of while: jaxprs/flow.py"
    assert len(core.opened(eqn.params["cond_jaxpr"]).outvars) == 1
    assert len(core.opened(eqn.params["body_jaxpr"]).invars) == 2


def test_the_first_operand_of_a_cond_chooses_the_branch() -> None:
    eqn = only(lambda p, x: lax.cond(p, lambda: x + 1, lambda: x), "cond", True, TWO)
    assert len(eqn.params["branches"]) == 2, "parameters of cond: jaxprs/flow.py"
    assert all(len(core.opened(one).invars) == len(eqn.invars) - 1 for one in eqn.params["branches"])


def test_a_linear_solve_runs_one_of_its_programs() -> None:
    def solve(x: Any, b: Any) -> Any:
        return lax.custom_linear_solve(
            lambda y: y * x, b, lambda f, y: y / x + f(y), lambda f, y: y / x + f(y) + x[::-1]
        )

    eqn = only(solve, "custom_linear_solve", TWO, TWO)
    lengths, program = eqn.params["const_lengths"], core.opened(eqn.params["jaxprs"].solve)
    assert lengths._fields[:3] == ("matvec", "vecmat", "solve"), "the order of its operands: jaxprs/flow.py"
    assert len(program.invars) == lengths.solve + len(eqn.invars) - sum(lengths)
    assert len(program.outvars) == len(eqn.outvars)


def test_a_root_is_found_by_a_program_of_its_first_operands() -> None:
    def root(x: Any) -> Any:
        return lax.custom_root(lambda v: v * x - x, x, lambda f, v: v - f(v), lambda g, y: y / g(1.0))

    eqn = core.opened(traced(root, jnp.float32(3))).eqns[-1]
    if eqn.primitive.name == "custom_jvp_call":  # JAX 0.10
        return
    program = core.opened(eqn.params["_prim"].solve_jaxpr)
    types = [core.aval(atom).shape for atom in program.invars]
    assert types == [core.aval(atom).shape for atom in eqn.invars[: len(types)]], "lax.custom_root: jaxprs/flow.py"
    assert len(program.outvars) == len(eqn.outvars)


def test_shard_map_holds_its_program_and_how_values_are_split() -> None:
    mesh = Mesh(np.array(jax.devices()[:1]), (AXIS,))
    split = PartitionSpec(AXIS)
    mapped = jax.shard_map(
        lambda x: lax.psum(x, AXIS), mesh=mesh, in_specs=split, out_specs=PartitionSpec(), check_vma=False
    )
    eqn = only(mapped, "shard_map", TWO)
    assert eqn.params["in_specs"] == (split,), "parameters of shard_map: execution/central/sinking.py"
    assert eqn.params["out_specs"] == (PartitionSpec(),)
    assert len(core.opened(eqn.params["jaxpr"]).invars) == 1


# --- kinds of operations ----------------------------------------------------------------------------------------------

COLLECTIVES: dict[str, Callable[[Any], Any]] = {
    "psum": lambda x: lax.psum(x, AXIS),
    "pmax": lambda x: lax.pmax(x, AXIS),
    "pmin": lambda x: lax.pmin(x, AXIS),
    "all_gather": lambda x: lax.all_gather(x, AXIS),
    "all_to_all": lambda x: lax.all_to_all(x, AXIS, 0, 0),
    "ppermute": lambda x: lax.ppermute(x, AXIS, [(0, 1), (1, 0)]),
    "reduce_scatter": lambda x: lax.psum_scatter(x, AXIS),
    "ragged_all_to_all": lambda x: lax.ragged_all_to_all(x, x, *[jnp.zeros(2, jnp.int32)] * 4, axis_name=AXIS),
}
SAME = {"psum", "pmax", "pmin", "all_gather"}


@pytest.mark.parametrize("name", COLLECTIVES)
def test_a_collective_names_its_axis(name: str) -> None:
    eqn = only(COLLECTIVES[name], name, TWO)
    assert kinds.is_collective(eqn, AXIS), f"{name} names its axis otherwise: kinds.names_axis"
    assert not kinds.is_collective(eqn, "other")
    assert kinds.equalises(eqn, AXIS) is (name in SAME)


def test_a_reduction_over_groups_is_told_by_a_parameter() -> None:
    eqn = only(lambda x: lax.psum(x, AXIS, axis_index_groups=[[0], [1]]), "psum", TWO)
    assert not kinds.equalises(eqn, AXIS), "groups of psum are a parameter of another name: kinds.equalises"


def test_sums_that_jax_checks_have_names_of_their_own() -> None:
    mesh = Mesh(np.array(jax.devices()[:1]), (AXIS,))
    split, whole = PartitionSpec(AXIS), PartitionSpec()
    mapped = jax.shard_map(lambda x: lax.psum(x, AXIS), mesh=mesh, in_specs=split, out_specs=whole)
    assert kinds.equalises(only(mapped, "psum_invariant", TWO), AXIS)


def test_the_place_on_an_axis_is_asked_for_without_a_collective() -> None:
    eqn = only(lambda: lax.axis_index(AXIS), "axis_index")
    assert kinds.names_axis(eqn, AXIS), "axis_index names its axis otherwise: kinds.names_axis"
    assert not kinds.is_collective(eqn, AXIS)


def everyday(x: Any) -> Any:
    """Much of what programs are made of."""
    key = jax.random.key(0)
    raw = jax.random.PRNGKey(1)
    drawn = [
        jax.random.normal(jax.random.fold_in(key, 3), (4,)),
        jax.random.permutation(key, 4),
        jax.random.gamma(key, 2.0),
        jax.random.bernoulli(jax.random.split(raw)[0], 0.5, (4,)),
        jax.random.key_data(jax.random.wrap_key_data(raw)),
        jax.random.categorical(jax.random.clone(key), x),
        lax.rng_bit_generator(jnp.zeros(4, jnp.uint32), (4,)),
    ]
    square = jnp.outer(x, x) + jnp.eye(4)
    solved = [jnp.linalg.svd(square), jnp.linalg.qr(square), jnp.linalg.eigh(square), jnp.linalg.solve(square, x)]
    looped = jax.scipy.sparse.linalg.cg(lambda y: y * 2, x)
    mixed = [jnp.sort(x), lax.top_k(x, 2), jnp.cumsum(x), jnp.fft.fft(x), x.at[0].set(1.0), x.at[1].add(2.0)]
    made = [jnp.concatenate([x, x]), jnp.split(x, 2), jnp.stack([x, x]), jnp.tile(x, 2), jnp.zeros(3), jnp.arange(3)]
    image = jnp.ones((1, 4, 4, 1))
    pooled = lax.conv(image, jnp.ones((2, 2, 1, 1)).transpose(3, 2, 0, 1) * jnp.ones((4, 4, 1, 1)), (1, 1), "SAME")
    window = lax.reduce_window(image, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 1, 1, 1), "VALID")
    held = lax.optimization_barrier(lax.stop_gradient(x))
    special = [jax.scipy.special.gammaln(x), jax.scipy.special.erfinv(x / 9), jnp.einsum("i,j->ij", x, x).argmax()]
    folded = lax.reduce(x, jnp.float32(0), lambda a, b: a * b + 1, (0,))
    return drawn, solved, looped, mixed, made, pooled, window, held, special, folded, jax.nn.softmax(x), jax.nn.gelu(x)


def test_everyday_operations_are_known() -> None:
    program = traced(lambda x: (everyday(x), jax.grad(lambda y: jax.nn.softmax(y)[0])(x)), jnp.arange(1.0, 5.0))
    unknown = {eqn.primitive.name for eqn in core.opened(program).eqns if not kinds.repeatable(eqn)}
    assert not unknown, "JAX defines ordinary operations elsewhere: kinds._ordinary"


def test_what_comes_from_outside_is_not_known() -> None:
    shape = jax.ShapeDtypeStruct((2,), jnp.float32)
    sources = {
        "pure_callback": lambda x: jax.pure_callback(lambda y: y, shape, x),
        "io_callback": lambda x: io_callback(lambda y: y, shape, x),
        "rng_uniform": lambda _: lax.rng_uniform(0.0, 1.0, (2,)),
    }
    for name, fn in sources.items():
        assert not kinds.repeatable(only(fn, name, TWO)), f"{name} would count as the same on every replica"


def test_foreign_functions_say_whether_they_have_effects() -> None:
    shape = jax.ShapeDtypeStruct((2,), jnp.float32)
    pure = only(jax.ffi.ffi_call("some_target", shape), "ffi_call", TWO)
    acting = only(jax.ffi.ffi_call("some_target", shape, has_side_effect=True), "ffi_call", TWO)
    assert kinds.repeatable(pure)
    assert not kinds.repeatable(acting), "effects of foreign functions are told otherwise: kinds.repeatable"


# --- where ------------------------------------------------------------------------------------------------------------

INSIDE = re.compile(r"^\s*(from|import) (jax\._src|jax\.core|jax\.extend|jax\.interpreters|jaxlib)", re.MULTILINE)


def test_what_is_inside_jax_is_imported_in_one_room() -> None:
    root = Path(jaxtribute.__file__).parent
    found = {str(path.relative_to(root)) for path in root.rglob("*.py") if INSIDE.search(path.read_text("utf-8"))}
    inside = {f"_src/core/jaxprs/{name}.py" for name in ("core", "making", "unrun")}
    assert found == inside | {"_src/core/cluster/runtime.py"}


def test_the_primitives_that_jax_lists_for_extensions_are_known() -> None:
    from jax.extend.core import primitives  # which takes long to import, so that the library does not

    listed = {one for one in vars(primitives).values() if isinstance(one, core.Primitive)}
    random_or_calling = {one for one in listed if one.name == "rng_uniform" or "callback" in one.name}
    unknown = {one.name for one in listed - random_or_calling if not kinds.is_known(one)}
    assert not unknown, f"JAX defines {sorted(unknown)} in modules that jaxprs/kinds.py does not list"


def test_the_traces_of_eager_code_and_of_programs_are_told_apart() -> None:
    inside: list[bool] = []
    jax.make_jaxpr(lambda: inside.append(core.kept_beyond(None)))()
    assert inside == [True], "what is traced is no longer told from eager code: see jaxprs/core.py"
    assert not core.is_traced()
    assert not core.kept_beyond(None)


class _Told(Telltale):
    def __init__(self, x: Any) -> None:
        super().__init__()
        self.x, self.deleted = x, list[bool]()

    def tell(self) -> None:
        self.deleted.append(isinstance(self.x, jax.Array) and self.x.is_deleted())


def test_jax_flattens_arguments_again_before_it_runs_python() -> None:
    """Steps rely on it: JAX tells nobody in any other way that it has no program."""
    f = jax.jit(lambda x, _: x + 1, donate_argnums=0)

    def call(x: Any) -> set[bool]:
        told = _Told(x)
        f(x, told)
        return set(told.deleted[:1])

    assert call(jnp.ones(3)) == {False}, "nothing has been given up by then"
    assert call(jnp.ones(3)) == set()
    assert call(np.ones(4, np.float32)) == {False}
    assert call(jax.device_put(jnp.ones(3), jax.devices()[1])) == {False}
    assert call(jax.device_put(jnp.ones(3), jax.devices()[1])) == set()
