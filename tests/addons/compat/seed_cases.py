"""Which example of the documents is which, and what each needs to run: names before it, repairs of what a copy lost.

Every block runs with `tf` (`jaxtribute.compat.tf`), `np`, `os` and `json` imported, and with as many logical devices
in the place of GPUs as it names.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Case:
    """An example.

    Attributes:
        name: Its name, `E1` to `E24`; the same example may stand in several texts.
        mark: A piece of text that only this example holds.
        seeds: The texts that it is looked for in; all by default.
        gpus: Logical devices that stand for GPUs.
        tpus: Logical devices that stand for TPU devices.
        workers: Processes that it takes. It runs in the first; the others only make the strategy.
        prelude: Code to run first.
        why: Why it needs the prelude or the repairs; shown in the guide.
        repairs: Pieces of the block that a text has lost, with what stands there in the others.
        stops: Whether it would run for ever, and is stopped by its prelude.
        differs: What is shown otherwise here, by the statement that shows it, with the reason.
    """

    name: str
    mark: str
    seeds: str = "S0 S1 S2 S3 S4"
    gpus: int = 2
    tpus: int = 0
    workers: int = 1
    prelude: str = ""
    why: str = ""
    repairs: tuple[tuple[str, str], ...] = ()
    stops: bool = False
    differs: dict[str, str] = field(default_factory=dict)


_FILES = """
class dataset_ops:
    class Dataset:
        @staticmethod
        def TFRecordDataset(names):
            files = tf.data.TFRecordDataset([folder + name for name in names])
            return files.map(lambda record: tf.io.decode_raw(record, tf.float32)).batch(2)
"""
_STEP = "strategy = tf.distribute.MirroredStrategy()\nglobal_batch_size = 4\n"
_VALUES = """
strategy = tf.distribute.MirroredStrategy()
examples = [tf.range(4), tf.range(4, 8)]
per_replica_result = strategy.experimental_distribute_values_from_function(
    lambda context: examples[context.replica_id_in_sync_group]
)
"""
_WORKERS = 'workers = json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"]\n'
_PORTS = ('["localhost:12345", "localhost:23456"]', "workers")
_PORTS_WHY = (
    "Two processes must run it. The ports that it names may be taken: others stand in `TF_CONFIG` before it runs."
)
_CUT = (
    "distributed_values = (\n",
    "distributed_values = (\n  strategy.experimental_distribute_values_from_function(value_fn))\n",
)
_CUT_WHY = "The copy lost the right side of `distributed_values =`."

CASES = (
    Case("E1", "tf.enable_eager_execution()", gpus=1),
    Case(
        "E2",
        "os.environ['TF_CONFIG']",
        seeds="S3",
        workers=2,
        prelude=_WORKERS,
        why=f"{_PORTS_WHY} The copy lost two braces and the indentation of comments.",
        repairs=(
            _PORTS,
            ('["localhost:34567"]\n', '["localhost:34567"]},\n'),
            ("'index': 0}\n", "'index': 0}})\n"),
            ("'worker':\n#", "'worker':\n  pass\n#"),
            ("'ps':\n#", "'ps':\n  pass\n#"),
        ),
    ),
    Case("E2", "os.environ['TF_CONFIG']", workers=2, prelude=_WORKERS, why=_PORTS_WHY, repairs=(_PORTS,)),
    Case("E3", "Dataset.range(4)"),
    Case(
        "E5",
        "input_signature=[dist_dataset.element_spec]",
        prelude=_FILES,
        why="`dataset_ops` is a module inside TensorFlow, and the files must exist and be parsed and batched.",
    ),
    Case(
        "E4",
        "dataset_ops.Dataset.TFRecordDataset",
        prelude=_FILES + "\ndef train_step(inputs):\n    seen.append(inputs)\nseen = []\n",
        why="As the next one; `train_step` is the user's.",
    ),
    Case(
        "E6",
        "experimental_distribute_datasets_from_function(dataset_fn)",
        prelude=_STEP + "def replica_fn(batch):\n    stop_after(6)\n    return batch\n",
        why="The strategy, the batch size and `replica_fn` are the user's. The dataset repeats for ever, so "
        "`replica_fn` raises an error after a few batches.",
        stops=True,
    ),
    Case(
        "E7",
        "iterator.element_spec",
        prelude=_STEP
        + "inputs = strategy.experimental_distribute_dataset(tf.data.Dataset.range(8).batch(4))\nsteps = 2\n",
        why="It continues the example before it: `inputs`, `strategy` and the number of steps are missing.",
    ),
    Case("E8", "experimental_make_numpy_dataset", prelude=_STEP, why="The strategy is missing."),
    Case(
        "E9",
        "make_input_fn_iterator",
        prelude=_STEP + "def replica_fn(batch):\n    return batch * 2.0\n",
        why="The strategy, the batch size and `replica_fn` are the user's.",
    ),
    Case("E10", "tensor_input", seeds="S4", gpus=1),
    Case("E10", "tensor_input"),
    Case("E11", "replica_fn2", seeds="S4", gpus=1),
    Case("E11", "replica_fn2"),
    Case("E12", "all_reduce("),
    Case(
        "E14",
        "total.device",
        differs={
            "total.device": "A reduced value stays on the replicas' devices; `numpy.asarray` brings it to the host."
        },
    ),
    Case("E13", "per_replica_result = strategy.run(step_fn)"),
    Case("E15a", "per_replica_result, axis=None)", prelude=_VALUES, why="A single line: its values are told in words."),
    Case("E15b", "per_replica_result, axis=0)", prelude=_VALUES, why="A single line: its values are told in words."),
    Case("E16", "mirrored_variable"),
    Case(
        "E17",
        "def train_step(val)",
        why="The copy lost the dataset and the call of `strategy.run`.",
        repairs=(
            ("ds =\n", "ds = tf.data.Dataset.range(10).batch(2)\n"),
            ("# process dataset elements, args=(x,))", "strategy.run(train_step, args=(x,))"),
        ),
    ),
    Case(
        "E18",
        "# with 1 CPU and 1 GPU",
        gpus=1,
        why="The copy lost the dataset.",
        repairs=(("dataset =\n", "dataset = tf.data.Dataset.range(10).batch(2)\n"),),
    ),
    Case("E19", "return tf.constant(1.)", why=_CUT_WHY, repairs=(_CUT,)),
    Case("E20", "array_value", why=_CUT_WHY, repairs=(_CUT,)),
    Case("E21", "return ctx.num_replicas_in_sync", why=_CUT_WHY, repairs=(_CUT,)),
    Case(
        "E22",
        "tf.distribute.TPUStrategy()",
        gpus=0,
        tpus=2,
        why="The copy lost the lines that make the values and the distributed value.",
        repairs=(
            ("(worker_devices[i]):\n", "(worker_devices[i]):\n    multiple_values.append(tf.constant(1.0))\n"),
            (
                "distributed_values = strategy.",
                "distributed_values = strategy.experimental_distribute_values_from_function(value_fn)",
            ),
        ),
    ),
    Case(
        "E23",
        "tf.constant([[1], [2]])",
        why="The copy lost the call `run()`, and rows of what it prints.",
        repairs=(
            ("axis=0)\n", "axis=0)\nrun()\n"),
            ("numpy=\n", "numpy=array([[1],\n [2],\n [1],\n"),
            ("[2]], dt", "[2]], dt"),
        ),
    ),
    Case(
        "E24",
        "tf.reshape(tf.range(6)",
        gpus=4,
        why="The copy lost the call `run(axis=0)`.",
        repairs=(("axis=axis)\n", "axis=axis)\nrun(axis=0)\n"),),
    ),
)


def case_of(seed: str, text: str) -> Case | None:
    """The example that a block of a text is."""
    return next((case for case in CASES if case.mark in text and seed in case.seeds.split()), None)
