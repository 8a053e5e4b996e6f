"""`Programs`: what add-ons ask of a traced program, under one name."""

from __future__ import annotations

from jaxtribute._src.core.jaxprs import core, flow, kinds, making, walking


class Programs:
    """Questions about programs (jaxprs) and their operations (equations)."""

    Closed = core.ClosedJaxpr
    """JAX's class of programs with their constants."""
    ELEMENTWISE = kinds.ELEMENTWISE
    """Names of the operations that compute each element from the elements in its place."""
    STRUCTURES = walking.STRUCTURES
    """Names of the operations that do nothing but run the programs inside them."""
    as_function = staticmethod(core.as_function)
    """The Python function that a closed program is."""
    aval = staticmethod(core.aval)
    bind = staticmethod(core.bind)
    called = staticmethod(walking.called)
    constants = staticmethod(core.constants)
    equal = staticmethod(making.equal)
    evaluate = staticmethod(walking.evaluate)
    equalises = staticmethod(kinds.equalises)
    identity = staticmethod(making.identity)
    made_by = staticmethod(core.made_by)
    mentions = staticmethod(kinds.mentions)
    moves = staticmethod(kinds.moves)
    names_axis = staticmethod(kinds.names_axis)
    opened = staticmethod(core.opened)
    piece = staticmethod(walking.piece)
    operations_in = staticmethod(walking.operations_in)
    programs_in = staticmethod(walking.programs_in)
    pruned = staticmethod(core.pruned)
    repeatable = staticmethod(kinds.repeatable)
    scan_counts = staticmethod(flow.scan_counts)
    used_by = staticmethod(walking.used_by)
    user_frames = staticmethod(core.user_frames)
    user_line = staticmethod(core.user_line)
