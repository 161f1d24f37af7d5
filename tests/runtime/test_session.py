"""Opening models in the runtimes: options, names, and errors that are ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparsebit.errors import RegistryError
from sparsebit.runtime import RUNTIMES, OnnxFile, SessionError, open_session
from sparsebit.runtime.session import first_line

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


def model(op: str = "Add", domain: str = "") -> Any:
    """``sum = x + y``, x with a free batch."""
    info, kind = onnx.helper.make_tensor_value_info, onnx.TensorProto.FLOAT
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node(op, ["x", "y"], ["sum"], domain=domain)],
        "net",
        [info("x", kind, ["batch", 3]), info("y", kind, [3])],
        [info("sum", kind, ["batch", 3])],
    )
    opsets = [onnx.helper.make_opsetid("", 20), *([onnx.helper.make_opsetid(domain, 1)] if domain else [])]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=9)


@pytest.mark.parametrize("isolated", [False, True])
@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
def test_a_model_runs_from_memory_and_from_a_file(runtime: str, isolated: bool, tmp_path: Path) -> None:
    pytest.importorskip(runtime)
    path = tmp_path / "net.onnx"
    onnx.save(model(), path)
    feed = {"x": np.ones((2, 3), np.float32), "y": np.arange(3, dtype=np.float32), "unread": np.zeros(1)}
    for source in (model(), path):
        session = open_session(source, runtime=runtime, threads=1, optimize="none", isolated=isolated)
        assert session.run(feed)["sum"].tolist() == [[1, 2, 3], [1, 2, 3]]
        assert [value.name for value in session.inputs] == ["x", "y"] and session.output_names == ("sum",)
        assert session.inputs[1].shape == (3,) and session.inputs[1].dtype == np.float32
        assert not isinstance(session.inputs[0].shape[0], int)
    with pytest.raises(SessionError, match=r"input 'y' is missing[\s\S]*expected: x, y[\s\S]*got: +x"):
        session.run({"x": feed["x"]})
    with pytest.raises(SessionError, match=f"{runtime} could not run the model: .+") as caught:
        session.run({"x": np.array([["a", "b", "c"]]), "y": feed["y"]})
    assert caught.value.where == str(path)
    for wrong in (np.ones((2, 5), np.float32), np.ones(6, np.float32), "words"):
        with pytest.raises(
            SessionError, match=r"input 'x' has another size[\s\S]*expected: .* 3\]\n.*got: +\["
        ):
            session.run({"x": wrong, "y": feed["y"]})


@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
def test_names_are_those_of_the_file_beside_casts_that_do_nothing(runtime: str) -> None:
    pytest.importorskip(runtime)
    node, info, kind = onnx.helper.make_node, onnx.helper.make_tensor_value_info, onnx.TensorProto.FLOAT
    graph = onnx.helper.make_graph(
        [
            node("Cast", ["pixels"], ["Cast_output_0"], to=kind),
            node("Relu", ["Cast_output_0"], ["Before"]),
            node("Identity", ["Before"], ["result"]),
        ],
        "net",
        [info("pixels", kind, ["n", 3])],
        [info("result", kind, ["n", 3])],
    )
    opset = onnx.helper.make_opsetid("", 20)
    session = open_session(
        onnx.helper.make_model(graph, opset_imports=[opset], ir_version=9), runtime=runtime
    )
    assert [value.name for value in session.inputs] == ["pixels"] and session.output_names == ("result",)
    assert session.run({"pixels": np.ones((1, 3), np.float32)})["result"].tolist() == [[1, 1, 1]]


@pytest.mark.parametrize("isolated", [False, True])
@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
def test_what_a_runtime_refuses_is_our_error(runtime: str, isolated: bool, tmp_path: Path) -> None:
    pytest.importorskip(runtime)
    with pytest.raises(SessionError, match=f"{runtime} could not open the model: .+\n.*model in memory"):
        open_session(model("Gizmo", "strange"), runtime=runtime, isolated=isolated)
    with pytest.raises(SessionError, match="no such file"):
        open_session(tmp_path / "gone.onnx", runtime=runtime, isolated=isolated)


def test_an_unknown_runtime_says_which_there_are() -> None:
    with pytest.raises(RegistryError, match="did you mean 'openvino'"):
        open_session(model(), runtime="openvin")


def test_a_runtime_can_be_registered_from_outside() -> None:
    def opener(source: Any, options: Any) -> Any:
        raise ValueError("\n\n  no licence \nand so on")

    RUNTIMES.register("elsewhere")(opener)
    try:
        with pytest.raises(SessionError, match="elsewhere could not open the model: no licence\n"):
            open_session(model(), runtime="elsewhere")
    finally:
        RUNTIMES.remove("elsewhere")
    assert first_line(ValueError()) == "ValueError"


def test_the_optimized_graph_is_written(tmp_path: Path) -> None:
    open_session(model(), save_optimized=tmp_path / "seen.onnx")
    assert [node.op_type for node in onnx.load(tmp_path / "seen.onnx").graph.node] == ["Add"]


def test_a_file_is_a_function_of_tensors(tmp_path: Path) -> None:
    import torch

    from sparsebit.errors import SparsebitError

    onnx.save(model(), tmp_path / "net.onnx")
    file = OnnxFile(tmp_path / "net.onnx", threads=1)
    x, y = torch.ones(2, 3), torch.ones(3)
    assert torch.equal(file(x, y), x + y) and torch.equal(file(y, x=x), x + y)
    assert {name: array.shape for name, array in file.example(4).items()} == {"x": (4, 3), "y": (3,)}
    assert file.bytes == (tmp_path / "net.onnx").stat().st_size
    with pytest.raises(SparsebitError, match=r"do not fit[\s\S]*expected: x, y[\s\S]*1 in order, z by name"):
        file.feed(x, z=y)
