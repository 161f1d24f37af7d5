"""State dicts of the old toolkit, converted to those of today's ``QuantModel``.

There every operator was a module under its flat name (``layer1_0_conv1``, and ``layer1_0_conv1_bn`` with batch norm
folded), scales had the rank of their tensor ([C, 1, 1, 1]), and every operator had a quantizer for its own input. Here
names are dotted, scales are [C], and a tensor has one quantizer for all its readers.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from sparsebit.errors import SparsebitError
from sparsebit.quantization import QuantModel
from sparsebit.quantization.modules.qmodules import Reader
from sparsebit.quantization.quantizers import Quantizer

STATE_KEYS = ("state_dict", "model", "net")  # what training scripts call the state dict inside a checkpoint
LEARNED = ("scale", "zero_point", "alpha")


def convert_checkpoint(checkpoint: Mapping[str, Any], qmodel: QuantModel) -> dict[str, Tensor]:
    """Convert an old checkpoint to a state dict for ``qmodel.load_state_dict``.

    Args:
        checkpoint: what ``torch.load(path, weights_only=True)`` gave: a state dict, or a dict that holds one.
        qmodel: a model of the same architecture with the same config, calibrated on at least one batch. A tensor that
            only this one quantizes keeps the range it was calibrated with, and a warning names it.

    Raises:
        SparsebitError: the model is not calibrated, or weights are missing or of another shape.
    """
    old = _state_dict(checkpoint)
    if idle := [q.name for q in qmodel.quantizers.values() if not (q.calibrated or q.fake_fused)]:
        raise SparsebitError(
            "calibrate the model before converting an old checkpoint for it",
            got=f"{len(idle)} quantizers without a range, such as {idle[0]!r}",
            hint="call qmodel.calibrate(batches) with a batch or two of data",
        )
    new = {key: value.clone() for key, value in qmodel.state_dict().items()}
    used = _copy_layers(old, qmodel, new) | _copy_activations(old, qmodel, new)
    spare = sorted(key for key in old.keys() - used if key.endswith(".scale") and _is_learned(old, key))
    if spare:
        warnings.warn(
            f"{len(spare)} scales in the checkpoint are of tensors that are not quantized here, such as {spare[0]!r}",
            stacklevel=2,
        )
    return new


def _state_dict(checkpoint: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors by name, without the prefixes of wrappers."""
    found = checkpoint
    for key in STATE_KEYS:
        if isinstance(found.get(key), Mapping):
            found = found[key]
    tensors = {key: value for key, value in found.items() if isinstance(value, Tensor)}
    for prefix in ("module.", "model."):
        tensors = {key.removeprefix(prefix): value for key, value in tensors.items()}
    return tensors


def _flat_names(dotted: str) -> tuple[str, str]:
    flat = dotted.replace(".", "_")
    flat = f"_{flat}" if flat[0].isdigit() else flat  # as torch.fx names the node of "0" in a Sequential
    return flat, f"{flat}_bn"


def _copy_layers(old: dict[str, Tensor], qmodel: QuantModel, new: dict[str, Tensor]) -> set[str]:
    """Weights, biases, buffers and the grids of weights, layer by layer. Returns the old keys that were used."""
    used: set[str] = set()
    missing = []
    for name, module in qmodel.model.named_modules():
        if not name or name.startswith("quantizers"):
            continue
        layer = name.removesuffix(".weight_quantizer")
        for own in [*module._parameters, *(key for key in module._buffers if key != "followed")]:
            key, part = f"model.{name}.{own}", f"{name.removeprefix(layer)}.{own}"
            if key not in new:
                continue
            source = next((flat + part for flat in _flat_names(layer) if flat + part in old), None)
            if source is None:
                missing.append(key)
                continue
            used.add(source)
            new[key] = _shaped(old[source], new[key], key, source, is_grid=isinstance(module, Quantizer))
    if missing:
        raise SparsebitError(
            "the checkpoint lacks weights of this model",
            got=f"{len(missing)} missing, such as {missing[0]!r}",
            expected="a state dict that the old QuantModel of the same architecture and config saved",
        )
    return used


def _copy_activations(old: dict[str, Tensor], qmodel: QuantModel, new: dict[str, Tensor]) -> set[str]:
    """The grid of each quantized tensor, from the old quantizers of the operators that read it."""
    readers: dict[Quantizer, list[str]] = {quantizer: [] for quantizer in qmodel.quantizers.values()}
    for node in qmodel.model.graph.nodes:
        operator = getattr(qmodel.model, node.name, None) if node.op.startswith("call_") else None
        if not isinstance(operator, Reader):
            continue
        flat = _flat_names(node.name if node.op == "call_function" else str(node.target))
        for index, quantizer in enumerate(operator.input_quantizers):
            names = (*flat, f"{flat[0]}_identity{index}")
            readers[quantizer] += [f"{name}.input_quantizer" for name in names]
    places = {module: f"model.{name}" for name, module in qmodel.model.named_modules()}
    used: set[str] = set()
    absent, differ = [], []
    for quantizer, candidates in readers.items():
        if quantizer.side == "W":
            continue
        learned = [
            name for name in candidates if f"{name}.scale" in old and _is_learned(old, f"{name}.scale")
        ]
        if not learned:
            absent.append(quantizer.name)
            continue
        if any(not torch.equal(old[f"{name}.scale"], old[f"{learned[0]}.scale"]) for name in learned):
            differ.append(quantizer.name)
        used |= {f"{name}.{part}" for name in learned for part in LEARNED}
        for part in LEARNED:
            key, source = f"{places[quantizer]}.{part}", f"{learned[0]}.{part}"
            # An affine LSQ grid for negative values has its zero in the middle here; the old toolkit made it signed.
            signed = part == "zero_point" and not old.get(source, torch.ones(1)).any()
            if key in new and source in old and not (signed and quantizer.TYPE == "lsq"):
                new[key] = _shaped(old[source], new[key], key, source, is_grid=True)
    _warn(absent, "have no quantizer in the checkpoint and keep the calibrated range")
    _warn(
        differ, "have one scale for each reader in the checkpoint; that of the first reader is used for all"
    )
    return used


def _is_learned(old: dict[str, Tensor], key: str) -> bool:
    """Whether a quantizer was in use: the old toolkit gave unused ones scale 1 and zero point 0."""
    zero_point = old.get(key.removesuffix("scale") + "zero_point", torch.zeros(1))
    return bool((old[key] != 1).any() or zero_point.any())


def _shaped(value: Tensor, like: Tensor, key: str, source: str, *, is_grid: bool) -> Tensor:
    value = value.reshape(-1) if is_grid else value
    if value.shape != like.shape:
        raise SparsebitError(
            "a tensor of the checkpoint has another shape",
            where=f"{source!r}, for {key!r}",
            expected=str(tuple(like.shape)),
            got=str(tuple(value.shape)),
        )
    return value.detach().to(like)


def _warn(names: list[str], what: str) -> None:
    if names:
        warnings.warn(f"{len(names)} tensors {what}, such as {names[0]!r}", stacklevel=4)
