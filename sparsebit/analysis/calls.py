"""Batches of data as calls of a quantized model, and its quantizers switched for a while."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from sparsebit.batches import as_call, to_device
from sparsebit.errors import SparsebitError
from sparsebit.progress import length, progress
from sparsebit.quantization import Quantizer, QuantModel

Call = tuple[tuple[Any, ...], dict[str, Any]]


def calls_of(
    qmodel: QuantModel, data: Any, batches: int | None = None, what: str = "", shown: bool | None = None
) -> Iterator[Call]:
    """Arguments of one call after another. A lone tensor is one batch; else ``data`` gives batches."""
    loader: Iterable[Any] = [data] if isinstance(data, Tensor) else data
    total = length(loader)
    if batches is not None:
        total = batches if total is None else min(batches, total)
    empty = True
    for batch in progress(
        itertools.islice(loader, batches), what, total=total, shown=shown if what else False
    ):
        empty = False
        args, kwargs = as_call(batch, *qmodel._examples)
        home = qmodel._home()
        yield to_device(args, home), to_device(kwargs, home)
    if empty:
        raise SparsebitError("the data gave no batch", hint="pass a list of batches, or a loader")


@contextlib.contextmanager
def only(qmodel: QuantModel, names: Iterable[str]) -> Iterator[None]:
    """Inside the block the quantizers of these names snap and all others pass; evaluation mode, no gradients."""
    wanted, before = set(names), {name: q.use_quant for name, q in qmodel.quantizers.items()}
    training = qmodel.training
    qmodel.eval()
    try:
        for name, quantizer in qmodel.quantizers.items():
            quantizer.use_quant = name in wanted and quantizer.calibrated
        with torch.no_grad():
            yield
    finally:
        for name, quantizer in qmodel.quantizers.items():
            quantizer.use_quant = before[name]
        qmodel.train(training)


def active(qmodel: QuantModel) -> dict[str, Quantizer]:
    """The quantizers that a runtime would execute, by name."""
    return {name: quantizer for name, quantizer in qmodel.quantizers.items() if not quantizer.fake_fused}
