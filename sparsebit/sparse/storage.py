"""Save and load: a folder of JSON and safetensors. Nothing in it can run code.

Of a pruning in progress (``SparseModel``), weights, masks, step and config are saved. Of a shrunk model, the weights
and the kept channels of its graph: loading shrinks a model of the original class in the same way and loads the weights.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from sparsebit.batches import fitting_example
from sparsebit.errors import GraphError, with_article
from sparsebit.graph.capture.unwrap import unwrap
from sparsebit.graph.digest import graph_digest
from sparsebit.sparse.origin import Origin, described_example
from sparsebit.sparse.shrink.forms import origin_of
from sparsebit.sparse.sparse_model import SparseModel
from sparsebit.storage import ArtifactError, read_folder, unshared, with_aliases, write_folder

KIND, VERSION = "pruned model", 2


def save(model: nn.Module, folder: str | os.PathLike[str]) -> None:
    """Write a ``SparseModel``, or what its ``shrink()`` returned, to a folder.

    A shrunk model may be trained further before it is saved.
    """
    if isinstance(model, SparseModel):
        examples = model.examples if model.sizes_known else None
        origin: Origin | None = origin_of(model.pruner, model.kept(), "graph", examples)
    else:
        origin = model.__dict__.get("shrunk_from")
    if not isinstance(origin, Origin):
        raise ArtifactError(
            "only a SparseModel, or what its shrink() returned, can be saved here",
            got=type(model).__name__,
            hint="save the state dict of an ordinary model with safetensors",
        )
    state, aliases = unshared(model.state_dict())
    content = {
        "form": "session" if isinstance(model, SparseModel) else origin.form,
        "config": origin.config,
        "graph": origin.graph,
        "inputs": origin.inputs,
        "aliases": aliases,
    }
    write_folder(folder, KIND, VERSION, content, {"state": state, "kept": origin.kept})


def load(
    folder: str | os.PathLike[str],
    model: nn.Module,
    example_inputs: Any = None,
    example_kwargs: Mapping[str, Any] | None = None,
) -> nn.Module:
    """Load a saved model into a copy of a model of the original class, with any weights.

    Args:
        folder: written by ``save``.
        model: the original model, unpruned.
        example_inputs: to record the model with; without any, zeros of the sizes that were used when it was saved.
        example_kwargs: likewise.
    """
    model = unwrap(model)
    content, tensors = read_folder(folder, KIND, VERSION)
    form, kept = content.text("form"), tensors.get("kept", {})
    state = with_aliases(tensors.get("state", {}), content.names("aliases"))
    if form not in ("session", "graph", "module"):
        raise content.wrong("form", "session, graph or module")
    if any(flags.dtype != torch.bool for flags in kept.values()):
        raise ArtifactError(f"{os.fspath(folder)!r} is damaged: the kept channels are not flags")
    if example_inputs is None and example_kwargs is None:
        saved = described_example(content.value("inputs"))
        example_inputs = None if saved is None else fitting_example(model, saved)
    smodel = SparseModel(model, content.section("config").data, example_inputs, example_kwargs, match=False)
    if graph_digest(smodel.model) != content.text("graph"):
        raise _other_model(model, folder)
    try:
        found = (
            smodel if form == "session" else smodel.shrink_to(kept, "graph" if form == "graph" else "module")
        )
        found.load_state_dict(state, strict=True)
    except (GraphError, RuntimeError):
        raise _other_model(model, folder) from None
    return found


def load_session(
    folder: str | os.PathLike[str], model: nn.Module, *examples: Any, **named: Any
) -> SparseModel:
    """As ``load``, for a pruning in progress; a shrunk model is refused."""
    found = load(folder, model, *examples, **named)
    if not isinstance(found, SparseModel):
        message = "this folder holds a shrunk model"
        raise ArtifactError(message, where=os.fspath(folder), hint="use sparsebit.sparse.load")
    return found


def _other_model(model: nn.Module, folder: str | os.PathLike[str]) -> ArtifactError:
    return ArtifactError(
        f"{os.fspath(folder)!r} was saved from another model, or from one recorded with other inputs",
        expected="a model whose graph is the same, operator by operator",
        got=f"{with_article(type(model).__name__)} that is not",
        hint="build it with the arguments it had, and give the same kind of example inputs; pass the unpruned model, "
        "or, if it was pruned before, the result of loading that (--pruned twice on the command line)",
    )
