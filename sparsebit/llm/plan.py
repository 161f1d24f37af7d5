"""Which weights of a language model are quantized, on which grid, and why the others are not."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable
from dataclasses import replace

import torch
from torch import nn

from sparsebit.config.llm import LlmConfig, MatrixSpec
from sparsebit.errors import SparsebitError
from sparsebit.llm.blocks.route import Route
from sparsebit.llm.folders.source import WeightSource
from sparsebit.llm.language_model import Made
from sparsebit.llm.methods.masks import Sparsity
from sparsebit.llm.methods.solver import WeightSpec
from sparsebit.numerics import CodeType

logger = logging.getLogger(__name__)

NO_MATRIX = "a filter, a table, a bias or a decay"
OTHER_AXES = "it has more than three axes"
NO_FLOATS = "it does not hold real floating-point numbers"
UNPACKED = (NO_MATRIX, OTHER_AXES, NO_FLOATS)
UNSEEN = "the block was not seen to multiply by it as a matrix"
UNCALLED = "the model does not call its block"


class Plan:
    """The spec of every weight by its name; ``ignored`` says why a weight of a block stays in float."""

    def __init__(self, source: WeightSource, config: LlmConfig) -> None:
        self.ignored: dict[str, str] = {}
        self.uncalled: list[str] = []  # blocks
        self._specs: dict[str, WeightSpec] = {}
        self._model = source.model
        inside = tuple(f"{name}." for name in source.blocks)
        parameters = source.model.named_parameters(remove_duplicate=False)
        matrices = [
            name
            for name, one in parameters
            if name.startswith(inside) and one.dim() > 1 and name not in source.tied
        ]
        config.require_matched(name.rpartition(".")[0] for name in matrices)
        for name in matrices:
            layer = name.rpartition(".")[0]
            if reason := why_not_packed(source.model, name):
                self.ignored[name] = reason
                continue
            asked = config.matrix(layer)
            if asked is None:
                pattern = config.ignores(layer)
                self.ignored[name] = f"IGNORE: {pattern}" if pattern else "BIT: 0"
                continue
            self._specs[name] = as_weight_spec(asked)
        head = config.HEAD.spec()
        ends = [] if head is None else embedding_and_head(source.model)
        self._outside = [name for name in ends if not name.startswith(inside)]
        if head is not None and not self._outside:
            raise SparsebitError(
                f"{type(source.model).__name__} does not say which layers are its embedding and its head",
                where="HEAD",
                expected="a model with get_input_embeddings() or get_output_embeddings(), as those of transformers",
                hint="leave HEAD out",
            )
        if head is not None:
            self._specs |= dict.fromkeys(self._outside, as_weight_spec(head))
        if not self._specs and set(self.ignored.values()) <= set(UNPACKED):
            name, reason = next(iter(self.ignored.items()), ("", None))
            raise SparsebitError(
                f"the blocks of {type(source.model).__name__} multiply by no matrix of weights",
                got=reason and f"{name!r} ({reason})",
                hint="quantize filters of convolutions with sparsebit.quantize",
            )
        if not self._specs:
            raise SparsebitError(
                "the config leaves every weight in float",
                got=", ".join(sorted(set(self.ignored.values()))),
                hint="set W.BIT, or remove patterns from IGNORE",
            )

    def spec(self, name: str) -> WeightSpec | None:
        """The spec of the parameter of this name; None if it stays in float."""
        return self._specs.get(name)

    def set_bits(self, name: str, bits: int) -> None:
        """Set another width for a weight, with the same scheme."""
        spec = self._specs[name]
        assert spec.code is not None
        self._specs[name] = replace(spec, code=CodeType(spec.code.kind, bits))

    def inside(self, block: str) -> Callable[[str], WeightSpec | None]:
        """``spec`` by the name of a parameter inside one block."""
        return lambda name: self.spec(f"{block}.{name}")

    def note_unseen(self, block: str, made: Iterable[Made]) -> None:
        """Keep planned weights in float that the block was not seen to multiply by."""
        done = {one.name.partition("[")[0] for one in made}
        for name in self._specs:
            if name.startswith(f"{block}.") and name not in done:
                self.ignored[name] = UNSEEN

    def note_uncalled(self, route: Route) -> None:
        """Keep the weights of blocks in float that the model does not call."""
        called = {route.names[number] for number in route.order}
        self.uncalled = [name for name in route.names if name not in called]
        inside = tuple(f"{name}." for name in self.uncalled)
        for name in [one for one in self._specs if one.startswith(inside)]:
            del self._specs[name]
            self.ignored[name] = UNCALLED

    def announce(self) -> None:
        """Log which planned weights stay in float, in one message for each reason."""
        for reason in (*UNPACKED, UNSEEN, UNCALLED):
            names = [name for name, why in self.ignored.items() if why == reason]
            kinds = ", ".join(dict.fromkeys(re.sub(r"\d+", "*", name) for name in names))
            if names:
                logger.warning("%d weights stay in float (%s): %s", len(names), reason, kinds)

    def outside(self) -> list[str]:
        """Weights outside the blocks that are quantized: those of the embedding and of the head."""
        return list(self._outside)


def why_not_packed(model: nn.Module, name: str) -> str | None:
    """Why a parameter with two or more axes is not a matrix or a stack of matrices; None if it may be one.

    Example:
        >>> model = nn.ModuleDict({"conv": nn.Conv1d(4, 4, 3, groups=4), "up": nn.Linear(4, 4)})
        >>> why_not_packed(model, "conv.weight"), why_not_packed(model, "up.weight")
        ('a filter, a table, a bias or a decay', None)
    """
    (layer, _, key), one = name.rpartition("."), model.get_parameter(name)
    filters_and_tables = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Embedding)
    is_row = 1 in one.shape[1:] and one.dim() == 3
    if (
        is_row
        or key.endswith(("bias", "A_log"))  # a decay of Mamba
        or isinstance(model.get_submodule(layer), filters_and_tables)
    ):
        return NO_MATRIX
    if not one.is_floating_point():
        return NO_FLOATS
    return OTHER_AXES if one.dim() > 3 else None


def as_weight_spec(asked: MatrixSpec) -> WeightSpec:
    """Convert a config's spec to a type of quantized values and a layout.

    Example:
        >>> str(as_weight_spec(MatrixSpec(3, "affine", 64, "float16")).code)
        'uint3'
    """
    kinds = {"full-range": "int{}_full", "symmetric": "int{}", "affine": "uint{}"}
    name = asked.bit if isinstance(asked.bit, str) else kinds[asked.scheme].format(asked.bit)
    return WeightSpec(
        code=CodeType.parse(name) if asked.bit else None,
        group_size=asked.group_size,
        scale_dtype=getattr(torch, asked.scale_dtype),
        sparsity=Sparsity.parse(asked.sparsity),
    )


def embedding_and_head(model: nn.Module) -> list[str]:
    """The names of the embedding and the head, and of the other layers that hold the same tensors."""
    layers = {name: one for name, one in model.named_modules() if isinstance(one, nn.Embedding | nn.Linear)}
    names = {id(module): name for name, module in layers.items()}
    ends = [getattr(model, f"get_{name}_embeddings", lambda: None)() for name in ("input", "output")]
    found = [names[id(module)] for module in ends if id(module) in names]
    held = {id(layers[name].weight) for name in found}
    found += [name for name, one in layers.items() if id(one.weight) in held and name not in found]
    return [f"{name}.weight" for name in found]
