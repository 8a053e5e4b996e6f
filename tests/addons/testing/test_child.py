"""What a process of a runner does with a call, tried in this process."""

import pickle
import sys
import threading
import types
from multiprocessing.connection import Pipe
from pathlib import Path

import pytest

from jaxtribute._src.addons.testing import child
from jaxtribute._src.addons.testing.messages import Answer, Call, encode_call


def add(x: int, y: int = 1) -> int:
    return x + y


def answer(call: Call) -> Answer:
    return child._answer(call)  # pyright: ignore[reportPrivateUsage]


def test_calls_are_answered_until_the_other_end_closes(capsys: pytest.CaptureFixture[str]) -> None:
    here, there = Pipe()
    serving = threading.Thread(target=child.serve, args=(there,))
    serving.start()
    here.send_bytes(encode_call(add, (2,), {"y": 5}))
    assert pickle.loads(pickle.loads(here.recv_bytes()).value) == 7
    here.close()
    serving.join(10)
    assert not serving.is_alive()
    there.close()


@pytest.mark.parametrize("error", [ValueError("bad"), SystemExit(3), KeyboardInterrupt()])
def test_whatever_is_raised_is_told(error: BaseException) -> None:
    def fail() -> None:
        raise error

    call: Call = pickle.loads(encode_call(fail, (), {}))
    found = answer(call)
    assert found.error.startswith(type(error).__name__)
    assert "in fail" in found.traceback


def test_a_module_is_loaded_from_its_file_under_the_name_it_has_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "test_only_here.py"
    file.write_text("def triple(x): return 3 * x")
    name = "no_such_package.test_only_here"  # as pytest names test modules
    module = types.ModuleType(name)
    module.__file__ = str(file)
    exec(file.read_text(), vars(module))
    package = name.partition(".")[0]
    monkeypatch.setitem(sys.modules, package, types.ModuleType(package))
    monkeypatch.setitem(sys.modules, name, module)
    call: Call = pickle.loads(encode_call(module.triple, (4,), {}))
    assert call.module == (name, str(file))
    for _ in range(2):  # loaded, then found
        monkeypatch.delitem(sys.modules, name)
        monkeypatch.delitem(sys.modules, package)
        assert pickle.loads(answer(call).value) == 12
        assert sys.modules[name] is not module
    monkeypatch.delitem(sys.modules, name)
    file.write_text("raise OSError('in the module')")
    assert "in the module" in answer(call).error
    assert name not in sys.modules
