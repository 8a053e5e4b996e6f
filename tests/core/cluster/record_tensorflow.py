"""Asks TensorFlow the questions of `cases.py`, and writes its answers to `tensorflow.json`.

The suite compares with what is recorded and never imports TensorFlow. Made with tensorflow-cpu 2.21 in an environment
of its own:

    PYTHONPATH=tests python -m cluster.record_tensorflow
"""

import json
import os
from pathlib import Path
from unittest import mock

import tensorflow as tf

from cluster.answers import answer
from cluster.cases import CASES


def main() -> None:
    names = {"ClusterSpec": tf.train.ClusterSpec} | vars(tf.distribute.cluster_resolver)
    found = {}
    for name, (environ, code) in CASES.items():
        with mock.patch.dict(os.environ, environ):
            found[name] = answer(code, names)
    (Path(__file__).parent / "tensorflow.json").write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
