"""`tf.GradientTape` becomes `jd.value_and_grad` where that is mechanical, and is explained where it is not."""

import ast
import textwrap
from typing import Any

import jax.numpy as jnp
import pytest

import jaxtribute as jd
from jaxtribute._src.addons.compat.migrate.findings import Finding
from jaxtribute._src.addons.compat.migrate.scan import scan

IMPORTS = "import tensorflow as tf\n"


def tape(code: str) -> Finding:
    report = scan(IMPORTS + textwrap.dedent(code))
    return next(finding for finding in report.findings if finding.name == "tf.GradientTape")


def rewritten(code: str) -> str:
    return scan(IMPORTS + textwrap.dedent(code)).rewritten()


PLAIN = """
def step(x):
    with tf.GradientTape() as tape:
        loss = f(x)
    grads = tape.gradient(loss, variables)
    return grads
"""


class TestMechanical:
    def test_the_block_becomes_a_function(self) -> None:
        assert textwrap.dedent(
            """
            def step(x):
                def compute_loss():
                    loss = f(x)
                    return loss
                loss, grads = jd.value_and_grad(compute_loss, variables, unconnected_gradients="none")()
                return grads
            """
        ) in rewritten(PLAIN)

    @pytest.mark.parametrize(
        "head",
        [
            "with tf.GradientTape(\n        persistent=False,\n    ) as tape:",
            "with (\n        tf.GradientTape() as tape\n    ):",
            "with tf.GradientTape() as tape:  # of the: loss",
            "with (  # the loss:\n        tf.GradientTape() as tape  # here:\n        # and:\n    ):\n        # kept",
        ],
    )
    def test_a_head_of_several_lines(self, head: str) -> None:
        after = rewritten(PLAIN.replace("with tf.GradientTape() as tape:", head))
        compile(after, "after", "exec")
        assert "        loss = f(x)\n        return loss\n" in after
        assert "tape" not in after
        assert ("# kept" in after) == ("# kept" in head)

    def test_the_advice_is_the_code_to_write(self) -> None:
        assert (
            'loss, grads = jd.value_and_grad(compute_loss, variables, unconnected_gradients="none")()'
            in tape(PLAIN).advice
        )

    def test_what_is_used_afterwards_is_returned_as_well(self) -> None:
        code = """
        with tf.GradientTape() as tape:
            y = g(x)
            hidden = h(y)
            loss = f(hidden)
        grads = tape.gradient(loss, [v])
        print(y, loss)
        """
        assert (
            '(loss, (y,)), grads = jd.value_and_grad(compute_loss, [v], has_aux=True, unconnected_gradients="none")()'
            in rewritten(code)
        )

    def test_several_results_are_in_order(self) -> None:
        code = """
        with tf.GradientTape() as tape:
            b = g(x)
            a = h(b)
            loss = f(a)
        grads = tape.gradient(loss, v)
        print(b, a)
        """
        assert "    return loss, (a, b)\n" in rewritten(code)

    def test_lines_between_stay(self) -> None:
        code = """
        with tf.GradientTape() as tape:
            loss = f(x)
        print("between")
        grads = tape.gradient(loss, v)
        """
        after = rewritten(code)
        assert after.index("value_and_grad") < after.index("between")
        assert "tape" not in after

    def test_several_tapes_get_names_of_their_own(self) -> None:
        code = PLAIN + PLAIN.replace("step", "other")
        after = rewritten(code)
        assert "def compute_loss():" in after
        assert "def compute_loss_2():" in after

    def test_a_name_that_is_taken_is_not_used(self) -> None:
        assert "def compute_loss_2():" in rewritten("def compute_loss(): pass\n" + PLAIN)

    def test_jd_is_imported_once(self) -> None:
        assert rewritten(PLAIN).count("import jaxtribute as jd") == 1
        assert ("import jaxtribute as jd\n" + rewritten("import jaxtribute as jd\n" + PLAIN)).count("as jd") == 2

    def test_the_result_is_python(self) -> None:
        compile(rewritten(PLAIN), "<rewritten>", "exec")

    def test_the_tape_of_an_alias(self) -> None:
        report = scan(f"from tensorflow import GradientTape\n{PLAIN.replace('tf.', '')}")
        assert [f.name for f in report.findings if f.name == "tf.GradientTape"]

    def test_a_target_of_several_names(self) -> None:
        code = PLAIN.replace("grads = tape", "dw, db = tape").replace("return grads", "return dw")
        assert "loss, dw, db = " not in rewritten(code)
        assert "loss, (dw, db) = jd.value_and_grad" in rewritten(code)


class TestOtherForms:
    def test_two_tapes_of_a_block_are_one_function(self) -> None:
        after = rewritten(
            """
            with tf.GradientTape() as a, tf.GradientTape() as b:
                first = f(x)
                second = g(x)
            da = a.gradient(first, v)
            db = b.gradient(second, w)
            """
        )
        assert "    return (first, second)\n" in after
        assert (
            '(first, second), (da, db) = jd.value_and_grads(compute_loss, (v, w), unconnected_gradients="none")()'
            in after
        )
        assert "tape" not in after

    def test_a_persistent_tape_of_one_loss_is_one_call(self) -> None:
        after = rewritten(
            PLAIN.replace("tape() as", "tape(persistent=True) as").replace(
                "    return grads", "    more = tape.gradient(loss, w)\n    del tape\n    return grads"
            )
        )
        assert (
            'loss, (grads, more) = jd.value_and_grad(compute_loss, (variables, w), unconnected_gradients="none")()'
            in after
        )
        assert "tape" not in after

    @pytest.mark.parametrize(
        ("line", "expected"),
        [
            ("o.apply([(tape.gradient(loss, w), w)])", "o.apply([(gradients, w)])"),
            ("if train:\n    o.apply(tape.gradient(loss, w))", "if train:\n    o.apply(gradients)"),
        ],
    )
    def test_a_gradient_within_a_statement_gets_a_name(self, line: str, expected: str) -> None:
        after = rewritten(f"with tf.GradientTape() as tape:\n    loss = f(x)\n{line}\n")
        assert (
            'loss, gradients = jd.value_and_grad(compute_loss, w, unconnected_gradients="none")()\n' + expected in after
        )

    def test_variables_that_are_named_after_the_block_are_named_before_the_call(self) -> None:
        after = rewritten(PLAIN.replace("    grads =", "    variables = net.variables\n    grads ="))
        assert after.index("variables = net") < after.index("def compute_loss")

    def test_the_variable_of_a_comprehension_is_not_the_block_s(self) -> None:
        assert "value_and_grad" in rewritten(PLAIN.replace("loss = f(x)", "loss = sum([f(v) for v in x])"))

    def test_a_gradient_in_a_loop_is_left(self) -> None:
        assert "tape" in rewritten(PLAIN.replace("    grads =", "    for w in ws:\n        grads ="))


BLOCK = """with tf.GradientTape() as tape:
    loss = f(x)
"""
SEVERAL = {
    "a block after another": (BLOCK + "g = tape.gradient(loss, w)\n") * 2,
    "with del": (BLOCK + "g = tape.gradient(loss, w)\ndel tape\n") * 2,
    "a loop each": ("for i in range(2):\n" + textwrap.indent(BLOCK + "g = tape.gradient(loss, w)\n", "    ")) * 2,
    "a function's own": "def step():\n"
    + textwrap.indent(BLOCK + "return tape.gradient(loss, w)\n", "    ")
    + BLOCK
    + "g = tape.gradient(loss, w)\n",
    "within other changes": BLOCK
    + "print(tape.gradient(loss, w).numpy(), tape.gradient(loss, v).numpy().shape.as_list())\n",
    "within each other": """with tf.GradientTape() as outer:
    with tf.GradientTape() as inner:
        y = f(x)
    dy = inner.gradient(y, w)
print(outer.gradient(dy, w).numpy(), dy.numpy())
""",
    "of one name within each other": """with tf.GradientTape() as t:
    with tf.GradientTape() as t1:
        y = f(x)
    dy = t1.gradient(y, w)
d2y = t.gradient(dy, w)
with tf.GradientTape() as t:
    y = f(x)
print(t.gradient(y, w).numpy())
""",
}


@pytest.mark.parametrize("code", SEVERAL.values(), ids=SEVERAL)
def test_of_several_tapes_no_name_remains(code: str) -> None:
    """The program runs on plain functions: w is 3, the loss w ** 3."""
    after = rewritten(code)
    names = {node.id for node in ast.walk(ast.parse(after)) if isinstance(node, ast.Name)}
    assert not names & {"tape", "outer", "inner", "t", "t1", "g1"}
    assert not scan(after).left()
    w, v = jd.Variable(3.0), jd.Variable([1.0])
    given: dict[str, Any] = {"f": lambda _: w**3 + v.read_value().sum(), "x": 1, "w": w, "v": v}
    exec(after, given)
    assert float(given.get("g", 27.0)) == 27.0
    if "d2y" in given:
        assert float(given["d2y"]) == 18.0


RUNS: dict[str, tuple[str, dict[str, float]]] = {
    "elements that are added up": (
        """
        with tf.GradientTape() as tape:
            y = w * w * xs
        g = tape.gradient(y, w)
        last = y[1]
        """,
        {"g": 18.0, "last": 18.0},
    ),
    "elements that are added up, and zeros": (
        """
        with tf.GradientTape() as tape:
            y = w * w * xs
        g = tape.gradient(y, [w, other], unconnected_gradients="zero")
        last, (first, second) = y[1], g
        """,
        {"first": 18.0, "second": 0.0, "last": 18.0},
    ),
    "asked inside": (
        """
        with tf.GradientTape() as tape:
            y = w * w
            g = tape.gradient(y, w)
            w.assign_sub(g)
        new = w + 0
        """,
        {"g": 6.0, "new": -3.0},
    ),
    "asked inside and returned": (
        """
        def f():
            with tf.GradientTape() as t:
                y = w * w
                return t.gradient(y, w), y
        g, y = f()
        """,
        {"g": 6.0, "y": 9.0},
    ),
    "asked inside another": (
        """
        with tf.GradientTape() as a:
            with tf.GradientTape() as b:
                y = w**3
                d = b.gradient(y, w)
            h = a.gradient(d, w)
        """,
        {"h": 18.0},
    ),
    "by keywords": (
        """
        with tf.GradientTape() as tape:
            y = w * w
        g = tape.gradient(target=y, sources=w, unconnected_gradients='zero')
        """,
        {"g": 6.0},
    ),
    "watched": (
        """
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = x * x
            z = 3 * y
        g = tape.gradient(z, x)
        """,
        {"g": 12.0},
    ),
    "several watched": (
        """
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch([x, u])
            z = x * u * w
        dx, du = tape.gradient(z, (x, u))
        both = z
        """,
        {"dx": 15.0, "du": 6.0, "both": 30.0},
    ),
    "watched for a second derivative": (
        """
        with tf.GradientTape() as a:
            a.watch(x)
            with tf.GradientTape() as b:
                b.watch(x)
                y = x**3
            d = b.gradient(y, x)
        h = a.gradient(d, x)
        first = d
        """,
        {"first": 12.0, "h": 12.0},
    ),
    "watched, of many elements": (
        """
        with tf.GradientTape() as tape:
            tape.watch(xs)
            y = xs * xs
        g = tape.gradient(y, [xs])[0].sum()
        """,
        {"g": 6.0},
    ),
    "a variable that is watched": (
        """
        q = tf.Variable(4.0)
        with tf.GradientTape() as tape:
            tape.watch(q)
            y = q * w
        g = tape.gradient(y, [q, w])[1]
        """,
        {"g": 4.0},
    ),
    "a name that goes on": (
        """
        n, total = 0, 1.0
        for k in range(3):
            with tf.GradientTape() as tape:
                n += 1
                total = total + n
                y = w * total
            g = tape.gradient(y, w)
        """,
        {"n": 3.0, "total": 7.0, "g": 7.0},
    ),
    "a list of variables made behind the block": (
        """
        with tf.GradientTape() as tape:
            y = w * w * other
        half = y / 2
        print("loss", y)
        variables = [w] + [other]  # all of them
        g, h = tape.gradient(y, variables)
        """,
        {"g": 6.0, "h": 9.0, "half": 4.5},
    ),
    "a list that grows behind the block": (
        """
        parts = []
        with tf.GradientTape() as tape:
            y = w * w * other
        half = y / 2
        models = [[w], [other]]
        for one in models:
            parts += [v for v in one if v is not None]
        parts.append(w)
        g, h, again = tape.gradient(y, parts)
        """,
        {"g": 6.0, "h": 9.0, "again": 6.0},
    ),
    "one that grows twice": (
        """
        with tf.GradientTape() as tape:
            y = w * w * other
        half = y / 2
        parts = [w]
        if half is not None:
            print(half)
        first = list([other])
        parts = parts + first
        g, h = tape.gradient(y, parts)
        """,
        {"g": 6.0, "h": 9.0},
    ),
    "a name for what was there": (
        """
        g = 5.0
        with tf.GradientTape() as tape:
            y = w * w
        before = g
        g = tape.gradient(y, w)
        """,
        {"g": 6.0, "before": 5.0},
    ),
    "two gradients of lists made behind the block": (
        """
        with tf.GradientTape(persistent=True) as tape:
            y = w * w
            z = other * other * other
        half = y / 2
        ws = [w]
        others = [other]
        [g] = tape.gradient(y, ws)
        [h] = tape.gradient(z, others)
        """,
        {"g": 6.0, "h": 3.0},
    ),
    "variables without a gradient": (
        """
        frozen = tf.Variable(1.0, trainable=False)
        count = tf.Variable(2)
        with tf.GradientTape() as tape:
            y = w * w * frozen * tf.cast(count, tf.float32) if x > 0 else other
        g, *others = tape.gradient(y, [w, other, frozen, count])
        n = sum(one is None for one in others)
        """,
        {"g": 12.0, "n": 3.0},
    ),
    "a loop over the gradients": (
        """
        with tf.GradientTape() as tape:
            y = w * w * other
        total = 0.0
        for factor, g in zip([1.0, 10.0], tape.gradient(y, [w, other])):
            total += factor * g
        """,
        {"total": 96.0},
    ),
    "a loop that is left within": (
        """
        with tf.GradientTape() as tape:
            y = 0.0
            for k in range(9):
                if k == 2:
                    break
                y += w * w
        g = tape.gradient(y, w)
        """,
        {"g": 12.0},
    ),
}
"""Programs on w = 3, x = 2, u = 5 and xs = [1, 2], and what tapes of TensorFlow give."""


@pytest.mark.parametrize("name", RUNS)
def test_rewritten_tapes_give_the_gradients_of_tensorflow(name: str) -> None:
    code, expected = RUNS[name]
    after = rewritten(code)
    assert not scan(after).left()
    assert "tape" not in after.lower()
    given: dict[str, Any] = {"w": jd.Variable(3.0), "x": jnp.float32(2), "u": jnp.float32(5), "xs": jnp.array([1.0, 2])}
    given["other"] = jd.Variable(1.0)
    exec(after, given)
    assert {key: float(given[key]) for key in expected} == expected


def test_minimize_of_a_tape_becomes_gradients() -> None:
    after = rewritten(BLOCK + "opt.minimize(loss, w, tape=tape)\n")
    call = 'loss, gradients = jd.value_and_grad(compute_loss, w, unconnected_gradients="none")()'
    assert f"{call}\nopt.apply_gradients(zip(gradients, w))" in after


CONNECTED: dict[str, tuple[str, bool]] = {
    "one model": ("loss = f(model(x))\n    tape.gradient(loss, model.trainable_variables)", True),
    "two models": ("loss = f(m(x))\n    tape.gradient(loss, m.trainable_variables + n.trainable_weights)", True),
    "variables that are read": ("loss = v * x\n    tape.gradient(loss, [v])", True),
    "by another name": ("loss = v * x\n    theirs = [v]\n    tape.gradient(loss, theirs)", True),
    "zeros are asked for": ("loss = x\n    tape.gradient(loss, [q], unconnected_gradients='zero')", True),
    "zeros by their member": (
        "loss = x\n    tape.gradient(loss, [q], unconnected_gradients=tf.UnconnectedGradients.ZERO)",
        True,
    ),
    "what is watched": ("tape.watch(frozen)\n        loss = frozen\n    tape.gradient(loss, frozen)", True),
    "a variable that is not read": ("loss = v * x\n    tape.gradient(loss, [v, u])", False),
    "one that is not trainable": ("loss = v * frozen\n    tape.gradient(loss, [v, frozen])", False),
    "integers": ("loss = v * count\n    tape.gradient(loss, [v, count])", False),
    "all variables of a model": ("loss = f(model(x))\n    tape.gradient(loss, model.variables)", False),
    "of unknown make": ("loss = v * x\n    tape.gradient(loss, given)", False),
    "a condition": ("loss = v if x else u\n    tape.gradient(loss, [v, u])", False),
    "an output of several": ("loss = model(x)[0]\n    tape.gradient(loss, model.trainable_variables)", False),
    "a derivative of a function": (
        "loss = f(jax.grad(energy)(x))\n    tape.gradient(loss, model.trainable_variables)",
        False,
    ),
    "a derivative in a function": ("loss = derives(model, x)\n    tape.gradient(loss, m.trainable_variables)", False),
    "a derivative by an inner tape": (
        (
            "with tf.GradientTape() as inner:\n            inner.watch(x)\n            y = model(x)\n        "
            "loss = f(inner.gradient(y, x))\n    tape.gradient(loss, model.trainable_variables)"
        ),
        False,
    ),
    "an output by name": (
        "y = model(x)\n        loss = y['a']\n    tape.gradient(loss, model.trainable_variables)",
        False,
    ),
    "outputs that are named": (
        "y, _ = model(x)\n        loss = f(y)\n    tape.gradient(loss, model.trainable_variables)",
        False,
    ),
    "data by number": ("loss = f(model(x[0]))\n    tape.gradient(loss, model.trainable_variables)", True),
    "a condition in a function": ("loss = chooses(model)\n    tape.gradient(loss, model.trainable_variables)", False),
    "a condition in what is called": ("loss = net(x)\n    tape.gradient(loss, net.trainable_variables)", False),
}


@pytest.mark.parametrize(("code", "connected"), CONNECTED.values(), ids=CONNECTED)
def test_a_gradient_that_may_be_none_is_asked_for_so(code: str, connected: bool) -> None:
    first, *lines = code.split("\n")
    made = ["v = tf.Variable(1.0)", "u = tf.Variable(2.0)", "frozen = tf.Variable(1.0, trainable=False)"]
    made += ["count = tf.Variable(0)", "def chooses(m):\n    if m:\n        return m(1)"]
    made += ["def derives(m, x):\n    return jax.grad(lambda x: m(x))(x)"]
    if "net(x)" in code:
        made.append(
            "class Net(tf.Module):\n    def __call__(self, x):\n        return x if self.a else -x\nnet = Net()"
        )
    body = "\n".join(["    with tf.GradientTape() as tape:", f"        {first}", *lines])
    body = body.replace("    tape.gradient(", "    grads = tape.gradient(")
    after = rewritten("\n".join(made) + f"\ndef step(x, f, m, n, q, model, given):\n{body}\n    return grads\n")
    assert "jd.value_and_grad(" in after
    assert ('unconnected_gradients="none"' in after) != connected


ON_A_LINE: dict[str, str] = {
    "behind the gradient": "with tf.GradientTape() as tape:\n    y = w * x\ng = tape.gradient(y, w); a = 1; b = 2",
    "before the gradient": "a = 1\nwith tf.GradientTape() as tape:\n    y = w * x\nb = 2; g = tape.gradient(y, w)",
    "around it": "with tf.GradientTape() as tape:\n    y = w * x\na = 1; g = tape.gradient(y, w); b = 2",
    "in the block": "with tf.GradientTape() as tape:\n    a = 1; y = w * x; b = 2\ng = tape.gradient(y, w)",
    "behind watch": (
        "with tf.GradientTape() as tape:\n    tape.watch(w); a, b = 1, 2; y = w * x\ng = tape.gradient(y, w)"
    ),
    "behind del": "with tf.GradientTape() as tape:\n    y = w * x\ng = tape.gradient(y, w)\na = 1; del tape; b = 2",
    "a condition's": (
        "a = 1\nwith tf.GradientTape() as tape:\n    y = w * x\ng = tape.gradient(y, w)\nif a: del tape; b = 2"
    ),
    "before an iteration": (
        "with tf.GradientTape() as tape:\n    y = w * x\nv = w; g = tape.gradient(y, v); a = 1 # some\nb = 2"
    ),
    "asked inside": "a = 1\nwith tf.GradientTape() as tape:\n    y = w * x; g = tape.gradient(y, w); b = 2",
    "in a function": (
        "def f():\n    with tf.GradientTape() as tape:\n        y = w * x; a = 1\n"
        "    g = tape.gradient(y, w); b = 2; return g, a, b\ng, a, b = f()"
    ),
    "with tabs": "if 1:\n\twith tf.GradientTape() as tape:\n\t\ta = 1; y = w * x\n\tg = tape.gradient(y, w); b = 2",
}


@pytest.mark.parametrize("code", ON_A_LINE.values(), ids=ON_A_LINE)
def test_what_shares_a_line_with_what_is_taken_away_stays(code: str) -> None:
    after = rewritten(f"{code}\nfound = float(g), a, b")
    assert "tape" not in after
    given: dict[str, Any] = {"w": jd.Variable(3.0), "x": jnp.float32(2)}
    exec(after, given)
    assert given["found"] == (2.0, 1, 2)


LOSSES: dict[str, tuple[str, bool]] = {
    "a mean": ("z = tf.reduce_mean(v * vector)", True),
    "a mean of rows": ("z = tf.reduce_mean(v * matrix, axis=1)", False),
    "a mean of rows, by place": ("z = tf.reduce_mean(v * matrix, 1)", False),
    "numbers alone": ("z = v * v + 2.0", True),
    "a variable of several numbers": ("z = vector * vector", False),
    "a list": ("z = v * [1.0, 2.0]", False),
    "a function of tensors": ("z = tf.square(v * x)", False),
    "an argument": ("z = v * x", False),
    "an argument in what is named a loss": ("loss = v * x", True),
    "a list in what is named a loss": ("loss = v * tf.constant([1.0, 2.0])", False),
    "losses of examples": ("per_example_loss = v * x", False),
    "losses": ("losses = v * x", False),
    "a mean beside an argument": ("z = tf.reduce_sum(vector) + v * x", True),
    "another name": ("y = vector + v\n        z = y", False),
    "in two lines": ("z = tf.reduce_sum(vector)\n        z += v", True),
    "a name computed from itself": ("z = v\n        z = z * [1.0, 2.0]", False),
    "a loss object": ("z = mse(x, v * x)", True),
    "a loss object made there": ("z = tf.keras.losses.MeanSquaredError()(x, v * x)", True),
    "a loss object without a mean": ("z = rows(x, v * x)", False),
    "a function of losses": ("z = tf.keras.losses.mse(x, v * x)", False),
    "a function of the program": ("z = average(v * x)", True),
    "one that gives an array": ("z = twice(v * x)", False),
    "one that calls itself": ("z = endless(v * x)", False),
    "one elsewhere": ("z = compute_loss_of(v * x)", True),
}


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize(("code", "scalar"), LOSSES.values(), ids=LOSSES)
def test_elements_of_a_loss_that_may_be_no_scalar_are_added_up(code: str, scalar: bool, several: bool) -> None:
    made = """
        v = tf.Variable(1.0)
        vector = tf.Variable([1.0, 2.0])
        mse = tf.keras.losses.MeanSquaredError()
        rows = tf.keras.losses.MeanSquaredError(reduction=tf.keras.losses.Reduction.NONE)
        def average(values): return tf.reduce_mean(values)
        def twice(values): return values * [2.0, 2.0]
        def endless(values): return endless(values)
    """
    loss = code.rpartition("\n")[2].split()[0]
    variables = "[v, vector]" if several else "v"
    body = f"    with tf.GradientTape() as tape:\n        {code}\n"
    body += f"    grads = tape.gradient({loss}, {variables}, unconnected_gradients='zero')\n    return {loss}, grads\n"
    after = rewritten(textwrap.dedent(made) + "def step(x, matrix):\n" + body)
    plain = f"    {loss}, grads = jd.value_and_grad(compute_loss, {variables})()\n"
    added = f"    ({loss},), (grads,) = jd.value_and_grads(compute_loss, ({variables},))()\n"
    assert (plain if scalar else added) in after
    assert "jd.value_and_grad" in rewritten(textwrap.dedent(made) + "async def step(x, matrix):\n" + body)


def test_a_block_whose_tape_another_block_may_have_is_left() -> None:
    """Which of the two the gradient is asked of is known when it runs alone."""
    code = f"if c:\n{textwrap.indent(BLOCK, '    ')}else:\n{textwrap.indent(BLOCK, '    ')}g = tape.gradient(loss, w)\n"
    assert len([one for one in scan(IMPORTS + code).left() if one.name == "tf.GradientTape"]) == 2


class TestByHand:
    @pytest.mark.parametrize(
        ("code", "reason"),
        [
            ("with tf.GradientTape():\n    loss = f(x)\n", "no name"),
            ("with tf.GradientTape() as tape:\n    loss = f(x)\n", "there is no `grads"),
            (
                "with tf.GradientTape() as tape:\n    tape.watch(x)\n    y = f(x)\ng, h = tape.gradient(y, [x, m.v])\n",
                "make `x` an argument",
            ),
            (
                "with tf.GradientTape() as tape:\n    p = f(x)\n    y = p[p.numpy()]\n    g = tape.gradient(y, v)\n",
                "asks for the numbers in `p`",
            ),
            (
                (
                    "with tf.GradientTape(persistent=True) as t:\n    ls = f(x)\n    l = ls[0]\n"
                    "gs = [t.gradient(l, w) for l, w in zip(ls, ws)]\n"
                ),
                "`losses, grads = jd.value_and_grads(function, variables)()`",
            ),
            (
                "with tf.GradientTape(persistent=True) as t:\n    l = f(x)\nfor w in ws:\n    g(t.gradient(l, w))\n",
                "`t.gradient(l, w)` is asked in a loop",
            ),
            (
                "with tf.GradientTape() as t:\n    l = f(x)\nfor k in xs:\n    for g in t.gradient(l, ws): h(g)\n",
                "`t.gradient(l, ws)` is asked in a loop",
            ),
            ("with tf.GradientTape() as t:\n    y = f(x)\nj = t.jacobian(y, v)\n", "`jax.jacrev(function)(x)`"),
            ("with tf.GradientTape() as t:\n    y = f(x)\nj = t.batch_jacobian(y, v)\n", "jax.vmap(jax.jacrev("),
            (
                "with tf.GradientTape() as t:\n    y = f(x)\ng = t.gradient(y, t.watched_variables())\n",
                "asks for `t.watched_variables`: name the variables",
            ),
            (
                "with tf.GradientTape() as t:\n    y = f(x)\n    t.reset()\n    y = f(y)\ng = t.gradient(y, v)\n",
                "asks for `t.reset`",
            ),
            (
                "with tf.GradientTape() as t:\n    with t.stop_recording():\n        y = f(x)\ng = t.gradient(y, v)\n",
                "`jax.lax.stop_gradient(x)`",
            ),
            (
                'with tf.GradientTape() as tape:\n    y = f(x)\n    g = tape.gradient(y, v)\n    t = """a\n    b"""\n',
                "a text of several lines",
            ),
            (
                "with tf.GradientTape() as tape:\n    loss = f(x)\nx = [v]\ngrads = tape.gradient(loss, x)\n",
                "`x` changes between",
            ),
            (
                "with tf.GradientTape() as tape:\n    y = f(x)\ngrads = tape.gradient(y * 2, v)\n",
                "computed outside the block",
            ),
            (
                (
                    "with tf.GradientTape() as tape:\n    self.loss = f(x)\n    loss = self.loss\n"
                    "grads = tape.gradient(loss, v)\n"
                ),
                "writes to `self.loss`",
            ),
            (
                "with tf.GradientTape() as tape:\n    x = x * 2\n    loss = f(x)\ngrads = tape.gradient(loss, v)\n",
                "`x` is read in the block before",
            ),
            (
                "with tf.GradientTape() as tape:\n    n += f(x)\n    loss = n\ngrads = tape.gradient(loss, v)\n",
                "`n` is read in the block before",
            ),
            (
                (
                    "def g():\n    with tf.GradientTape() as tape:\n        loss = f(x)\n        if bad: return None\n"
                    "    grads = tape.gradient(loss, v)\n"
                ),
                "holds a `return`",
            ),
            (
                "with tf.GradientTape() as tape:\n    loss = f(x)\nv = other(loss)\ngrads = tape.gradient(loss, v)\n",
                "`v` changes between",
            ),
            (
                "with tf.GradientTape() as tape:\n    y = f(x)\nh = y / 2\nv = pick(m)\ng = tape.gradient(y, v)\n",
                "move line 5 above the `with`",
            ),
            (
                "with tf.GradientTape() as tape:\n    y = f(x)\nh = y / 2\nv = [w]; v += h\ng = tape.gradient(y, v)\n",
                "`v` changes between",
            ),
            (
                "with tf.GradientTape() as tape:\n    y = f(x)\nprint(y, v)\nv.append(w)\ng = tape.gradient(y, v)\n",
                "`v` changes between",
            ),
            (
                "with tf.GradientTape() as tape:\n    y = f(x)\nprint(y, g)\ng = tape.gradient(y, v)\n",
                "`g` changes between",
            ),
            ("with tf.GradientTape() as tape: loss = f(x)\ngrads = tape.gradient(loss, v)\n", "on one line"),
            (
                "with tf.GradientTape() as tape:\n    f(x)\ngrads = tape.gradient(loss, v)\n",
                "not assigned in the block",
            ),
            ("tape = tf.GradientTape()\n", "takes"),
        ],
    )
    def test_is_left_with_the_reason(self, code: str, reason: str) -> None:
        finding = tape(code)
        assert finding.edits == ()
        if reason != "takes":
            assert reason in finding.advice
        assert "jd.value_and_grad" in finding.advice

    def test_of_a_gradient_by_an_array_says_what_to_do_first(self) -> None:
        code = "with tf.GradientTape() as t:\n    t.watch(x)\n    y = f(x, training=True)\ng = t.gradient(y, x)\n"
        finding = next(one for one in scan(IMPORTS + code).findings if one.name == "tf.GradientTape")
        assert not finding.edits
        assert "jax.grad(function)(x)" in finding.advice
        assert "pass training=False to its layers, and run `jaxtribute migrate --write` once more" in finding.advice
        assert "value_and_grad" not in finding.advice
        assert not scan(IMPORTS + code.replace("True", "False")).left()

    def test_is_not_changed(self) -> None:
        code = "with tf.GradientTape():\n    loss = f(x)\n"
        assert code in rewritten(code)
