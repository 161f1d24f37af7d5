"""Bits within a budget: costs are measured on the float model, and an integer program chooses.

Weights that read one tensor (query, key and value; gate and up) get one width, because engines fuse them. If the
config names the formats to export to, only widths that all of them store are considered. The cost of a width is
measured for one such group at a time: its weights are rounded, and the next-token distributions (or the outputs of the
block) are compared with those of the float model.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from sparsebit.analysis.bits.integer_program import Program
from sparsebit.config.llm import LlmConfig
from sparsebit.errors import SparsebitError, located
from sparsebit.llm.blocks.calls import BlockRuns, run_model
from sparsebit.llm.blocks.measure import stored
from sparsebit.llm.blocks.route import Route
from sparsebit.llm.blocks.solve import run_block
from sparsebit.llm.blocks.stages import find_stages
from sparsebit.llm.blocks.streams import BATCH, Stream
from sparsebit.llm.evaluate.perplexity import divergence, log_probabilities
from sparsebit.llm.folders.source import WeightSource
from sparsebit.llm.formats import FORMATS, FormatRefusal, WeightKind
from sparsebit.llm.formats.format import holder_of, require_transformers
from sparsebit.llm.language_model import LanguageModel
from sparsebit.llm.methods.learned_block import token_error
from sparsebit.llm.methods.rtn import Rtn
from sparsebit.llm.methods.solver import WeightSpec
from sparsebit.llm.plan import Plan
from sparsebit.llm.weights.uses import Matrix
from sparsebit.numerics import CodeType
from sparsebit.numerics.packing import packed_length

SEARCH = 8  # ranges tried for each group when a width is measured


class WidthChoice(NamedTuple):
    """Weights of one block that get one width."""

    block: str
    matrices: tuple[Matrix, ...]

    @property
    def name(self) -> str:
        """For the integer program and for messages."""
        return f"{self.block}.{self.matrices[0]}"

    @property
    def holds_experts(self) -> bool:
        """Whether these are matrices of stacked experts."""
        return any(matrix.expert is not None for matrix in self.matrices)


@torch.no_grad()
def choose_widths(source: WeightSource, plan: Plan, settings: LlmConfig, route: Route, ids: Tensor) -> None:
    """Give every weight of ``plan`` a width, so that predictions change least within ``settings.BUDGET``.

    Args:
        source: the model; its blocks are filled one after the other, or all at once to measure the divergence.
        plan: what is changed.
        settings: the budget, and the widths to choose from.
        route: how the model calls its blocks.
        ids: a few sequences of the calibration data, [batch, length].
    """
    budget = settings.BUDGET
    require_formats(source.model, plan, budget.FORMATS)
    if budget.MEASURE == "kl":
        for name in source.blocks:
            source.fill(name)
    found = _measure(source, plan, settings, route, ids.to(source.device))
    if not found.choices:
        raise SparsebitError(
            "the budget has no weight to choose a width for",
            where="BUDGET",
            expected="weights with 2, 3, 4 or 8 bits",
            hint="set W.BIT, or leave BUDGET out",
        )
    allowed = budget.BYTES or budget.BITS * found.elements / 8
    program = Program(errors=found.errors, costs=found.bytes)
    chosen = program.solve(allowed)
    if chosen is None:
        least, elements = program.cost(program.cheapest()), found.elements
        raise SparsebitError(
            f"no choice of widths fits: the narrowest take {least:.0f} bytes, scales included",
            expected=f"at most {allowed:.0f} bytes, or {8 * allowed / elements:.2f} bits per weight",
            hint=f"raise the budget to at least {8 * least / elements:.2f} bits"
            + (", or allow narrower BUDGET.WIDTHS" if min(budget.WIDTHS) > 2 else ""),
        )
    for name, width in chosen.items():
        choice = found.choices[name]
        for matrix in choice.matrices:
            plan.set_bits(f"{choice.block}.{matrix.name}", width)


@dataclass
class _Measured:
    """What is chosen, and by its name the error and the bytes of every width."""

    choices: dict[str, WidthChoice] = field(default_factory=dict)
    errors: dict[str, dict[int, float]] = field(default_factory=dict)
    bytes: dict[str, dict[int, float]] = field(default_factory=dict)
    elements: int = 0  # of all choices


def _measure(source: WeightSource, plan: Plan, settings: LlmConfig, route: Route, ids: Tensor) -> _Measured:
    found, budget = _Measured(), settings.BUDGET
    predict = partial(run_model, source.model)
    wanted = log_probabilities(predict, ids) if budget.MEASURE == "kl" else None
    stream = Stream(source.model, route, ids.split(BATCH))
    for number in route.order:
        name = route.names[number]
        with source.lend(name) as block:
            runs = stream.collect(number, block, source.lend)
            outputs = run_block(runs)
            parameters = {
                key: one for key, one in block.named_parameters() if _is_chosen(plan.spec(f"{name}.{key}"))
            }
            for choice in _choices(name, runs, parameters):
                shapes = [stored(parameters, matrix).shape for matrix in choice.matrices]
                found.choices[choice.name] = choice
                found.elements += sum(shape.numel() for shape in shapes)
                with located(choice.name):
                    widths = _held_widths(source.model, plan, choice, shapes, settings)
                    found.bytes[choice.name] = {
                        width: _bytes_at(source.model, plan, choice, shapes, width, budget.FORMATS)
                        for width in widths
                    }
                errors = found.errors[choice.name] = {}
                for width in widths:
                    with located(choice.name), _rounded(plan, choice, parameters, width):
                        if wanted is None:
                            errors[width] = _output_error(runs, outputs[0])
                        else:
                            errors[width] = divergence(wanted, log_probabilities(predict, ids))
            stream.advance_last(runs, outputs)
    return found


def _choices(block: str, runs: BlockRuns, parameters: Mapping[str, Tensor]) -> Iterator[WidthChoice]:
    for stage in find_stages(runs, parameters):
        yield WidthChoice(block, tuple(matrix for group in stage.groups for matrix in group.matrices))


def _output_error(runs: BlockRuns, outputs: Sequence[Tensor]) -> float:
    """How far the first result of a block is from what it was, over all batches."""
    errors = [token_error(runs.run(index), wanted) for index, wanted in enumerate(outputs)]
    return float(torch.stack(errors).mean())


def _bytes_at(
    model: nn.Module,
    plan: Plan,
    choice: WidthChoice,
    shapes: Sequence[Sequence[int]],
    width: int,
    formats: Sequence[str],
) -> float:
    """Bytes of the weights of a choice: in the file of the format where they take most, or in memory without one."""
    if not formats:
        specs = [_at_width(plan, choice, matrix, width) for matrix in choice.matrices]
        return sum(stored_bytes(shape, spec) for shape, spec in zip(shapes, specs, strict=True))
    kinds = list(_kinds(model, plan, choice, shapes, width).values())
    return max(sum(FORMATS[name]().nbytes(kind) for kind in kinds) for name in formats)


def require_formats(model: nn.Module, plan: Plan, formats: Sequence[str]) -> None:
    """Refuse, before measuring, formats without mixed widths, and models or weights that a format cannot store."""
    for name in formats:
        format = FORMATS[name]()
        if not format.mixes_widths:
            raise SparsebitError(
                f"{name} has one width for all layers, but a budget chooses several",
                where="BUDGET.FORMATS",
                hint=f"leave {name!r} out, or leave BUDGET out and set W.BIT",
            )
        require_transformers(model, name)
        for refusal in format.refusals(LanguageModel(model, {}, [])):  # of unsupported models: no weights yet
            raise _cannot_hold(name, refusal, "change BUDGET.FORMATS")
        for parameter in plan.outside():
            layer = parameter.removesuffix(".weight")
            spec, (rows, columns) = plan.spec(parameter), model.get_parameter(parameter).shape
            if spec is not None and (
                found := format.refuse(layer, _kind(model, layer, spec, (rows, columns)))
            ):
                raise _cannot_hold(name, found, "change HEAD, or BUDGET.FORMATS")


def _held_widths(
    model: nn.Module, plan: Plan, choice: WidthChoice, shapes: Sequence[Sequence[int]], settings: LlmConfig
) -> list[int]:
    """The widths to choose from that all formats can store for all weights of a choice; an error if there is none.

    These are BUDGET.WIDTHS, or those that W.SPECIFIC gives its weights.
    """
    layers = [f"{choice.block}.{matrix.name}".rpartition(".")[0] for matrix in choice.matrices]
    ruled = {bit for layer in layers if isinstance(bit := settings.bit_by_rule(layer), int)}
    held = sorted(ruled or settings.BUDGET.WIDTHS)
    for name in settings.BUDGET.FORMATS:
        if choice.holds_experts and not FORMATS[name].mixes_experts:
            raise SparsebitError(
                f"{name} has one width for all experts, but a budget chooses several",
                where="BUDGET.FORMATS",
                hint=f"leave {name!r} out, or add the experts to IGNORE",
            )
        refused: FormatRefusal | None = None
        for width in list(held):
            kinds = _kinds(model, plan, choice, shapes, width)
            if found := next(filter(None, (FORMATS[name]().refuse(*one) for one in kinds.items())), None):
                held.remove(width)
                refused = refused or found
        if not held:
            assert refused is not None
            raise _cannot_hold(
                name, refused, "set W to that, allow more BUDGET.WIDTHS, or change BUDGET.FORMATS"
            )
    return held


def _kinds(
    model: nn.Module, plan: Plan, choice: WidthChoice, shapes: Sequence[Sequence[int]], width: int
) -> dict[str, WeightKind]:
    """The weights of a choice at a width, by layer."""
    found = {}
    for matrix, (rows, columns) in zip(choice.matrices, shapes, strict=True):
        layer = f"{choice.block}.{matrix}".removesuffix(".weight")
        found[layer] = _kind(model, layer, _at_width(plan, choice, matrix, width), (rows, columns))
    return found


def _kind(model: nn.Module, layer: str, spec: WeightSpec, shape: tuple[int, int]) -> WeightKind:
    assert spec.code is not None
    size = spec.layout(shape).group_size
    return WeightKind(spec.code, size, spec.scale_dtype, shape, holder_of(model, layer))


def _cannot_hold(format_name: str, refusal: FormatRefusal, hint: str) -> SparsebitError:
    return SparsebitError(
        f"{format_name} cannot store {refusal.layer!r} exactly: {refusal.reason}",
        where="BUDGET.FORMATS",
        expected=refusal.setting,
        hint=hint,
    )


def _is_chosen(spec: WeightSpec | None) -> bool:
    return spec is not None and spec.code is not None and spec.code.is_integer


def _at_width(plan: Plan, choice: WidthChoice, matrix: Matrix, width: int) -> WeightSpec:
    spec = plan.spec(f"{choice.block}.{matrix.name}")
    assert spec is not None and spec.code is not None
    return replace(spec, code=CodeType(spec.code.kind, width))


@contextlib.contextmanager
def _rounded(plan: Plan, choice: WidthChoice, parameters: Mapping[str, Tensor], width: int) -> Iterator[None]:
    """While active, the weights of a choice are rounded to a width."""
    before = []
    for matrix in choice.matrices:
        view = stored(parameters, matrix)
        before.append((view, view.clone()))
        view.copy_(Rtn(steps=SEARCH).solve(view, None, _at_width(plan, choice, matrix, width)).weight)
    yield
    for view, kept in before:
        view.copy_(kept)


def stored_bytes(shape: Sequence[int], spec: WeightSpec) -> float:
    """Bytes of a weight [out, in]: quantized values, scales, and zero points if any.

    Example:
        >>> stored_bytes((8, 64), WeightSpec(group_size=32))
        288.0
    """
    assert spec.code is not None
    rows, columns = shape
    groups = rows * (columns // (spec.layout(tuple(shape)).group_size or columns))
    point = 0 if spec.code.symmetric else spec.code.bits / 8
    scale = torch.finfo(spec.scale_dtype).bits / 8
    return rows * packed_length(columns, spec.code.bits) + groups * (scale + point)
