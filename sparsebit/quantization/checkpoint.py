"""Save and load a quantized model: config, plan, weights and scales; the model's code stays the user's."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.fx import GraphModule

from sparsebit.errors import GraphError
from sparsebit.folder import ArtifactError, read_folder, unshared, write_folder
from sparsebit.graph.digest import graph_digest
from sparsebit.quantization.algorithms.edits import restore_edits
from sparsebit.quantization.bn_tuning import fold_tuned
from sparsebit.quantization.leaves import evaluating
from sparsebit.quantization.plan import QuantPlan
from sparsebit.quantization.quantizers import Quantizer

if TYPE_CHECKING:
    from sparsebit.quantization.quant_model import QuantModel

KIND, VERSION = "quantized model", 1


def save_checkpoint(qmodel: QuantModel, folder: str | os.PathLike[str]) -> None:
    """Write everything ``load_checkpoint`` needs."""
    quantizers = qmodel.quantizers
    plan = qmodel.plan.with_specs({name: quantizer.spec for name, quantizer in quantizers.items()})
    state, aliases = unshared(qmodel.model.state_dict())
    # Numbers that the model keeps outside of its state dict, and might make differently the next time.
    constants = {
        name: buffer.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, buffer in qmodel.model.named_buffers(remove_duplicate=False)
        if name not in state and name not in aliases
    }
    example, structure = _flat_example(qmodel._examples)
    content = {
        "config": qmodel.cfg.to_dict(),
        "plan": plan.to_dict(),
        "graph": _digest(qmodel.model),
        "aliases": aliases,
        "example": structure,
        "use_quant": sorted(name for name, quantizer in quantizers.items() if quantizer.use_quant),
        "fake_fused": sorted(name for name, quantizer in quantizers.items() if quantizer.fake_fused),
        "qat": qmodel.enable_qat,
        "tuned": qmodel.tuned,
    }
    write_folder(folder, KIND, VERSION, content, {"state": state, "constants": constants, "example": example})


def load_checkpoint(
    cls: type[QuantModel],
    folder: str | os.PathLike[str],
    model: nn.Module,
    example_inputs: Any = None,
    example_kwargs: Mapping[str, Any] | None = None,
) -> QuantModel:
    """A quantized model with the numbers of the folder."""
    content, tensors = read_folder(folder, KIND, VERSION)
    if example_inputs is None and example_kwargs is None:
        example_inputs, example_kwargs = _example(content["example"], tensors["example"], folder)
    plan = QuantPlan.from_dict(content["plan"])
    try:
        qmodel = cls(model, content["config"], example_inputs, example_kwargs, plan=plan)
        if content["tuned"]:
            with evaluating(qmodel.model):
                fold_tuned(qmodel)
        restore_edits(qmodel.model, tensors["state"])
    except GraphError:  # the plan does not even name the right nodes
        raise _other_model(model, folder) from None
    if _digest(qmodel.model) != content["graph"]:
        raise _other_model(model, folder)
    state = {
        **tensors["state"],
        **{name: tensors["state"][kept] for name, kept in content["aliases"].items()},
    }
    _load_state(qmodel, state, folder)
    for name, constant in tensors["constants"].items():
        owner, _, last = name.rpartition(".")
        buffers = qmodel.model.get_submodule(owner)._buffers
        old = buffers[last]
        buffers[last] = constant if old is None else constant.to(old.device)
    for name, quantizer in qmodel.quantizers.items():
        quantizer.use_quant = name in content["use_quant"]
        quantizer.fake_fused = name in content["fake_fused"]
    qmodel.enable_qat, qmodel.tuned = content["qat"], content["tuned"]
    return qmodel


def _other_model(model: nn.Module, folder: str | os.PathLike[str]) -> ArtifactError:
    return ArtifactError(
        f"{os.fspath(folder)!r} was saved from another model",
        expected="a model whose graph is the same, operator by operator",
        got=f"a {type(model).__name__} that is not",
        hint="build it with the arguments it had when it was saved",
    )


def _digest(gm: GraphModule) -> str:
    """Of the graph, whatever quantizers have learned."""
    learned = {id(p) for m in gm.modules() if isinstance(m, Quantizer) for p in m.parameters()}
    return graph_digest(gm, without=learned)


def _load_state(qmodel: QuantModel, state: dict[str, Tensor], folder: str | os.PathLike[str]) -> None:
    # Assigned, not written: the old tensors are the user's. One parameter under two names stays one.
    before = qmodel.model.state_dict(keep_vars=True)
    made: dict[int, Tensor] = {}
    for name, tensor in state.items():
        old = before.get(name)
        if isinstance(old, Tensor) and id(old) not in made:
            new = tensor.to(old.device)
            made[id(old)] = nn.Parameter(new, old.requires_grad) if isinstance(old, nn.Parameter) else new
    try:
        qmodel.model.load_state_dict(
            {name: made.get(id(before.get(name)), tensor) for name, tensor in state.items()}, assign=True
        )
    except RuntimeError as error:
        raise ArtifactError(f"{os.fspath(folder)!r} does not fit this model: {error}") from None


def _flat_example(examples: tuple[tuple[Any, ...], dict[str, Any]]) -> tuple[dict[str, Tensor], Any]:
    """Tensors by position, and the structure around them as JSON; None where that cannot be written."""
    leaves, spec = pytree.tree_flatten(examples)
    tensors = {
        str(index): leaf.detach().cpu().clone(memory_format=torch.contiguous_format)
        for index, leaf in enumerate(leaves)
        if isinstance(leaf, Tensor)
    }
    plain = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    if any(not isinstance(leaf, (bool, int, float, str, type(None))) for leaf in plain):
        return {}, None
    try:
        return tensors, {"leaves": plain, "structure": pytree.treespec_dumps(spec)}
    except (NotImplementedError, TypeError, ValueError):
        return {}, None


def _example(written: Any, tensors: Mapping[str, Tensor], folder: object) -> tuple[Any, Any]:
    if written is None:
        raise ArtifactError(
            "the example inputs of this model could not be saved with it",
            where=str(folder),
            hint="pass example_inputs= and example_kwargs= to load()",
        )
    leaves = [tensors.get(str(index), leaf) for index, leaf in enumerate(written["leaves"])]
    args, kwargs = pytree.tree_unflatten(leaves, pytree.treespec_loads(written["structure"]))
    return (args or None), kwargs
