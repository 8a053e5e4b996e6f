"""Gradients whose backward pass gathers sharded variables again, and keeps what user code checkpoints it to keep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from jaxtribute._src.core.jaxprs.core import JaxprEqn, as_closed, aval, bind, is_program, opened
from jaxtribute._src.core.jaxprs.walking import any_in, evaluate
from jaxtribute._src.core.types import Function, Nest, Numeric
from jaxtribute._src.core.values.slices import whole_p


def regathering(differentiate: Function, loss: Function, values: Sequence[Any]) -> Any:
    """Returns `differentiate(loss, values)`, whose backward pass gathers variables again."""
    try:
        return differentiate(jax.checkpoint(_opaque(loss), policy=_keep_all_but_wholes), values)
    except NotImplementedError as error:
        if "Effects not supported" not in str(error):
            raise
        return differentiate(loss, values)  # callbacks must not run twice, so all is kept


def _keep_all_but_wholes(primitive: Any, *_: Nest, **__: Nest) -> bool:
    return primitive is not whole_p  # one function, so that programs that use it are found equal


def _opaque(loss: Function) -> Function:
    """`loss`, in which the user's `jax.checkpoint`s are such that a policy around them cannot see inside.

    JAX applies the outermost policy to the operations inside of inner checkpoints, too: it would keep all that the user
    has asked to compute again.
    """

    def run(values: Nest) -> Any:
        program, shapes = jax.make_jaxpr(loss, return_shape=True)(values)
        results = evaluate(program, jax.tree.leaves(values), _handle)
        return jax.tree.unflatten(jax.tree.structure(shapes), results)

    return run


def _is_checkpoint(eqn: JaxprEqn) -> bool:
    return eqn.primitive.name in ("remat2", "checkpoint")


def _handle(eqn: JaxprEqn, operands: list[Any]) -> Sequence[Any] | None:
    """The results of a checkpoint, and of an operation with one inside; None for all others."""
    if not any_in(eqn, _is_checkpoint):
        return None
    if _is_checkpoint(eqn):
        return _checkpointed(eqn, operands)
    params = {key: _rewritten(value) for key, value in eqn.params.items()}
    return bind(eqn.replace(params=params), operands)


def _checkpointed(eqn: JaxprEqn, operands: list[Any]) -> Sequence[Any]:
    """A checkpoint as a function with a backward pass of its own: that of the checkpoint itself."""

    def call(*inputs: Nest) -> list[Any]:
        return list(bind(eqn, inputs))

    # A custom backward pass is one operation to a policy around it, whatever is inside.
    function = jax.custom_vjp(call)
    function.defvjp(lambda *inputs: jax.vjp(call, *inputs), lambda pullback, cotangents: pullback(cotangents))
    return function(*operands)


def _rewritten(value: Numeric) -> Any:
    """A program inside an operation, with its checkpoints made opaque; other parameters as they are."""
    if isinstance(value, (tuple, list)) and any(map(is_program, value)):
        return type(value)(map(_rewritten, value))
    if not is_program(value) or not any(any_in(eqn, _is_checkpoint) for eqn in opened(value).eqns):
        return value
    whole = as_closed(value)
    inputs = [jax.ShapeDtypeStruct(aval(v).shape, aval(v).dtype) for v in opened(whole).invars]
    made = jax.make_jaxpr(lambda *operands: evaluate(whole, operands, _handle))(*inputs)
    return made if hasattr(value, "consts") else opened(made)
