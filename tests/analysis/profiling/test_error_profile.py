"""What is better left in float, and the profile as a table and as JSON."""

from __future__ import annotations

import json

import pytest
import torch
from torch import Tensor, nn

from sparsebit.analysis import profile
from sparsebit.quantization import QuantModel
from tests.analysis.profiling.nets import quantized


def test_the_layer_that_is_spoilt_is_named_with_the_reason(net: nn.Module, batches: list[Tensor]) -> None:
    with torch.no_grad():
        net.second.weight[0, 0, 0, 0] = 40.0  # type: ignore[index, union-attr]
    errors = profile(quantized(net, batches, "W.QSCHEME=per-tensor-symmetric"), batches)
    advice = errors.keep_float()
    assert [item.layer for item in advice] == ["second"]
    assert "its weight keeps" in advice[0].because and "standard deviations" in advice[0].because
    assert str(advice[0]) in " ".join(str(errors).split())


def test_the_advice_applied_makes_it_better(net: nn.Module, batches: list[Tensor]) -> None:
    with torch.no_grad():
        net.second.weight[0, 0, 0, 0] = 40.0  # type: ignore[index, union-attr]
    qmodel = quantized(net, batches, "W.QSCHEME=per-tensor-symmetric")
    errors = profile(qmodel, batches)
    again = QuantModel(net, errors.apply(qmodel.cfg), example_inputs=(batches[0],))
    again.calibrate(batches, progress=False)
    better = profile(again, batches)
    assert "second.weight" not in again.quantizers
    assert better.output.sqnr_db > errors.output.sqnr_db + 6


def test_nobody_is_named_where_all_are_alike(net: nn.Module, batches: list[Tensor]) -> None:
    errors = profile(quantized(net, batches), batches)
    assert errors.keep_float() == ()
    assert "no layer stands out" in str(errors)


def test_the_dict_is_json_and_the_table_has_a_row_for_each_layer(
    net: nn.Module, batches: list[Tensor]
) -> None:
    errors = profile(quantized(net, batches), batches)
    data = json.loads(json.dumps(errors.to_dict(), allow_nan=False))
    assert [row["name"] for row in data["layers"]] == ["first", "second", "add", "head"]
    assert {"sqnr_db", "cosine", "mse"} == set(data["layers"][0]["alone"])
    assert errors.table(sort="sqnr").row_count == len(errors.layers)
    with pytest.raises(KeyError, match="no quantized layer named 'nose'"):
        errors.layer("nose")
