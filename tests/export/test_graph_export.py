from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn

from sparsebit import capture
from sparsebit.errors import RegistryError
from sparsebit.export import ExportError, export_graph, graph_export
from sparsebit.export.forms.target_form import KEY
from tests.export.nets import Residual, Tokens, close, config, initializers, op_types, quantized, run_file


def test_a_float_graph_computes_the_same_for_any_batch(tmp_path: Path) -> None:
    model, x = Residual().eval(), torch.randn(1, 3, 8, 8)
    done = export_graph(capture(model, x), (x,), path=tmp_path / "net.onnx")
    assert done.axes == {"x": {0: "batch"}} and done.engine == "script" and not done.tensors
    onnx.checker.check_model(str(done.path), full_check=True)
    for batch in (1, 2, 5):
        x = torch.randn(batch, 3, 8, 8)
        assert close(run_file(done.path, x)[0], model(x), 1e-4)


def test_the_slow_engine_writes_the_same_model(tmp_path: Path) -> None:
    x = torch.randn(2, 5, 32)
    qmodel = quantized(Tokens(), x)
    fast, slow = (
        export_graph(qmodel.model, (x,), path=tmp_path / f"{engine}.onnx", engine=engine)  # type: ignore[arg-type]
        for engine in ("script", "program")
    )
    assert set(fast.tensors) == set(slow.tensors)
    left, right = (run_file(done.path, x)[0] for done in (fast, slow))
    assert np.abs(left - right).max() < 1e-4
    weights = [
        {n: t for n, t in initializers(d.path).items() if n.endswith("weight.codes.transposed")}
        for d in (fast, slow)
    ]
    assert weights[0].keys() == weights[1].keys() and len(weights[0]) == 2


def test_names_are_the_models_own(tmp_path: Path) -> None:
    x = torch.randn(2, 3, 8, 8)
    done = export_graph(quantized(Residual(), x).model, (x,), path=tmp_path / "net.onnx")
    graph = onnx.load(str(done.path)).graph
    assert {"stem/Conv", "a/Conv", "fc/Gemm"} <= {node.name for node in graph.node}
    assert {"stem.bias", "stem.weight.codes", "x.scale"} <= {tensor.name for tensor in graph.initializer}
    assert {value.name for value in graph.value_info} <= {tensor.name for tensor in graph.initializer}
    names = [node.name for node in graph.node]
    assert len(names) == len(set(names))


def test_asked_names_and_axes_are_taken(tmp_path: Path) -> None:
    x = torch.randn(2, 5, 32)
    done = export_graph(
        capture(Tokens().eval(), x),
        (x,),
        path=tmp_path / "net.onnx",
        input_names=["tokens"],
        output_names=["features"],
        dynamic_axes={"tokens": {0: "batch", 1: "length"}, "features": {0: "batch", 1: "length"}},
    )
    graph = onnx.load(str(done.path)).graph
    for value in (*graph.input, *graph.output):
        assert [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim] == [
            "batch",
            "length",
            32,
        ]
    assert run_file(done.path, torch.randn(3, 7, 32))[0].shape == (3, 7, 32)


def test_fixed_sizes(tmp_path: Path) -> None:
    x = torch.randn(2, 5, 32)
    done = export_graph(capture(Tokens().eval(), x), (x,), path=tmp_path / "net.onnx", dynamic_axes=None)
    dims = onnx.load(str(done.path)).graph.input[0].type.tensor_type.shape.dim
    assert [d.dim_value for d in dims] == [2, 5, 32]


class FixedBatch(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(2, -1) + torch.arange(2.0)[:, None]


def test_a_batch_that_cannot_vary_is_fixed_unless_it_was_asked_for(tmp_path: Path) -> None:
    x = torch.randn(2, 4)
    graph = capture(FixedBatch(), x)
    done = export_graph(graph, (x,), path=tmp_path / "net.onnx")
    assert run_file(done.path, x)[0].shape == (2, 4)
    with pytest.raises(ExportError, match="no axis 9"):
        export_graph(graph, (x,), path=tmp_path / "no.onnx", dynamic_axes={"x": [9]})
    with pytest.raises(ExportError, match="not an input or output"):
        export_graph(graph, (x,), path=tmp_path / "no.onnx", dynamic_axes={"y": [0]})
    assert not (tmp_path / "no.onnx").exists()


class TwoRows(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.arange(2.0)[:, None]


def test_a_graph_that_takes_one_batch_alone_says_so(tmp_path: Path) -> None:
    x = torch.randn(2, 4)
    done = export_graph(capture(TwoRows(), x), (x,), path=tmp_path / "net.onnx")
    assert done.axes == {} and len(done.attempts) == 1
    assert done.attempts[0].startswith("the batch of 'x' is fixed: ")
    said = "batch: fixed, the file accepts only inputs of the example's size: the batch of 'x' is fixed: "
    assert said in str(done)


class Counted(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.arange(torch.numel(x))


def test_a_number_of_elements_stays_free(tmp_path: Path) -> None:
    x, more = torch.randn(3), torch.randn(5)
    done = export_graph(capture(Counted(), x), (x,), path=tmp_path / "net.onnx")
    assert done.axes == {"x": {0: "batch"}}
    assert close(run_file(done.path, more)[0], Counted()(more), 1e-6)


def test_a_fixed_batch_is_explained_by_the_reason_of_the_batch_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = [
        "the graph does not run with another batch and sequence",
        "the graph does not run with another batch",
    ]
    monkeypatch.setattr(graph_export, "possible_axes", lambda request: ([{}], refused))
    x = torch.randn(2, 4)
    done = export_graph(capture(nn.Linear(4, 3).eval(), x), (x,), path=tmp_path / "net.onnx")
    assert str(done).endswith(refused[1])


class Text(nn.Module):
    """Ids, a mask, and a table of positions."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places, self.last = nn.Embedding(50, 16), nn.Embedding(32, 16), nn.Linear(16, 16)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, object]:
        h = self.last(self.words(input_ids) + self.places(torch.arange(input_ids.shape[1])))
        return {"logits": (h * attention_mask[..., None]).mean(1), "states": [h, h * 2]}


def test_text_has_a_free_sequence_and_outputs_their_own_names(tmp_path: Path) -> None:
    model, ids = Text().eval(), torch.randint(0, 50, (2, 12))
    kwargs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    done = export_graph(capture(model, (), kwargs), (), kwargs, tmp_path / "net.onnx")
    assert done.axes == {name: {0: "batch", 1: "sequence"} for name in kwargs}
    assert done.output_names == ("logits", "states_0", "states_1") and not done.attempts
    short = torch.randint(0, 50, (3, 5)), torch.randint(0, 2, (3, 5))
    assert close(run_file(done.path, *short)[0], model(*short)["logits"], 1e-4)


def test_an_example_that_does_not_fit_says_what_does(tmp_path: Path) -> None:
    x = torch.randn(2, 4)
    graph = capture(Several(), (x,), {"scale": torch.tensor(2.0)})
    with pytest.raises(
        ExportError, match=r"does not fit the model[\s\S]*expected: x, scale[\s\S]*3 inputs by position"
    ):
        export_graph(graph, (x, x, x), path=tmp_path / "net.onnx")


class Several(nn.Module):
    def forward(self, x: Tensor, scale: Tensor | None = None) -> dict[str, object]:
        assert scale is not None
        return {"a": x * scale, "n": 3, "b": (x, x.sum(1))}


def test_structures_become_flat_inputs_and_outputs(tmp_path: Path) -> None:
    x, scale = torch.randn(2, 4), torch.tensor(2.0)
    done = export_graph(
        capture(Several(), (x,), {"scale": scale}), (x,), {"scale": scale}, tmp_path / "net.onnx"
    )
    assert done.input_names == ("x", "scale") and done.output_names == ("a", "b_0", "b_1")
    a, same, total = run_file(done.path, x, scale)
    assert np.allclose(a, 2 * x) and np.array_equal(same, x) and np.allclose(total, x.sum(1), atol=1e-6)


def test_nothing_of_the_model_changes(tmp_path: Path) -> None:
    x = torch.randn(2, 3, 8, 8)
    qmodel = quantized(nn.Sequential(Residual(), nn.Dropout(0.5)), x)
    qmodel.train()
    calls: list[int] = []
    next(iter(qmodel.model.modules())).register_forward_hook(lambda *_: calls.append(1))
    before = {name: value.clone() for name, value in qmodel.state_dict().items()}
    flags = [
        (m.training, getattr(m, "use_quant", None), getattr(m, "substitute", None)) for m in qmodel.modules()
    ]
    state, code = torch.random.get_rng_state(), qmodel.model.code
    export_graph(qmodel.model, (x,), path=tmp_path / "net.onnx")
    after = qmodel.state_dict()
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    assert flags == [
        (m.training, getattr(m, "use_quant", None), getattr(m, "substitute", None)) for m in qmodel.modules()
    ]
    assert torch.equal(state, torch.random.get_rng_state()) and qmodel.model.code == code
    assert all(p.requires_grad for p in qmodel.parameters())


class Median(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.median(1).values


def test_a_failed_export_leaves_what_was_there(tmp_path: Path) -> None:
    x, path = torch.randn(2, 4), tmp_path / "net.onnx"
    path.write_bytes(b"older")
    with pytest.raises(ExportError, match="no exporter could translate") as caught:
        export_graph(capture(Median(), x), (x,), path=path)
    assert "median" in str(caught.value)
    assert [file.name for file in tmp_path.iterdir()] == ["net.onnx"] and path.read_bytes() == b"older"
    with pytest.raises(ExportError, match="no such folder"):
        export_graph(capture(nn.ReLU(), x), (x,), path=tmp_path / "nowhere" / "net.onnx")


def test_external_data(tmp_path: Path) -> None:
    x = torch.randn(2, 3, 8, 8)
    qmodel = quantized(Residual(), x)
    whole = export_graph(qmodel.model, (x,), path=tmp_path / "a.onnx")
    split = export_graph(qmodel.model, (x,), path=tmp_path / "b.onnx", external_data=True)
    assert [file.name for file in split.files] == ["b.onnx", "b.onnx.data"]
    assert np.array_equal(run_file(whole.path, x)[0], run_file(split.path, x)[0])
    again = export_graph(qmodel.model, (x,), path=tmp_path / "b.onnx")
    assert again.files == (tmp_path / "b.onnx",) and not (tmp_path / "b.onnx.data").exists()


def test_half_precision(tmp_path: Path) -> None:
    x = torch.randn(2, 5, 32)
    model = Tokens().eval()
    done = export_graph(capture(model.half(), x.half()), (x.half(),), path=tmp_path / "float.onnx")
    assert close(run_file(done.path, x.half())[0].astype(np.float32), model(x.half()).float())
    qmodel = quantized(model, x.half())
    done = export_graph(qmodel.model, (x.half(),), path=tmp_path / "net.onnx")
    got, wanted = run_file(done.path, x.half())[0], qmodel(x.half())
    assert got.dtype == np.float16 and close(got.astype(np.float32), wanted.float())


def test_opsets(tmp_path: Path) -> None:
    x = torch.randn(2, 3, 8, 8)
    qmodel = quantized(Residual(), x)
    for asked in (13, 17, 20, 21, 25):
        done = export_graph(qmodel.model, (x,), path=tmp_path / "net.onnx", opset=asked)
        assert onnx.load(str(done.path)).opset_import[0].version == asked
        assert close(run_file(done.path, x)[0], qmodel(x))
    narrow = quantized(Residual(), x, config(w={"bits": 4}))
    with pytest.raises(ExportError, match="opset 13 has no type for"):
        export_graph(narrow.model, (x,), path=tmp_path / "no.onnx", opset=13)
    with pytest.raises(ExportError, match="at most 25"):
        export_graph(narrow.model, (x,), path=tmp_path / "no.onnx", opset=99)
    with pytest.raises(ExportError, match="opset_version is not a number"):
        export_graph(narrow.model, (x,), path=tmp_path / "no.onnx", opset="20")  # type: ignore[arg-type]
    with pytest.raises(RegistryError):
        export_graph(narrow.model, (x,), path=tmp_path / "no.onnx", target="toaster")


def test_metadata_says_what_every_tensor_is(tmp_path: Path) -> None:
    x = torch.randn(2, 3, 8, 8)
    qmodel = quantized(Residual(), x, config(w={"bits": 4}, a={"bits": 7}))
    done = export_graph(qmodel.model, (x,), path=tmp_path / "net.onnx", extra_info=True)
    proto = onnx.load(str(done.path))
    onnx.checker.check_model(proto, full_check=True)
    told = json.loads({entry.key: entry.value for entry in proto.metadata_props}[KEY])
    assert told["tensors"]["stem.weight"]["bits"] == 4 and told["tensors"]["stem.weight"]["type"] == "int4"
    assert told["tensors"]["x"] == told["tensors"]["x"] | {"bits": 7, "side": "A", "range": [0, 127]}
    bits = {
        (node.op_type, entry.value)
        for node in proto.graph.node
        for entry in node.metadata_props
        if entry.key == "sparsebit.bits"
    }
    assert bits == {("QuantizeLinear", "7"), ("DequantizeLinear", "7"), ("DequantizeLinear", "4")}
    run_file(done.path, x)


def test_files_are_as_small_as_their_codes(tmp_path: Path) -> None:
    x, model = (
        torch.randn(2, 64, 8, 8),
        nn.Sequential(nn.Conv2d(64, 256, 3), nn.ReLU(), nn.Conv2d(256, 64, 3)).eval(),
    )
    float_file = export_graph(capture(model, x), (x,), path=tmp_path / "float.onnx").bytes
    for bits, share in ((8, 0.26), (4, 0.14)):
        done = export_graph(
            quantized(model, x, config(w={"bits": bits})).model, (x,), path=tmp_path / "net.onnx"
        )
        assert done.bytes < share * float_file
        assert op_types(done.path).count("QuantizeLinear") == 3


def test_an_input_and_an_output_have_different_names(tmp_path: Path) -> None:
    x = torch.randn(2, 3)
    with pytest.raises(ExportError, match="'a' names an input and an output"):
        export_graph(
            capture(nn.Linear(3, 3), x), (x,), path=tmp_path / "a.onnx", input_names=["a"], output_names=["a"]
        )


@pytest.mark.parametrize("names", [[""], [3], ["a\0"], ["a\n"], "image", 3, ["a", "b"]])
def test_names_are_texts(tmp_path: Path, names: Any) -> None:
    x = torch.randn(2, 3)
    with pytest.raises(ExportError, match="input_names does not fit the model"):
        export_graph(capture(nn.Linear(3, 3), x), (x,), path=tmp_path / "a.onnx", input_names=names)
