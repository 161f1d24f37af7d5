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

from sparsebit.batches import device_of
from sparsebit.config.llm import LlmConfig, load_llm_config
from sparsebit.errors import SparsebitError, with_article
from sparsebit.llm.blocks.calls import BlockRuns, BlockStreams, record_calls, returns_tuple
from sparsebit.llm.blocks.solve import run_block, solve_block, solve_without_data
from sparsebit.llm.blocks.spill import spilled
from sparsebit.llm.choose_widths import choose_widths
from sparsebit.llm.finished_blocks import FinishedBlocks, config_text, digest_outside_blocks
from sparsebit.llm.folders.source import WeightSource
from sparsebit.llm.language_model import LanguageModel, Made, is_quantized
from sparsebit.llm.methods.pipeline import Pipeline
from sparsebit.llm.methods.solver import SolvedMatrix, SpecOf
from sparsebit.llm.plan import Plan
from sparsebit.llm.solve_outside import solve_outside
from sparsebit.llm.tokens import Text, as_ids, read_tokenizer, require_known, require_positions, windows
from sparsebit.numerics.packed import PackedTensor
from sparsebit.processes import failing_together, is_distributed, rank, require_same
from sparsebit.progress import progress as shown_progress
from sparsebit.storage import working_in

BATCH = 8  # sequences that run through a block at once


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

    Args:
        model: a module with repeated blocks, or a folder that ``save_pretrained`` wrote, which is then read block by
            block.
        data: token ids, a text, or the path of a text file for calibration; some methods need none.
        config: a preset's name, a YAML file, or a dict; see ``docs/how-to/language_models.md``.
            Several processes of ``torchrun`` divide the batches: call it on each, with the same model, data and config.
        tokenizer: for texts; by default the one in the model's folder.
        folder: where finished blocks are saved; a run that was stopped resumes from there, with the same result.
            They stay there: remove the folder once the model is saved.
        progress: whether to show a bar; by default on a terminal.

    Returns:
        the model with packed weights, and a record of each. The given model is unchanged.
    """
    with failing_together(), working_in(None if rank() else folder):
        settings = load_llm_config(config)
        _require_float(model)
        source = WeightSource.open(model)
        with torch.inference_mode(False):  # its tensors could not be learned from
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
    sequences = _sequences(settings, pipeline, data, tokenizer)
    if sequences is not None:
        require_known(sequences, source.model)
        require_positions(sequences.shape[1], source.model, "CALIBRATION.LENGTH: ")
    if is_distributed():
        keeps = "in a folder" if folder is not None else "nowhere"
        require_same([config_text(settings), keeps, digest_outside_blocks(source)], "the model or its config")
    require_same([] if sequences is None else [sequences], "the calibration data")
    plan = Plan(source, settings)
    finished = FinishedBlocks.open(folder, settings, sequences, source)
    result = LanguageModel(source.model, {}, [], tokenizer, plan.ignored)
    prepare = [one.start(source.model, source.stack) for one in pipeline.preparations]
    streams = _start(source, sequences, follow=pipeline.follows)
    streams.half = settings.CALIBRATION.DTYPE == "bfloat16"
    for one in streams.recorded:
        one.hidden = one.hidden[:0]  # held by the streams, on disk if large
    if settings.BUDGET.BITS or settings.BUDGET.BYTES:
        few = sequences[: settings.BUDGET.SAMPLES] if sequences is not None else None
        if few is None:
            raise _data_is_needed("BUDGET")
        choose_widths(source, plan, settings, _start(source, few, follow=False).recorded, few)
    for index, name in enumerate(shown_progress(source.stack.names, "quantizing blocks", shown=progress)):
        runs = streams.runs(source.fill(name), index, name)
        earlier = finished.read(index, name, runs.block)
        if earlier is None or streams.floats is not None:
            for change in prepare:
                change(runs, plan.inside(name))
        if earlier is None:
            solved, floats, outputs = _compress(runs, streams.floats, plan.inside(name), pipeline)
            made = _pack(name, solved)
            require_same((one.solved.weight for one in solved), f"what {name!r} becomes")
            finished.write(index, name, made, runs.block)
            plan.note_unseen(name, made)
            del solved  # two float copies of the block, otherwise in memory until the next one is solved
        else:
            made = earlier.made
            floats = None if streams.floats is None else run_block(runs.on(streams.floats))
            earlier.restore(runs.block, name)
            outputs = run_block(runs)
        result.add(made)
        streams.hidden, streams.floats = outputs, floats
        del runs  # and with it the block's inputs
    result.add(solve_outside(source, plan, pipeline.solver, streams))
    return result


@torch.no_grad()
def _start(source: WeightSource, sequences: Tensor | None, *, follow: bool) -> BlockStreams:
    if sequences is None:
        return BlockStreams([], [], None)
    first = source.fill(source.stack.names[0])
    sequences = sequences.to(device_of(first))
    as_tuple = returns_tuple(source.model, source.stack, sequences[:1])
    ids = sequences.split(BATCH)
    recorded = [record_calls(source.model, source.stack, batch, as_tuple=as_tuple) for batch in ids]
    single = record_calls(source.model, source.stack, sequences[:1], as_tuple=as_tuple)
    hidden = spilled(one.hidden for one in recorded)
    return BlockStreams(recorded, hidden, hidden if follow else None, ids, as_tuple, single=single)


def _compress(
    runs: BlockRuns, inputs: Sequence[Tensor] | None, spec_of: SpecOf, pipeline: Pipeline
) -> tuple[list[SolvedMatrix], Sequence[Tensor] | None, Sequence[Tensor]]:
    """Run all steps on one block, and return the hidden states after it in the float and the compressed model.

    ``inputs`` are those of the block in the float model. The hidden states come from the block with
    dequantized float weights. The packed block computes the same up to the rounding of sums, but a resumed run must
    continue with identical values.
    """
    if not runs.calls:
        return solve_without_data(runs.block, spec_of, pipeline.solver), None, []
    aims = {tuner.follow for tuner in pipeline.tuners}
    plain: Sequence[Tensor] = run_block(runs) if any(aim < 1 for aim in aims) else []
    found = solve_block(runs, inputs, spec_of, pipeline.solver)
    solved, floats, replay = found
    for tuner in pipeline.tuners:
        targets = list(floats if tuner.follow and floats is not None else plain)
        if 0 < tuner.follow < 1:
            targets = [own.lerp(one, tuner.follow) for own, one in zip(plain, targets, strict=True)]
        solved = tuner.tune(runs, targets, solved)
    return solved, floats, run_block(runs, None if pipeline.tuners else replay)


def _pack(block: str, solved: Sequence[SolvedMatrix]) -> list[Made]:
    made = []
    for one in solved:
        found = one.solved
        held = None if found.grid is None else PackedTensor.of(found.weight, found.grid)
        zeros = "" if found.kept is None else f"{1 - float(found.kept.float().mean()):.0%} of it is zero"
        remark = "; ".join(filter(None, (found.remark, zeros)))
        made.append(Made(f"{block}.{one.matrix}", held, one.loss, one.tokens, remark, one.matrix.transposed))
    return made


def _sequences(settings: LlmConfig, pipeline: Pipeline, data: Text | None, tokenizer: Any) -> Tensor | None:
    if data is None:
        if pipeline.names_with_data:
            raise _data_is_needed(f"the method {pipeline.names_with_data[0]!r}")
        return None
    ids = as_ids(data, tokenizer)
    asked = settings.CALIBRATION
    return windows(ids, asked.SAMPLES, asked.LENGTH, asked.SEED)


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
