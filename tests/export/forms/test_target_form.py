"""The steps from markers to a target's form, and what the file says about itself."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
import torch

from sparsebit.export import export_graph
from sparsebit.export.forms.target_form import EVERYWHERE, FORMAT, KEY, ON_CPUS
from tests.export.nets import Tokens, quantized


def test_every_rewrite_is_listed_once_with_the_operators_it_is_offered() -> None:
    steps = (*EVERYWHERE, *ON_CPUS)
    names = [rewrite.__name__ for rewrite, _ in steps]
    assert len(set(names)) == len(names) and all(operators for _, operators in steps)


@pytest.mark.parametrize(("target", "activations"), [("onnxruntime", "uint8"), ("tensorrt", "int8")])
def test_the_file_says_what_each_quantized_tensor_is(target: str, activations: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 5, 32)
    qmodel = quantized(Tokens(), x, "int8_tensorrt")
    done = export_graph(qmodel.model, (x,), path=tmp_path / "net.onnx", target=target)
    (entry,) = [one for one in onnx.load(str(done.path)).metadata_props if one.key == KEY]
    said = json.loads(entry.value)
    assert (said["format"], said["target"]) == (FORMAT, target) and set(said["tensors"]) == set(done.tensors)
    assert said["tensors"]["up.weight"]["type"] == "int8"
    kinds = {one["type"] for one in said["tensors"].values() if one["side"] == "A"}
    assert kinds == {activations}
    assert all(count == 0 for name, count in done.rewrites.items() if target == "tensorrt" and "keep" in name)
