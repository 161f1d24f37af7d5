"""Batches of data as calls of a quantized model, and quantizers switched temporarily."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from sparsebit.batches import Call
from sparsebit.errors import SparsebitError, with_article
from sparsebit.graph.run import evaluating
from sparsebit.quantization import Quantizer, QuantModel
from sparsebit.quantization.switches import switched


def calls_of(
    qmodel: QuantModel, data: Any, batches: int | None = None, what: str = "", shown: bool | None = None
) -> Iterator[Call]:
    """Arguments of one call after another, on the model's device."""
    return qmodel.inputs.calls(data, batches, device=qmodel.device, what=what, shown=shown if what else False)


@contextlib.contextmanager
def only(qmodel: QuantModel, names: Iterable[str]) -> Iterator[None]:
    """Inside the block only the quantizers of these names quantize; evaluation mode, no gradients."""
    wanted = set(names)
    with (
        evaluating(qmodel),
        torch.no_grad(),
        switched(qmodel.quantizers.values(), lambda q: q.name in wanted),
    ):
        yield


def active(qmodel: QuantModel) -> dict[str, Quantizer]:
    """The quantizers that a runtime would execute, by name."""
    if not isinstance(qmodel, QuantModel):
        raise SparsebitError(
            "only a QuantModel can be profiled",
            got=with_article(type(qmodel).__name__),
            hint="pass what sparsebit.quantize(model, batches) returns",
        )
    return {name: quantizer for name, quantizer in qmodel.quantizers.items() if not quantizer.fake_fused}
