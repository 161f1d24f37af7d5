"""Save and load a quantized model: config, plan, weights and scales; the model's code is not saved.

The options of ``init_QAT`` are saved too, with the float model for distillation, and the record that another
calibration needs.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Collection, Mapping, Set
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from sparsebit.batches import Call, fitting_example
from sparsebit.errors import CaptureError, GraphError, SparsebitError, damaged, with_article
from sparsebit.graph.digest import graph_digest
from sparsebit.processes import failing_together, rank, require_same
from sparsebit.quantization.algorithms.edits import restore_edits
from sparsebit.quantization.batch_norm.fold import fold_quantized
from sparsebit.quantization.build import require_float_model
from sparsebit.quantization.modules.freeze import (
    freezable_weights,
    freeze_weights,
    frozen_names,
    packed_state,
    thaw_weights,
)
from sparsebit.quantization.plan import QuantPlan
from sparsebit.quantization.quantizers import Frozen, Quantizer
from sparsebit.quantization.training.sharded import drop_gathered, full_state, is_sharded
from sparsebit.quantization.training.training import TrainingState
from sparsebit.storage import ArtifactError, read_folder, unshared, with_aliases, write_folder
from sparsebit.storage.nested import decode_call, encode_call

if TYPE_CHECKING:
    from sparsebit.quantization.quant_model import QuantModel

KIND, VERSION = "quantized model", 2
_AS_SAVED = (
    "build the model with the arguments it had when it was saved; if it was pruned then, load the pruned model first"
    " (--pruned FOLDER on the command line)"
)


def save_checkpoint(qmodel: QuantModel, folder: str | os.PathLike[str], *, floats: bool = False) -> None:
    """Write everything that ``load_checkpoint`` needs; quantized weights are packed unless ``floats`` is set.

    A model in training keeps its floats, and so does one that FSDP has divided over processes: such a model is saved by
    all processes together, and written by the first.
    """
    if is_sharded(qmodel):
        with failing_together():
            require_same([os.fspath(folder)], "the folder that save() writes")
            drop_gathered(qmodel)
            _save(qmodel, folder, floats=True)
    else:
        _save(qmodel, folder, floats=floats)


@torch.no_grad()
@torch.inference_mode(False)  # tensors that are packed in it cannot be read
def _save(qmodel: QuantModel, folder: str | os.PathLike[str], *, floats: bool) -> None:
    quantizers = qmodel.quantizers
    for name, quantizer in quantizers.items():
        if not isinstance(quantizer, Frozen) and (expected := quantizer.find_problem()) is not None:
            raise SparsebitError(
                f"the grid of {name!r} cannot be saved: a folder with it would not load",
                expected=expected,
                hint="calibrate again, or look at the learning rate; nothing was written",
            )
    plan = qmodel.plan.with_specs({name: quantizer.spec for name, quantizer in quantizers.items()})
    frozen, packed = frozen_names(qmodel.model), list[str]()
    if floats or qmodel.enable_qat:
        written = full_state(qmodel.model)
    else:
        written, packed = packed_state(qmodel.model)
    state, aliases = unshared(written)
    example, structure = _encode_example(qmodel.inputs.example)
    content = {
        "model": qmodel.made_from,
        "config": qmodel.cfg.to_dict(),
        "plan": plan.to_dict(),
        "graph": _digest(qmodel.model),
        "aliases": aliases,
        "packed": sorted({*frozen, *packed}),
        "frozen": frozen,
        "example": structure,
        "use_quant": sorted(name for name, quantizer in quantizers.items() if quantizer.use_quant),
        "fake_fused": sorted(name for name, quantizer in quantizers.items() if quantizer.fake_fused),
        "qat": qmodel.enable_qat,
        "tuned": qmodel.tuned,
        "training": asdict(qmodel.qat.state(qmodel)),
    }
    groups = {
        "state": state,
        "constants": _constants(qmodel.model, {*state, *aliases}, packed),
        "example": example,
        "calibration": qmodel.record.state(),
    }
    if qmodel.qat.distillation is not None:
        groups["teacher"], content["teacher_aliases"] = unshared(qmodel.qat.distillation.teacher.state_dict())
    if rank() == 0 or not is_sharded(qmodel):
        write_folder(folder, KIND, VERSION, content, groups)


def _constants(gm: GraphModule, written: Set[str], packed: Collection[str]) -> dict[str, Tensor]:
    """Numbers that the model keeps outside its state dict, and might make differently the next time."""
    given_up = {
        path
        for path, module in gm.named_modules(remove_duplicate=False)
        if isinstance(module, Quantizer) and module.name in packed
    }
    return {
        name: buffer
        for name, buffer in gm.named_buffers(remove_duplicate=False)
        if name not in written and name.rpartition(".")[0] not in given_up
    }


def load_checkpoint(
    cls: type[QuantModel],
    folder: str | os.PathLike[str],
    model: nn.Module,
    example_inputs: Any = None,
    example_kwargs: Mapping[str, Any] | None = None,
) -> QuantModel:
    """A quantized model with the weights and scales of the folder."""
    model = require_float_model(model)
    content, tensors = read_folder(folder, KIND, VERSION)
    state = with_aliases(tensors.get("state", {}), content.names("aliases"))
    if example_inputs is None and example_kwargs is None:
        example = _decode_example(content.value("example"), tensors.get("example", {}), folder)
        example_inputs = fitting_example(model, example)
    plan = QuantPlan.from_dict(content.section("plan").data)
    training = content.section("training").into(TrainingState)
    teacher = None
    try:
        # The device of the machine it was saved on may be missing here.
        config = content.section("config").data | {"DEVICE": "auto"}
        qmodel = cls(model, config, example_inputs, example_kwargs, plan=plan)
        if training.distill is not None and not training.folded:
            teacher = copy.deepcopy(qmodel.model)
        qmodel.tuned = content.flag("tuned")
        if qmodel.tuned:
            fold_quantized(qmodel.model, exact=False)
        if training.distill is not None and training.folded:
            teacher = copy.deepcopy(qmodel.model)
        restore_edits(qmodel.model, state)
        if teacher is not None:
            restore_edits(teacher, tensors.get("teacher", {}))
    except (CaptureError, GraphError) as error:  # it takes other inputs, or the plan names other nodes
        raise _other_model(model, content.text("model"), folder) from error
    if _digest(qmodel.model) != content.text("graph"):
        raise _other_model(model, content.text("model"), folder)
    packed, frozen = set(content.texts("packed")), set(content.texts("frozen"))
    if packed:
        freeze_weights(qmodel.model, only=packed)
    _load_state(qmodel.model, state, folder)
    if teacher is not None:
        taught = with_aliases(tensors.get("teacher", {}), content.names("teacher_aliases"))
        _load_state(teacher, taught, folder)
    # The model now holds them, and releases each one when it is unpacked.
    state.clear()
    tensors.pop("state", None)
    _load_constants(qmodel.model, tensors.get("constants", {}), folder)
    _load_switches(qmodel, set(content.texts("use_quant")), set(content.texts("fake_fused")), folder)
    qmodel.weights_rounded = bool(packed)
    thaw_weights(qmodel.model, only=packed - frozen)
    qmodel.qat.load_state(qmodel, training, teacher, started=content.flag("qat"))
    calibration = tensors.get("calibration", {})
    if wrong := next((key for key, tensor in calibration.items() if not tensor.is_floating_point()), None):
        raise damaged(f"{folder}: {wrong!r}", "it does not hold floating-point numbers")
    qmodel.record.load_state(calibration, qmodel.device)
    return qmodel


def take_floats(qmodel: QuantModel, model: nn.Module) -> None:
    """Put the float weights of a model in place of the rounded ones that were loaded, where they round to these.

    Results do not change, and errors can be measured against float. Weights that were changed before rounding, by
    recovery steps or training, stay; then the model still counts as rounded.
    """
    twin = type(qmodel)(model, qmodel.cfg, *qmodel.inputs.example, plan=qmodel.plan)
    exact, left = twin.weights(), 0
    for name, weight in qmodel.weights().items():
        if torch.equal(qmodel.quantizers[name].snap(exact[name]), weight):
            weight.data = exact[name].data
        else:
            left += 1
    qmodel.weights_rounded = qmodel.weights_rounded and left > 0


def _load_switches(
    qmodel: QuantModel, used: Set[str], fused: Set[str], folder: str | os.PathLike[str]
) -> None:
    """Whether each quantizer is applied, once its grid is known to be right."""
    for name, quantizer in qmodel.quantizers.items():
        require_grid(quantizer, folder)
        if isinstance(quantizer, Frozen):
            continue
        quantizer.fake_fused = name in fused
        quantizer.use_quant = name in used
        if quantizer.is_enable and not quantizer.calibrated:
            raise damaged(folder, f"{name!r} has no scale")


def require_grid(quantizer: Quantizer, folder: str | os.PathLike[str]) -> None:
    """Refuse scales and zero points that no calibration produces: NaN, infinite, zero, negative, or of another type."""
    if isinstance(quantizer, Frozen):
        spread = quantizer.zero_point.shape in ((1,), quantizer.scale.shape)
        problem = quantizer.held.find_problem() if spread else "zero_point"
        if problem == "bits":
            raise ArtifactError(
                f"{os.fspath(folder)!r} does not fit this model: the weight {quantizer.name!r} has another size",
                expected=f"a model in which it is not {list(quantizer.shape)}",
                hint=_AS_SAVED,
            )
        if problem is not None:
            raise damaged(f"{folder}: the weight {quantizer.name!r}", f"{problem} does not fit")
        return
    if (expected := quantizer.find_problem()) is not None:
        raise damaged(f"{folder}: the grid of {quantizer.name!r}", "its values do not fit", expected=expected)


def _other_model(model: nn.Module, saved: str, folder: str | os.PathLike[str]) -> ArtifactError:
    got = with_article(type(model).__name__)
    return ArtifactError(
        f"{os.fspath(folder)!r} was saved from another model",
        expected=f"{with_article(saved)} whose graph is the same, operator by operator",
        got=f"{got} with another graph" if type(model).__name__ == saved else got,
        hint=_AS_SAVED,
    )


def _digest(gm: GraphModule) -> str:
    """A digest of the graph, independent of what quantizers have learned."""
    learned = {id(p) for m in gm.modules() if isinstance(m, Quantizer) for p in m.parameters()}
    # A quantized weight may be there or frozen; that its shape is right shows when it is loaded.
    return graph_digest(gm, without=learned | {id(weight) for weight in freezable_weights(gm)})


def _load_state(gm: GraphModule, state: dict[str, Tensor], folder: str | os.PathLike[str]) -> None:
    # Assigned, not written: the old tensors belong to the user. A parameter with two names stays shared.
    before = gm.state_dict(keep_vars=True)
    made: dict[int, Tensor] = {}
    grids = {
        f"{path}.{name}"  # checked by require_grid
        for path, module in gm.named_modules()
        if isinstance(module, Quantizer)
        for name in (("scale",) if isinstance(module, Frozen) else ("scale", "zero_point", "followed"))
    }
    for name, tensor in state.items():
        old = before.get(name)
        if isinstance(old, Tensor) and old.dtype != tensor.dtype and name not in grids:
            raise ArtifactError(
                f"{os.fspath(folder)!r} does not fit this model: {name!r} has another type",
                expected=str(old.dtype),
                got=str(tensor.dtype),
                hint="convert the model to the type it had when it was saved",
            )
        if isinstance(old, Tensor) and id(old) not in made:
            new = tensor.to(old.device)
            made[id(old)] = nn.Parameter(new, old.requires_grad) if isinstance(old, nn.Parameter) else new
    try:
        gm.load_state_dict(
            {name: made.get(id(before.get(name)), tensor) for name, tensor in state.items()}, assign=True
        )
    except RuntimeError as error:
        raise ArtifactError(f"{os.fspath(folder)!r} does not fit this model: {error}") from None


def _load_constants(gm: GraphModule, constants: Mapping[str, Tensor], folder: object) -> None:
    """Restore the tensors that the model keeps outside its state dict."""
    own = dict(gm.named_buffers(remove_duplicate=False))
    for name, constant in constants.items():
        old = own.get(name)
        owner, _, last = name.rpartition(".")
        resized = old is not None and old.shape != constant.shape
        if (
            old is None
            or old.dtype != constant.dtype
            or (resized and not isinstance(gm.get_submodule(owner), Quantizer))
        ):
            raise ArtifactError(f"{folder} does not fit this model: {name!r} is another constant")
        setattr(gm.get_submodule(owner), last, constant.to(old.device))


def _encode_example(example: Call) -> tuple[dict[str, Tensor], Any]:
    """Tensors by position, and the structure around them as JSON; no tensors if it cannot be written."""
    kept: list[Tensor] = []

    def keep(tensor: Tensor) -> str:
        kept.append(tensor)
        return str(len(kept) - 1)

    call = encode_call(*example, keep)
    tensors = {} if "unsupported" in call else {str(index): tensor for index, tensor in enumerate(kept)}
    return tensors, {"call": call}


def _decode_example(written: Any, tensors: Mapping[str, Tensor], folder: object) -> Call:
    def find(name: Any) -> Tensor:
        if not isinstance(name, str) or name not in tensors:
            raise damaged(folder, "an example input is missing")
        return tensors[name]

    call = written.get("call", written) if isinstance(written, Mapping) else written
    return Call(*decode_call(call, find))
