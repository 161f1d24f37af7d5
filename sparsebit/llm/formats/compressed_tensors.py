"""compressed-tensors, ``pack-quantized``: what vLLM, SGLang and transformers load.

A linear layer ``n`` of [out, in] becomes ``n.weight_packed`` (each row a little-endian bit stream in 32-bit words),
``n.weight_scale`` [out, groups], ``n.weight_shape``, and with zero points ``n.weight_zero_point``, packed along the
output channels. Values are stored counted from the lowest one, which is how ``PackedTensor`` holds them already.

Stacked experts are stored as separate layers. transformers unpacks them in the dtype of their scales, all by
one scheme without zero points, and stacks them; in float16 that would round, so the scales of experts are float32.
"""

from __future__ import annotations

import contextlib
import copy
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from sparsebit.batches import device_of
from sparsebit.graph.copies import copy_module
from sparsebit.llm.blocks.calls import run_model
from sparsebit.llm.engines.engine import Engine
from sparsebit.llm.engines.transformers import TRANSFORMERS
from sparsebit.llm.formats.checkpoint_names import (
    StoredLayer,
    as_stored,
    float_stacks,
    joined_floats,
    refuse_unsplit,
    stored_layers,
)
from sparsebit.llm.formats.format import (
    FORMATS,
    FormatRefusal,
    WeightKind,
    by_rows,
    float_state,
    layers_of,
    refuse_by_kind,
    word_bytes,
    words,
    write_pretrained,
)
from sparsebit.llm.language_model import LanguageModel
from sparsebit.llm.packed.linear import PackedLinear
from sparsebit.numerics.packed import PackedTensor
from sparsebit.numerics.packing import pack_bits

_INTEGERS = ("int", "full", "uint")
_OTHER = "a model of another family"
EXPERTS = "re:.*[.]experts[.].*"  # vLLM looks for them by other names than their checkpoints

_UNREADABLE = {  # modules that transformers cannot read from these folders
    "FalconAttention": "transformers cannot run Falcon's own linear layers once they are packed",
    "Llama4TextExperts": "transformers reads Llama 4's experts one by one, and checkpoints store them as one tensor",
}


class _Scheme(NamedTuple):
    bits: int
    symmetric: bool
    group_size: int | None


@FORMATS.register("compressed-tensors")
class CompressedTensors:
    """A folder for vLLM, SGLang and transformers."""

    extension: ClassVar[str] = ""
    engine: ClassVar[Engine] = TRANSFORMERS

    mixes_widths: ClassVar[bool] = True
    mixes_experts: ClassVar[bool] = False

    def refuse(self, layer: str, kind: WeightKind) -> FormatRefusal | None:
        """Refuse anything but linear layers with 2, 3, 4 or 8 bits."""
        code = kind.code
        if kind.holder == "conv1d":
            return FormatRefusal(
                layer, "its readers pack nn.Linear, and this is a Conv1D", "IGNORE: this layer"
            )
        if kind.holder in ("embedding", "other"):
            setting = "HEAD.BIT: 0" if kind.holder == "embedding" else "IGNORE: this layer"
            return FormatRefusal(layer, "only linear layers are packed", setting)
        if code.kind not in _INTEGERS or code.bits not in (2, 3, 4, 8):
            return FormatRefusal(layer, f"{code} is not one of its integer types", "BIT: 2, 3, 4 or 8")
        if kind.holder == "experts" and not code.symmetric:
            return FormatRefusal(
                layer, "transformers reads experts without zero points", "SCHEME: full-range or symmetric"
            )
        return None

    def nbytes(self, kind: WeightKind) -> int:
        """Rows, and columns of zero points, are bit streams in 32-bit words. Scales of experts are float32."""
        (rows, columns), bits = kind.shape, kind.code.bits
        scale = 4 if kind.holder == "experts" else kind.scale_dtype.itemsize
        points = 0 if kind.code.symmetric else word_bytes(rows, bits)
        return rows * word_bytes(columns, bits) + kind.groups * (rows * scale + points)

    def refusals(self, model: LanguageModel) -> Iterator[FormatRefusal]:
        """Layers that are not linear ones with 2, 3, 4 or 8 bits, and experts that do not share one scheme."""
        yield from refuse_by_kind(model, self.refuse)
        yield from refuse_unsplit(model)
        for name, module in model.model.named_modules():
            if reason := _UNREADABLE.get(type(module).__name__):
                yield FormatRefusal(name, reason, _OTHER)
        yield from _asked_for_weight(model.model)
        schemes = {name: _scheme(held) for name, held in layers_of(model) if "[" in name}
        for name, scheme in schemes.items():
            if scheme != next(iter(schemes.values())):
                reason = "transformers reads experts of one width and group size"
                yield FormatRefusal(name, reason, "the same BIT and GROUP_SIZE for all experts")
        for name in float_stacks(model) if schemes else ():
            reason = "checkpoints store it in parts, which transformers does not join beside packed experts"
            yield FormatRefusal(name, reason, "IGNORE: all experts, or none")
        for name in joined_floats(model) if schemes else ():
            reason = (
                "checkpoints join it with others, which transformers does not split beside packed experts"
            )
            yield FormatRefusal(name, reason, "IGNORE: all experts")

    def write(self, model: LanguageModel, path: Path, ids: Tensor) -> None:
        """Weights, config and tokenizer."""
        stacks = float_stacks(model)  # which transformers reads under this name only, beside packed layers
        others = {name: one for name, one in float_state(model.model).items() if name not in stacks}
        layers = list(stored_layers(model))
        tensors = stacks | as_stored(model.model, others)
        for layer in layers:
            tensors |= {f"{layer.name}.{key}": value for key, value in layer_tensors(layer).items()}
        write_pretrained(model, path, tensors, quantization_config(layers, ignored_layers(model)))


class _Asked(nn.Module):
    """A packed layer that notes when it is asked for its weight."""

    def __init__(self, layer: PackedLinear, note: Callable[[], object]) -> None:
        super().__init__()
        self._multiply, self._read, self._note = layer.forward, lambda: layer.weight, note

    def forward(self, x: Tensor) -> Tensor:
        return self._multiply(x)

    @property
    def weight(self) -> Tensor:
        self._note()
        return self._read()  # type: ignore[no-untyped-call]


@torch.no_grad()
def _asked_for_weight(model: Any) -> Iterator[FormatRefusal]:
    """Modules whose packed layers are asked for their weights, which those of transformers do not have.

    While it loads a folder, transformers lets the class initialize all modules. Other layers are asked in a call.
    """
    reason = "transformers asks for its weight, which packed layers do not have"
    packed = {name: one for name, one in model.named_modules() if isinstance(one, PackedLinear)}
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        make: Callable[..., Any] = type(model)._from_config
        empty = make(copy.deepcopy(model.config))
    shared: dict[int, Any] = {id(one): one for one in (*model.parameters(), *model.buffers())}
    called = copy_module(model, shared)
    asked: dict[str, None] = {}
    for name, layer in packed.items():
        path, _, key = name.rpartition(".")
        if isinstance(linear := getattr(_module_at(empty, path), key, None), nn.Linear):
            del linear._parameters["weight"]
            setattr(called.get_submodule(path), key, _Asked(layer, partial(asked.setdefault, name)))
    owners: dict[str, Any] = {
        name: one for name, one in empty.named_modules() if hasattr(one, "_init_weights")
    }
    for name, module in empty.named_modules():
        owner = max((path for path in owners if not path or f"{name}.".startswith(f"{path}.")), key=len)
        if _lacks_weight(partial(owners[owner]._init_weights, module)):
            yield FormatRefusal(name, reason.replace("its weight", "the weights of its layers"), _OTHER)
    with contextlib.suppress(Exception):  # left to the check of the file
        run_model(called, torch.zeros(1, 4, dtype=torch.long, device=device_of(model)))
    for name in asked:
        yield FormatRefusal(name, reason, "IGNORE: this layer")


def _lacks_weight(run: Callable[[], object]) -> bool:
    """Whether a layer without weights is asked for them; any other error is left to the check of the file."""
    try:
        run()
    except AttributeError as error:
        return "has no attribute 'weight'" in str(error)
    except Exception:
        return False
    return False


def _module_at(model: nn.Module, name: str) -> nn.Module | None:
    """The module of this name; None where the class holds experts in one tensor."""
    try:
        return model.get_submodule(name)
    except AttributeError:
        return None


def layer_tensors(layer: StoredLayer) -> dict[str, Tensor]:
    """The tensors of one linear layer."""
    held = layer.held
    scale, zero_point = by_rows(held)
    found = {
        "weight_packed": words(held.bits),
        "weight_scale": scale.float() if layer.is_expert else scale,
        "weight_shape": torch.tensor(held.shape, dtype=torch.int64),
    }
    if not held.grid.code.symmetric:
        along_rows = pack_bits(zero_point.T.contiguous(), held.grid.code.bits)
        found["weight_zero_point"] = words(along_rows).T
    return found


def ignored_layers(model: LanguageModel) -> list[str]:
    """Layers that stayed in float, the head and routers among them, by their names in the module and in checkpoints."""
    found = {
        f"{name}.weight": weight
        for name, one in model.model.named_modules()
        if not isinstance(one, nn.Embedding)
        and (weight := one._parameters.get("weight")) is not None
        and weight.dim() == 2
    }
    return [name.removesuffix(".weight") for name in found | as_stored(model.model, found)]


def quantization_config(layers: Iterable[StoredLayer], ignore: list[str]) -> dict[str, Any]:
    """The part of config.json that tells a loader how to read the weights."""
    groups: dict[_Scheme, dict[str, None]] = defaultdict(dict)
    # transformers reads experts by the first scheme whose targets mention them.
    for layer in sorted(layers, key=lambda layer: not layer.is_expert):
        targets = (EXPERTS,) if layer.is_expert else (_only(layer.source), _only(layer.name))
        groups[_scheme(layer.held)] |= dict.fromkeys(targets)
    made: dict[str, Any] = {}
    for index, (scheme, names) in enumerate(groups.items()):
        made[f"group_{index}"] = {
            "targets": ["Linear"] if len(groups) == 1 else list(names),
            "input_activations": None,
            "output_activations": None,
            "weights": {
                "num_bits": scheme.bits,
                "type": "int",
                "symmetric": scheme.symmetric,
                "strategy": "channel" if scheme.group_size is None else "group",
                "group_size": scheme.group_size,
                "dynamic": False,
                "actorder": None,
                "block_structure": None,
                "observer": "minmax",
                "observer_kwargs": {},
            },
        }
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "global_compression_ratio": None,
        "kv_cache_scheme": None,
        "ignore": ignore,
        "config_groups": made,
    }


def _scheme(held: PackedTensor) -> _Scheme:
    code = held.grid.code
    return _Scheme(code.bits, code.symmetric, held.grid.layout.group_size)


def _only(name: str) -> str:
    """The target pattern for a single layer."""
    return f"re:^{re.escape(name)}$"
