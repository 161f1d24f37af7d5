"""``prune``: from a model to a smaller one in one call."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from torch import nn

from sparsebit.batches import Loss, example_from, peek
from sparsebit.config import SConfig
from sparsebit.errors import GraphError, with_article
from sparsebit.graph.capture.unwrap import unwrap
from sparsebit.sparse.choose.pruner import Latency
from sparsebit.sparse.layer_sparser import detach
from sparsebit.sparse.report import require_choice
from sparsebit.sparse.shrink.pretrained import is_pretrained
from sparsebit.sparse.sparse_model import SparseModel


def prune(
    model: nn.Module,
    config: SConfig | Mapping[str, Any] | str | os.PathLike[str],
    data: Iterable[Any] | None = None,
    loss: Loss | None = None,
    *,
    example_inputs: Any = None,
    example_kwargs: Mapping[str, Any] | None = None,
    latency: Latency | None = None,
    form: Literal["auto", "graph", "module", "pretrained"] = "auto",
) -> nn.Module:
    """The smaller model. ``model`` is neither changed nor copied.

    Args:
        model: any ``nn.Module``.
        config: a pruning config: a dict, a YAML file, or the result of ``parse_sconfig``.
        data: batches, for criteria that need gradients or activations; its first batch also serves as example inputs.
        loss: for criteria that need gradients, called as ``loss(output, *rest)``.
        example_inputs: to record the model with; see ``SparseModel``.
        example_kwargs: likewise.
        latency: seconds that a model takes, for ``TARGET: latency``.
        form: as in ``SparseModel.shrink``. "auto" returns a ``transformers`` model in its own class with a smaller
        config if possible, and everything else as a graph.

    Example:
        >>> import torch
        >>> net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
        >>> config = {"SPARSER": {"TYPE": "structured", "STRATEGY": "l1norm", "RATIO": 0.5}}
        >>> [tuple(p.shape) for p in prune(net, config, example_inputs=torch.zeros(1, 4)).parameters()]
        [(8, 4), (8,), (2, 8), (2,)]
    """
    model = unwrap(model)
    if data is not None and example_inputs is None and example_kwargs is None:
        first, data = peek(data)
        example_inputs = example_from(model, first)
    try:
        smodel = SparseModel(model, config, example_inputs, example_kwargs, copy_model=False)
        kept = smodel.choose(data, loss, latency=latency)
        require_choice(smodel.pruner, kept, decided=True)
        if form == "auto" and is_pretrained(model):
            try:
                return smodel.shrink_to(kept, "pretrained")
            except GraphError as error:
                own = with_article(type(model).__name__)
                warnings.warn(
                    f"the smaller model is a graph, not {own}: {error.message} ({error.got})", stacklevel=2
                )
        return smodel.shrink_to(kept, "graph" if form == "auto" else form)
    finally:
        detach(model)
