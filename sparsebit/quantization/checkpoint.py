"""Save and load a quantized model: config, plan, weights and scales; the model's code stays the user's.

Of training, what ``init_QAT`` was told is kept too, with the float model that is distilled from, and of calibration
what another round of it has to know.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from sparsebit.batches import to_device
from sparsebit.errors import GraphError
from sparsebit.graph.digest import graph_digest
from sparsebit.quantization.algorithms.edits import restore_edits
from sparsebit.quantization.batch_norm.tune import fold_quantized
from sparsebit.quantization.plan import QuantPlan
from sparsebit.quantization.quantizers import Quantizer
from sparsebit.quantization.training.qat import Distillation
from sparsebit.storage import ArtifactError, read_folder, unshared, write_folder
from sparsebit.storage.nested import UnsupportedValue, decode_call, encode_nested

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
    example, structure = _encode_example(tuple(qmodel.inputs.example))
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
        "training": _training_of(qmodel),
    }
    groups = {
        "state": state,
        "constants": constants,
        "example": example,
        "calibration": _calibration_of(qmodel),
    }
    if qmodel._distillation is not None:
        groups["teacher"], content["teacher_aliases"] = unshared(qmodel._distillation.teacher.state_dict())
    write_folder(folder, KIND, VERSION, content, groups)


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
        example = _decode_example(content["example"], tensors["example"], folder)
        home = next((t.device for t in (*model.parameters(), *model.buffers())), torch.device("cpu"))
        example_inputs, example_kwargs = to_device(example, home)
    plan = QuantPlan.from_dict(content["plan"])
    training = content.get("training", {})  # folders from before it was kept have none
    try:
        config = {
            **content["config"],
            "DEVICE": "auto",
        }  # that of the machine it was saved on may be missing here
        qmodel = cls(model, config, example_inputs, example_kwargs, plan=plan)
        teacher = None
        if "distill" in training and not training["folded"]:
            teacher = copy.deepcopy(qmodel.model)
        if content["tuned"]:
            fold_quantized(qmodel.model, exact=False)
        if "distill" in training and teacher is None:
            teacher = copy.deepcopy(qmodel.model)
        restore_edits(qmodel.model, tensors["state"])
        if teacher is not None:
            restore_edits(teacher, tensors["teacher"])
    except GraphError:  # the plan does not even name the right nodes
        raise _other_model(model, folder) from None
    if _digest(qmodel.model) != content["graph"]:
        raise _other_model(model, folder)
    _load_state(qmodel.model, _with_aliases(tensors["state"], content["aliases"]), folder)
    if teacher is not None:
        _load_state(teacher, _with_aliases(tensors["teacher"], content["teacher_aliases"]), folder)
    for name, constant in tensors["constants"].items():
        owner, _, last = name.rpartition(".")
        buffers = qmodel.model.get_submodule(owner)._buffers
        old = buffers[last]
        buffers[last] = constant if old is None else constant.to(old.device)
    for name, quantizer in qmodel.quantizers.items():
        quantizer.use_quant = name in content["use_quant"]
        quantizer.fake_fused = name in content["fake_fused"]
    qmodel.enable_qat, qmodel.tuned = content["qat"], content["tuned"]
    _set_training(qmodel, training, teacher)
    _set_calibration(qmodel, tensors.get("calibration", {}))
    return qmodel


def _training_of(qmodel: QuantModel) -> dict[str, Any]:
    """What ``init_QAT`` was told, and which parameters are held."""
    found: dict[str, Any] = {
        "freeze": qmodel._frozen_norms,
        "following": sorted(name for name, quantizer in qmodel.quantizers.items() if quantizer.following),
        "held": sorted(n for n, p in qmodel.model.named_parameters() if not p.requires_grad),
    }
    if qmodel._distillation is not None:
        taught = qmodel._distillation
        found |= {"distill": taught.weight, "temperature": taught.temperature, "folded": taught.folded}
    return found


def _set_training(qmodel: QuantModel, training: Mapping[str, Any], teacher: GraphModule | None) -> None:
    if not training:
        return
    qmodel._frozen_norms = training["freeze"]
    for name, quantizer in qmodel.quantizers.items():
        quantizer.following = name in training["following"]
    for name, parameter in qmodel.model.named_parameters():
        parameter.requires_grad_(name not in training["held"])
    if teacher is not None:
        for module in teacher.modules():
            if isinstance(module, Quantizer):
                module.use_quant = module.observing = False
        weight, temperature = training["distill"], training["temperature"]
        qmodel._distillation = Distillation(teacher, weight, temperature, folded=training["folded"])
    qmodel.train(qmodel.training)


def _calibration_of(qmodel: QuantModel) -> dict[str, Tensor]:
    """What another calibration takes back or looks up: shifts of biases, statistics of folded batch norms."""
    found = {f"shift/{name}": shift for name, shift in qmodel._shifts.items()}
    for name, (mean, std) in qmodel._batch_norms.items():
        found |= {f"mean/{name}": mean, f"std/{name}": std}
    return {name: tensor.detach().cpu().clone() for name, tensor in found.items()}


def _set_calibration(qmodel: QuantModel, found: Mapping[str, Tensor]) -> None:
    home = qmodel.device
    for key, tensor in found.items():
        kind, _, name = key.partition("/")
        if kind == "shift":
            qmodel._shifts[name] = tensor.to(home)
        elif kind == "mean":
            qmodel._batch_norms[name] = (tensor.to(home), found[f"std/{name}"].to(home))


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


def _with_aliases(state: Mapping[str, Tensor], aliases: Mapping[str, str]) -> dict[str, Tensor]:
    return {**state, **{name: state[kept] for name, kept in aliases.items()}}


def _load_state(gm: GraphModule, state: dict[str, Tensor], folder: str | os.PathLike[str]) -> None:
    # Assigned, not written: the old tensors are the user's. One parameter under two names stays one.
    before = gm.state_dict(keep_vars=True)
    made: dict[int, Tensor] = {}
    for name, tensor in state.items():
        old = before.get(name)
        if isinstance(old, Tensor) and id(old) not in made:
            new = tensor.to(old.device)
            made[id(old)] = nn.Parameter(new, old.requires_grad) if isinstance(old, nn.Parameter) else new
    try:
        gm.load_state_dict(
            {name: made.get(id(before.get(name)), tensor) for name, tensor in state.items()}, assign=True
        )
    except RuntimeError as error:
        raise ArtifactError(f"{os.fspath(folder)!r} does not fit this model: {error}") from None


def _encode_example(examples: tuple[tuple[Any, ...], dict[str, Any]]) -> tuple[dict[str, Tensor], Any]:
    """Tensors by position, and the structure around them as JSON; its "unsupported" names what cannot be written."""
    tensors: dict[str, Tensor] = {}

    def keep(tensor: Tensor) -> str:
        name = str(len(tensors))
        tensors[name] = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        return name

    try:
        return tensors, {"call": encode_nested(examples, keep)}
    except UnsupportedValue as error:
        return {}, {"unsupported": str(error)}


def _decode_example(written: Any, tensors: Mapping[str, Tensor], folder: object) -> tuple[Any, Any]:
    if not isinstance(written, Mapping) or "call" not in written:
        kind = written.get("unsupported") if isinstance(written, Mapping) else None
        raise ArtifactError(
            "the example inputs of this model could not be saved with it",
            where=str(folder),
            got=f"a {kind} among them" if isinstance(kind, str) else None,
            hint="pass example_inputs= and example_kwargs= to load()",
        )

    def find(name: Any) -> Tensor:
        if not isinstance(name, str) or name not in tensors:
            raise ArtifactError("the saved example inputs are damaged", where=str(folder))
        return tensors[name]

    args, kwargs = decode_call(written["call"], find)
    return (args or None), kwargs
