"""Save and load a quantized model: config, plan, weights and scales; the model's code stays the user's."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.fx import GraphModule

from sparsebit.config import load_qconfig
from sparsebit.folder import ArtifactError, read_folder, write_folder
from sparsebit.graph.ops import op_name
from sparsebit.quantization.plan import QuantPlan

if TYPE_CHECKING:
    from sparsebit.quantization.quant_model import QuantModel

KIND, VERSION = "quantized model", 1


def save_checkpoint(qmodel: QuantModel, folder: str | os.PathLike[str]) -> None:
    """Write everything ``load_checkpoint`` needs."""
    quantizers = qmodel.quantizers
    plan = qmodel.plan.with_specs({name: quantizer.spec for name, quantizer in quantizers.items()})
    state, aliases = _unshared(qmodel.model.state_dict())
    example, structure = _flat_example(qmodel._examples)
    content = {
        "config": qmodel.cfg.to_dict(),
        "plan": plan.to_dict(),
        "graph": graph_digest(qmodel.model),
        "aliases": aliases,
        "example": structure,
        "use_quant": sorted(name for name, quantizer in quantizers.items() if quantizer.use_quant),
        "fake_fused": sorted(name for name, quantizer in quantizers.items() if quantizer.fake_fused),
        "qat": qmodel.enable_qat,
        "tuned": _is_tuned(qmodel),
    }
    write_folder(folder, KIND, VERSION, content, {"state": state, "example": example})


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
    config = content["config"]
    if content["tuned"]:  # batch norm was folded in the end
        config = load_qconfig(config, ["SCHEDULE.BN_TUNING=false", "SCHEDULE.FUSE_BN=true"])
    qmodel = cls(model, config, example_inputs, example_kwargs, plan=QuantPlan.from_dict(content["plan"]))
    if graph_digest(qmodel.model) != content["graph"]:
        raise ArtifactError(
            f"{os.fspath(folder)!r} was saved from another model",
            expected="a model whose graph is the same, operator by operator",
            got=f"a {type(model).__name__} that is not",
            hint="build it with the arguments it had when it was saved",
        )
    state = {
        **tensors["state"],
        **{name: tensors["state"][kept] for name, kept in content["aliases"].items()},
    }
    _load_state(qmodel, state, folder)
    for name, quantizer in qmodel.quantizers.items():
        quantizer.use_quant = name in content["use_quant"]
        quantizer.fake_fused = name in content["fake_fused"]
    qmodel.enable_qat = content["qat"]
    return qmodel


def graph_digest(gm: GraphModule) -> str:
    """A digest of what the graph computes: operators, arguments and shapes of parameters, but no numbers."""
    lines = []
    for node in gm.graph.nodes:
        target = node.target if isinstance(node.target, str) else op_name(gm, node) or str(node.target)
        lines.append(f"{node.op} {node.name} {target} {node.args} {node.kwargs}")
    own = (f"{name} {tuple(p.shape)}" for name, p in gm.named_parameters())
    return hashlib.sha256("\n".join([*lines, *own]).encode()).hexdigest()


def _load_state(qmodel: QuantModel, state: dict[str, Tensor], folder: str | os.PathLike[str]) -> None:
    # The model's own parameters are shared with the user's module, which must keep its numbers.
    for module in qmodel.model.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None:
                module._parameters[name] = nn.Parameter(parameter.detach(), parameter.requires_grad)
    try:
        qmodel.model.load_state_dict(state, assign=True)
    except RuntimeError as error:
        raise ArtifactError(f"{os.fspath(folder)!r} does not fit this model: {error}") from None


def _unshared(state: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Contiguous tensors that share no memory, and which names mean the same tensor."""
    kept: dict[str, Tensor] = {}
    first: dict[tuple[Any, ...], str] = {}
    aliases: dict[str, str] = {}
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise ArtifactError(
                f"{name!r} is in the model's state dict and no tensor, so it cannot be saved here",
                got=type(value).__name__,
            )
        key = (value.untyped_storage().data_ptr(), value.storage_offset(), value.shape, value.stride())
        if value.numel() and key in first:
            aliases[name] = first[key]
        else:
            first[key] = name
            kept[name] = value.detach().cpu().clone(memory_format=torch.contiguous_format)
    return kept, aliases


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


def _is_tuned(qmodel: QuantModel) -> bool:
    norms = any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in qmodel.model.modules())
    return bool(qmodel.cfg.SCHEDULE.BN_TUNING) and not norms
