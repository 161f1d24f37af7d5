"""``sparsebit.llm.quantize``: a language model compressed block by block.

Each block is loaded, measured and solved on the outputs of the compressed blocks before it, packed, and released.
Memory holds one block, the hidden states of the calibration data (on disk if they are large) and the packed result.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sparsebit.config.llm import LlmConfig, load_llm_config
from sparsebit.errors import PlugInError, SparsebitError, is_plug_in, located, running_plug_in, with_article
from sparsebit.graph.autocast import without_autocast
from sparsebit.llm.blocks.calls import BlockRuns
from sparsebit.llm.blocks.measure import stored
from sparsebit.llm.blocks.route import Route, find_route
from sparsebit.llm.blocks.solve import measure_losses, run_block, solve_block, solve_without_data
from sparsebit.llm.blocks.streams import BATCH, BlockCalls, Outputs, Stream, Streams
from sparsebit.llm.choose_widths import choose_widths
from sparsebit.llm.finished_blocks import FinishedBlocks, config_text, digest_outside_blocks
from sparsebit.llm.folders.source import WeightSource
from sparsebit.llm.language_model import LanguageModel, LayerRecord, Made, is_quantized
from sparsebit.llm.methods.pipeline import Pipeline
from sparsebit.llm.methods.preparation import Preparation, PrepareBlock
from sparsebit.llm.methods.solver import SolvedMatrix, SpecOf, require_solved
from sparsebit.llm.methods.tuner import Tuner
from sparsebit.llm.plan import Plan
from sparsebit.llm.solve_outside import solve_outside
from sparsebit.llm.tokens import Text, as_ids, read_tokenizer, require_known, require_positions, windows
from sparsebit.llm.weights.uses import Matrix
from sparsebit.processes import failing_together, is_distributed, rank, require_same
from sparsebit.progress import progress as shown_progress
from sparsebit.storage import working_in


def quantize(
    model: nn.Module | str | os.PathLike[str],
    data: Text | None = None,
    config: LlmConfig | str | os.PathLike[str] | dict[str, Any] = "w4_g32",
    *,
    tokenizer: Any = None,
    folder: str | os.PathLike[str] | None = None,
    progress: bool | None = None,
) -> LanguageModel:
    """Quantize the weights of a language model.

    Under ``torchrun``, call it in every process with the same arguments; the processes divide the batches.

    Args:
        model: a module with repeated blocks that is called with token ids, or a folder that ``save_pretrained`` wrote,
            which is then read block by block.
        data: token ids, a text, or the path of a text file for calibration; some methods need none.
        config: a preset (``w8``, ``w4_g32``, ``w4_g32_head``, ``w3_g64``), a YAML file, or a dict;
            ``docs/how-to/language_models.md`` lists its keys.
        tokenizer: for texts; by default the one in the model's folder.
        folder: where finished blocks are saved; a run that was stopped resumes from there, with the same result.
            They stay there: remove the folder once the model is saved.
        progress: whether to show progress; by default only on a terminal.

    Returns:
        the model with packed weights, and a record of each. The given model is unchanged.
    """
    with failing_together(), working_in(None if rank() else folder):
        asked = load_llm_config(config)
        settings = asked.settle_device(torch.cuda.device_count)
        _require_float(model)
        tensors = model.parameters() if isinstance(model, nn.Module) else ()
        # Tensors of inference mode are read only in it, and could not be learned from.
        with torch.inference_mode(any(one.is_inference() for one in tensors)):
            source = WeightSource.open(model, settings.DEVICE)
        _require_device(source, asked.DEVICE)
        with torch.inference_mode(False), without_autocast():
            return _quantize(source, data, settings, tokenizer, folder, progress)


def _quantize(
    source: WeightSource,
    data: Text | None,
    settings: LlmConfig,
    tokenizer: Any,
    folder: str | os.PathLike[str] | None,
    progress: bool | None,
) -> LanguageModel:
    if tokenizer is None and source.folder is not None:
        tokenizer = read_tokenizer(source.folder)
    pipeline = Pipeline.of(settings.METHOD)
    sequences = _sequences(source.model, settings, pipeline, data, tokenizer)
    if is_distributed():
        keeps = "in a folder" if folder is not None else "nowhere"
        require_same([config_text(settings), keeps, digest_outside_blocks(source)], "the model or its config")
    require_same([] if sequences is None else [sequences], "the calibration data")
    plan = Plan(source, settings)
    finished = FinishedBlocks.open(folder, settings, sequences, source)
    result = LanguageModel(source.model, {}, [], tokenizer, plan.ignored, pipeline.names_before)
    route = _route(source, sequences)
    plan.note_uncalled(route)
    if source.tied and (pipeline.preparations or pipeline.tuners):
        raise SparsebitError(
            f"{type(source.model).__name__} shares weights between its blocks, which only solvers keep equal",
            where=next(iter(source.tied)),
            hint="choose METHOD: gptq, hqq or rtn",
        )
    if settings.BUDGET.BITS or settings.BUDGET.BYTES:
        if sequences is None:
            raise _data_is_needed("BUDGET")
        choose_widths(source, plan, settings, route, sequences[: settings.BUDGET.SAMPLES])
    prepare = [_start_preparation(one, source.model, route) for one in pipeline.preparations]
    streams = _start(source, route, sequences, pipeline, half=settings.CALIBRATION.DTYPE == "bfloat16")
    order = list(enumerate(route.order))
    for index, number in shown_progress(order, "quantizing blocks", shown=progress):
        name = route.names[number]
        block = source.fill(name)
        _take_shared(source, result, name)
        runs = BlockCalls.none(block, name) if streams is None else streams.reach(number, block)
        earlier = finished.read(index, name, block)
        if earlier is None or runs.floats is not None:
            for change in prepare:
                change(runs.every, plan.inside(name))
        if earlier is None:
            solved, floats, outputs = _compress(runs, plan.inside(name), pipeline)
            made = _pack(name, solved)
            require_same((one.solved.weight for one in solved), f"what {name!r} becomes")
            finished.write(index, name, made, block)
            del solved  # two float copies of the block, otherwise in memory until the next one is solved
        else:
            made = earlier.made
            floats = None if runs.floats is None else run_block(runs.floats)
            earlier.restore(block, name)
            outputs = run_block(runs.first) if streams is not None else ()
        plan.note_unseen(name, made)
        result.add(made)
        result.add(_pack_shared(source, result, name))
        if streams is not None:
            streams.advance(runs, outputs, floats)
        del runs, outputs, floats  # and with them the block's inputs
    for name in plan.uncalled:
        source.fill(name)
    if streams is not None:
        streams.finish()
    result.add(solve_outside(source, plan, pipeline.solver, streams))
    if not result.records:
        raise SparsebitError(
            f"no weight of {type(source.model).__name__} was quantized",
            got=", ".join(sorted(set(plan.ignored.values()))),
            hint="pass no data, with METHOD: rtn: weights are then rounded without running the model",
        )
    source.restore_buffers()
    plan.announce()
    return result


def _shared(source: WeightSource, result: LanguageModel, block: str) -> list[tuple[LayerRecord, str]]:
    """The solved matrices that a block has too: the record of each, and the name that it has in the block."""
    return [
        (record, f"{name}{record.name.removeprefix(first)}")
        for name, first in source.tied.items()
        if name.startswith(f"{block}.")
        for record in result.records
        if record.name.partition("[")[0] == first
    ]


def _take_shared(source: WeightSource, result: LanguageModel, block: str) -> None:
    """Give a block the solved values of the matrices that it shares with earlier blocks."""
    parameters = dict(source.model.named_parameters(remove_duplicate=False))
    for record, name in _shared(source, result, block):
        held = result.weights.get(record.name)
        first, own = (Matrix.parse(one, transposed=record.transposed) for one in (record.name, name))
        stored(parameters, own).copy_(stored(parameters, first) if held is None else held.numbers())


def _pack_shared(source: WeightSource, result: LanguageModel, block: str) -> list[Made]:
    return [
        Made(name, result.weights.get(one.name), one.loss, one.tokens, one.remark, one.transposed)
        for one, name in _shared(source, result, block)
    ]


def _route(source: WeightSource, sequences: Tensor | None) -> Route:
    if sequences is None:
        return Route.unseen(source.blocks)
    return find_route(source.model, source.blocks, source.lend, sequences[:1].to(source.device))


def _start(
    source: WeightSource, route: Route, sequences: Tensor | None, pipeline: Pipeline, *, half: bool
) -> Streams | None:
    if sequences is None:
        return None
    own = Stream(source.model, route, sequences.to(source.device).split(BATCH), half=half)
    return Streams(own, source.lend, follow=pipeline.follows)


def _compress(
    runs: BlockCalls, spec_of: SpecOf, pipeline: Pipeline
) -> tuple[list[SolvedMatrix], Outputs | None, Outputs]:
    """Run all steps on one block, and return what it returns in the float and in the compressed model.

    In the float model that is for all of its calls, in the compressed one for the first. These come from the block with
    dequantized float weights. The packed block computes the same up to the rounding of sums, but a resumed run must
    continue with identical values.
    """
    every = runs.every
    if not every.calls:
        return solve_without_data(every, spec_of, pipeline.solver), None, ()
    aims = {tuner.follow for tuner in pipeline.tuners}
    plain: Sequence[Tensor] = run_block(every)[0] if any(aim < 1 for aim in aims) else []
    matrices = every.block.named_parameters() if pipeline.tuners else ()
    originals = {name: one.detach().clone() for name, one in matrices if spec_of(name)}
    solved, floats, replay = solve_block(every, runs.floats, spec_of, pipeline.solver)
    for tuner in pipeline.tuners:
        targets = list(floats[0] if tuner.follow and floats is not None else plain)
        if 0 < tuner.follow < 1:
            targets = [own.lerp(one, tuner.follow) for own, one in zip(plain, targets, strict=True)]
        solved = _tuned(tuner, every, targets, solved, spec_of)
    if pipeline.tuners:
        solved = measure_losses(every, originals, solved)
    return solved, floats, run_block(runs.first, None if pipeline.tuners else replay)


def _start_preparation(method: Preparation, model: nn.Module, route: Route) -> PrepareBlock:
    """The function that a preparation applies to each block."""
    who = f"the method {type(method).__name__}"
    with running_plug_in(f"{who} cannot start", method):
        change = method.start(model, route)

    def prepare(runs: BlockRuns, spec_of: SpecOf) -> None:
        with running_plug_in(f"{who} cannot prepare {runs.name!r}", method):
            change(runs, spec_of)

    return prepare


def _tuned(
    tuner: Tuner, runs: BlockRuns, targets: Sequence[Tensor], before: Sequence[SolvedMatrix], spec_of: SpecOf
) -> list[SolvedMatrix]:
    """What a tuner makes of a solved block; what a user's tuner makes of it is checked, as in ``solve_weight``."""
    who = f"the method {type(tuner).__name__}"
    with running_plug_in(f"{who} cannot train {runs.name!r}", tuner):
        after = tuner.tune(runs, targets, before)
        if is_plug_in(tuner):
            _require_tuned(who, runs.name, before, after, spec_of)
    return after


def _require_tuned(
    who: str, block: str, before: Sequence[SolvedMatrix], after: Sequence[SolvedMatrix], spec_of: SpecOf
) -> None:
    """Raise unless these are the same matrices, each still exactly what its spec asks for."""
    if [one.matrix for one in after] != [one.matrix for one in before]:
        raise PlugInError(
            f"{who} did not return the matrices of {block!r}",
            expected=f"the {len(before)} that were solved",
            got=str(len(after)),
        )
    for one, old in zip(after, before, strict=True):
        spec = spec_of(one.matrix.name)
        assert spec is not None
        with located(f"{block}.{one.matrix}"):
            require_solved(who, one.solved, old.solved.weight, spec)


def _pack(block: str, solved: Sequence[SolvedMatrix]) -> list[Made]:
    return [
        one.solved.made(f"{block}.{one.matrix}", one.loss, one.tokens, transposed=one.matrix.transposed)
        for one in solved
    ]


def _sequences(
    model: nn.Module, settings: LlmConfig, pipeline: Pipeline, data: Text | None, tokenizer: Any
) -> Tensor | None:
    """The calibration data as [sequences, length], which the model must be able to read."""
    if data is None:
        if pipeline.names_with_data:
            raise _data_is_needed(f"the method {pipeline.names_with_data[0]!r}")
        return None
    asked = settings.CALIBRATION
    sequences = windows(as_ids(data, tokenizer), asked.SAMPLES, asked.LENGTH, asked.SEED)
    require_known(sequences, model)
    require_positions(sequences.shape[1], model, "CALIBRATION.LENGTH: ")
    return sequences


def _require_device(source: WeightSource, asked: str) -> None:
    """A module is quantized where it is; raise if the config names another device."""
    if asked != "auto" and torch.device(asked).type != source.device.type:
        raise SparsebitError(
            f"the model is on {source.device.type!r}, and the config names another device",
            where="DEVICE",
            got=asked,
            hint=f"call model.to({asked!r}), or leave DEVICE out",
        )


def _require_float(model: object) -> None:
    if is_quantized(model):
        raise SparsebitError("the model is quantized already", hint="pass the float model, or its folder")
    if not isinstance(model, nn.Module | str | os.PathLike):
        got = "None" if model is None else with_article(type(model).__name__)
        raise SparsebitError("llm.quantize takes a torch.nn.Module or a folder", got=got)


def _data_is_needed(what: str) -> SparsebitError:
    return SparsebitError(
        f"{what} needs calibration data",
        hint="pass data= (on the command line --text), or choose METHOD: rtn",
    )
