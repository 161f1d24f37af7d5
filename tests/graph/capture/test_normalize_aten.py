"""The canonical spelling of aten operators gives the numbers of the operators."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sparsebit.graph.capture.normalize import (
    canonical_aten,
)
from tests.graph.capture.spelled_calls import assert_equal, b, f, i

ATEN = torch.ops.aten
ATEN_CALLS: list[tuple[str, Any, tuple[Any, ...], dict[str, Any]]] = [
    ("add", ATEN.add.Tensor, (f(3), f(3)), {}),
    ("add", ATEN.add.Tensor, (f(3), f(3)), {"alpha": 2}),
    ("mul", ATEN.mul.Scalar, (f(3), 2.0), {}),
    ("div", ATEN.div.Tensor, (f(3), f(3)), {}),
    ("div", ATEN.div.Tensor_mode, (f(3) * 9, f(3)), {"rounding_mode": "floor"}),
    ("pow", ATEN.pow.Tensor_Scalar, (f(3), 2), {}),
    ("eq", ATEN.eq.Scalar, (i(3), 2), {}),
    ("neg", ATEN.neg.default, (f(3),), {}),
    ("bitwise_not", ATEN.bitwise_not.default, (b(3),), {}),
    ("rsub", ATEN.rsub.Scalar, (f(3), 1.0), {}),
    ("matmul", ATEN.matmul.default, (f(2, 3), f(3)), {}),
    ("relu", ATEN.relu.default, (f(3),), {}),
    ("gelu", ATEN.gelu.default, (f(3),), {}),
    ("linear", ATEN.linear.default, (f(2, 3), f(4, 3), f(4)), {}),
    ("conv2d", ATEN.conv2d.default, (f(1, 2, 5, 5), f(3, 2, 3, 3), None, [1, 1], [1, 1]), {}),
    ("layer_norm", ATEN.layer_norm.default, (f(2, 3), [3]), {}),
    ("max_pool2d", ATEN.max_pool2d.default, (f(1, 2, 4, 4), [2, 2], [2, 2]), {}),
    ("softmax", ATEN.softmax.int, (f(2, 3), -1), {}),
    ("view", ATEN.view.default, (f(2, 6), [3, 4]), {}),
    ("view", ATEN.view.dtype, (f(2, 6), torch.int32), {}),
    ("expand", ATEN.expand.default, (f(1, 3), [4, 3]), {}),
    ("repeat", ATEN.repeat.default, (f(2), [2, 2]), {}),
    ("contiguous", ATEN.contiguous.default, (f(2, 3).t(),), {}),
    ("new_zeros", ATEN.new_zeros.default, (f(2), [3]), {"pin_memory": False}),
    ("reshape", ATEN.reshape.default, (f(2, 6), [3, 4]), {}),
    ("permute", ATEN.permute.default, (f(2, 3, 4), [2, 0, 1]), {}),
    ("transpose", ATEN.transpose.int, (f(2, 3), 0, 1), {}),
    ("cat", ATEN.cat.default, ([f(2), f(3)],), {}),
    ("split", ATEN.split.Tensor, (f(6), 2), {}),
    ("chunk", ATEN.chunk.default, (f(6), 2), {}),
    ("sum", ATEN.sum.dim_IntList, (f(2, 3), [1], True), {}),
    ("mean", ATEN.mean.dim, (f(2, 3), [1]), {}),
    ("norm", ATEN.norm.ScalarOpt_dim, (f(2, 3), 2, [1]), {}),
    ("where", ATEN.where.self, (b(3), f(3), f(3)), {}),
    ("to", ATEN.to.dtype, (f(3), torch.float64), {}),
    ("index", ATEN.index.Tensor, (f(3, 4), [torch.tensor([0, 2])]), {}),
    ("select", ATEN.select.int, (f(3, 4), 0, 1), {}),
    ("embedding", ATEN.embedding.default, (f(5, 2), i(3).clamp(max=4)), {}),
    ("clamp", ATEN.clamp.default, (f(3), 0.0), {}),
    ("zeros", ATEN.zeros.default, ([2, 3],), {"pin_memory": False}),
    ("arange", ATEN.arange.start, (1, 5), {"pin_memory": False}),
    ("full", ATEN.full.default, ([2], 3.0), {"pin_memory": False}),
    ("silu", ATEN.silu.default, (f(3),), {}),
    ("hardtanh", ATEN.hardtanh.default, (f(3), 0.0, 6.0), {}),
    ("adaptive_avg_pool2d", ATEN.adaptive_avg_pool2d.default, (f(1, 2, 4, 4), [1, 1]), {}),
    (
        "batch_norm",
        ATEN.batch_norm.default,
        (f(4, 3), None, None, f(3), f(3).abs(), False, 0.1, 1e-5, True),
        {},
    ),
    ("leaky_relu", ATEN.leaky_relu.default, (f(3), 0.2), {}),
    ("unfold", ATEN.unfold.default, (f(6), 0, 2, 2), {}),
    ("upsample_nearest2d", ATEN.upsample_nearest2d.vec, (f(1, 1, 2, 2), [4, 4], None), {}),
]


@pytest.mark.parametrize("call", ATEN_CALLS, ids=lambda call: str(call[1]))
def test_the_canonical_spelling_of_an_aten_operator_gives_its_numbers(call: Any) -> None:
    name, overload, args, kwargs = call
    target, new_args, new_kwargs = canonical_aten(name, overload, args, kwargs)
    assert_equal(target(*new_args, **new_kwargs), overload(*args, **kwargs))


def test_an_aten_operator_without_a_torch_function_stays() -> None:
    overload = ATEN._softmax_backward_data.default
    assert canonical_aten("_softmax_backward_data", overload, ("a",), {})[0] in (
        overload,
        torch._softmax_backward_data,
    )
    assert canonical_aten("to", ATEN.to.dtype, ("x", torch.int8), {})[0] is ATEN.to.dtype
