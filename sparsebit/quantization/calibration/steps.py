"""The steps of calibration: run the batches, then compute grids from the measurements."""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sparsebit.batches import Feed, NoBatchesError, explained, to_device
from sparsebit.errors import PlugInError, SparsebitError, is_plug_in, running_plug_in
from sparsebit.processes import (
    failing_together,
    gather_values,
    is_distributed,
    rank,
    require_same,
    take_from_first,
    world_size,
)
from sparsebit.quantization.algorithms import Algorithm, Job
from sparsebit.quantization.calibration.round import CalibrationRound, require_finite_tensors
from sparsebit.quantization.calibration.spill_list import SpillList
from sparsebit.quantization.quantizers import Quantizer
from sparsebit.storage import working_in

if TYPE_CHECKING:
    from sparsebit.quantization.quant_model import QuantModel


def run_loader(
    qmodel: QuantModel, loader: Any, batches: int | None, feed: Feed | None, shown: bool | None
) -> None:
    """Run a loader through the model; a batch that fails is named, and an error on one process ends all of them.

    One of several processes may have no batches.
    """
    with failing_together():
        calls = qmodel.inputs.calls(
            loader, batches, feed=feed, device=qmodel.device, what="calibrating", shown=shown
        )
        try:
            for number, call in enumerate(calls, 1):
                with explained(number, call, qmodel.inputs.example):
                    qmodel(*call.args, **call.kwargs)
        except NoBatchesError:
            if not is_distributed():
                raise


def finish_round(
    qmodel: QuantModel,
    *,
    asym: bool = False,
    w_quant: bool = False,
    a_quant: bool = False,
    folder: str | os.PathLike[str] | None = None,
    shown: bool | None = None,
) -> None:
    """Compute grids from measurements, with the recovery steps before and after; on failure, the round is cancelled.

    With several processes, each measures its own data. Recovery steps get the data of all processes, so that each does
    the same work, with the result of a single process.
    """
    require_asym(asym, w_quant, a_quant)
    calibration = require_measured(qmodel.calibration)
    qmodel.calibration = None  # from here the round is over, also if it fails
    held = folder if qmodel.recovery and not rank() else None
    with failing_together(), working_in(held):
        specs = (f"{name} {quantizer.spec}" for name, quantizer in calibration.quantizers.items())
        steps = str((qmodel.cfg.to_dict().get("SCHEDULE"), asym, w_quant, a_quant))
        require_same(chain(specs, [steps], qmodel.model.parameters()), "the model or its config")
        job = make_job(qmodel, calibration, folder, shown)
        with calibration.finishing():
            if before := [step for step in qmodel.recovery if step.stage == "before"]:
                calibration.drop_backup()
                for step in before:
                    _run_step(step, job)
                calibration.measure_again(shown)
            if asym:
                calibration.finish_in_order(qmodel.weights(), w_quant=w_quant, a_quant=a_quant, shown=shown)
            else:
                calibration.finish(qmodel.weights())
            require_grids(calibration.quantizers.values())
        if after := [step for step in qmodel.recovery if step.stage == "after"]:
            for step in after:
                _run_step(step, job)
            require_grids(qmodel.quantizers.values())
            names = ", ".join(step.NAME for step in after)
            require_finite_tensors(qmodel.model, where=f"after {names}", hint="leave out a recovery step")
    if qmodel.recovery:  # processors of different kinds may differ in the last bits
        take_from_first([*qmodel.model.state_dict().values(), *qmodel.record.shifts.values()])
    qmodel.record.sample = calibration.inputs[0] if len(calibration.inputs) else None


def _run_step(step: Algorithm, job: Job) -> None:
    """Run a recovery step; an error if one of the user's wrote into weights, which the user's model shares.

    Sums also show what was written through ``data``, which tensors do not count.
    """
    if not is_plug_in(step):
        step.apply(job)
        return
    own = {id(one) for quantizer in job.quantizers.values() for one in quantizer.parameters()}
    weights = {name: one for name, one in job.gm.named_parameters() if id(one) not in own}
    before = {name: _sums(one) for name, one in weights.items()}
    with running_plug_in(f"the recovery step {step.NAME!r} failed", step):
        step.apply(job)
    if changed := [name for name, one in weights.items() if _sums(one) != before[name]]:
        raise PlugInError(
            f"the recovery step {step.NAME!r} wrote into {changed[0]!r}, which your model shares",
            hint="use layer.set(weight=...) instead, and load the model again: its weights have changed",
        )


def _sums(tensor: Tensor) -> list[str]:
    values = tensor.detach()
    return [str(float(one.sum(dtype=torch.float64))) for one in (values, values.abs())]  # also of NaN


def require_grids(quantizers: Iterable[Quantizer]) -> None:
    """Raise for a grid that nothing can be rounded to; the quantizers and steps of others compute some."""
    for quantizer in quantizers:
        with running_plug_in(f"the quantizer of {quantizer.name!r} gave no grid", quantizer):
            expected = quantizer.find_problem()
        if expected is not None:
            raise SparsebitError(
                f"calibration gave {quantizer.name!r} a grid that cannot be used",
                expected=expected,
                got=f"scale {quantizer.scale.detach()!r:.120}",
                hint=f"look at the data, the quantizer {quantizer.spec.quantizer!r} and the config's recovery steps",
            )


def make_job(
    qmodel: QuantModel,
    calibration: CalibrationRound,
    folder: str | os.PathLike[str] | None = None,
    shown: bool | None = None,
) -> Job:
    """The input of recovery steps."""
    return Job(
        gm=qmodel.model,
        plan=qmodel.plan,
        quantizers=dict(calibration.quantizers),  # steps exchange some
        inputs=gather_inputs(calibration.inputs, qmodel.device) if qmodel.recovery else calibration.inputs,
        folder=Path(folder) if folder is not None else None,
        batch_norms=qmodel.record.batch_norms,
        shown=shown,
        shifts=qmodel.record.shifts,
    )


def gather_inputs(own: SpillList, device: torch.device) -> SpillList:
    """The recorded calls of all processes, those of the first process first."""
    if not is_distributed():
        return own
    by_rank = [SpillList() for _ in range(world_size())]
    for index in range(max(gather_values(len(own)))):
        mine = to_device(own[index], torch.device("cpu")) if index < len(own) else None
        for calls, call in zip(by_rank, gather_values(mine), strict=True):
            if call is not None:
                calls.append(call)
    together = SpillList()
    for calls in by_rank:
        for call in calls:
            together.append(to_device(call, device))
    return together


def require_measured(calibration: CalibrationRound | None) -> CalibrationRound:
    """The current round; an error if there is none, or if it received no data."""
    if calibration is None:
        raise SparsebitError(
            "calc_qparams() was called before prepare_calibration()",
            expected="prepare_calibration(), some batches, then calc_qparams()",
        )
    calibration.require_data()
    return calibration


def require_asym(asym: bool, w_quant: bool, a_quant: bool) -> None:
    """Raise an error for switches that have an effect only with ``asym=True``."""
    if (w_quant or a_quant) and not asym:
        raise SparsebitError(
            "w_quant and a_quant have an effect only with asym=True: they choose what is quantized before each layer",
            hint="pass asym=True, or switch quantization with set_quant() afterwards",
        )
