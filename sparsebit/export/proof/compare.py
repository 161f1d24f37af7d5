"""Run an exported file and compare it with the model it came from: end to end, and tensor by tensor."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.fx import GraphModule

from sparsebit.errors import ExportError
from sparsebit.export.forms.container import Container, container_of
from sparsebit.export.graph_export import Exported
from sparsebit.export.numbers import (
    distance,
    distinct_share,
    float8_steps,
    relative_error,
    same_numbers,
    unexplained,
)
from sparsebit.export.proof.file_side import CutModel, cut, rounding_steps, stored_weights
from sparsebit.export.proof.fusion import float_ops, integer_ops
from sparsebit.export.proof.outputs import OutputTally
from sparsebit.export.proof.report import CheckReport, TensorAgreement
from sparsebit.export.proof.torch_side import TorchRun, run_torch
from sparsebit.export.translate.marker import Marked
from sparsebit.export.translate.undisturbed import on_cpu
from sparsebit.quantization.quantizers import Quantizer
from sparsebit.runtime.arrays import as_array
from sparsebit.runtime.packages import require
from sparsebit.runtime.session import Session, SessionError, open_session
from sparsebit.targets import TARGETS

Call = tuple[Sequence[Any], Mapping[str, Any]]
Run = Callable[[Mapping[str, Any]], dict[str, Any]]


@dataclass(frozen=True)
class Allowance:
    """The allowed difference of a kernel: for quantized values in steps and as a share, for outputs as a fraction."""

    steps: int
    share: float
    output: float  # of the largest value


ROUNDING = 0.02  # steps of an 8-bit grid: the change of a number from summing floats in another order
HALF_ROUNDING = 0.5  # the same for sums in half precision: 255 steps times 2^-10, twice
OUTPUT_ERROR = 1e-3  # of the largest value
ROUNDS_RESULTS = Allowance(1, 0.05, 1e-2)  # integer kernels that round in their own way; average pools do
ROUNDS_INPUTS = Allowance(4, 0.5, 5e-2)  # kernels that round their inputs to 8 bits once more
ROUNDING_INPUTS = ("MatMulNBits", "DynamicQuantizeMatMul")
FLOAT8 = Allowance(1, 1e-3, 0.0)
LOWEST_SQNR = 10.0  # dB, of a complete file that is not cut


def check(
    gm: GraphModule, exported: Exported, calls: Iterable[Call], *, runtime: str = "onnxruntime"
) -> CheckReport:
    """Compare a file with the graph it was written from, on each of some calls.

    *End to end*: the complete file and the complete model get the same inputs, and their outputs are compared. That is
    what a user would measure. It proves nothing: one value that rounds the other way changes later values.

    *Piece by piece*: every piece of the graph between quantized tensors is run on the quantized values torch has there,
    by the kernels the runtime uses for the whole file. Each result must be what the number in torch rounds to if it
    is moved by no more than float sums differ (0.02 steps of 8 bits) and half a step of the bias. A tensor with a
    single value that is not is looked at again, without the runtime's optimizations. If all its values are explained
    then, the file is right and the kernel rounds in its own way, which it may by one step and for a twentieth of the
    distinct numbers; otherwise the file is wrong. If it differs by more, the file is cut around this piece alone: the
    runtime may choose another kernel for a piece whose neighbours are cut off too. Outputs are judged likewise, by
    their largest value. Files for TensorRT are run without optimizations at once.

    Args:
        gm: the graph that was exported.
        exported: what ``export_graph`` returned.
        calls: arguments of the model, ``(args, kwargs)`` each; some of the calibration data.
        runtime: ``onnxruntime`` or ``openvino``. A model in two files is compared in OpenVINO by weights and outputs.

    Raises:
        ExportError: the runtime cannot open or run the file.
    """
    checked: _Check | None = None
    gm = on_cpu(gm)
    try:
        for args, kwargs in calls:
            run = run_torch(gm, args, kwargs, quantized=exported.quantized)
            checked = checked or _Check(gm, exported, runtime, run)
            checked.take(run)
    except SessionError as error:
        raise ExportError(
            error.message,
            where=exported.path.name,
            expected=error.expected,
            got=error.got,
            hint="check=False writes the file without running it; another target may write the operator differently",
        ) from error
    if checked is None:
        raise ExportError(
            "a check needs at least one call", hint="pass calls=[(args, kwargs), ...] with some of your data"
        )
    return checked.report()


class _Check:
    """The state that accumulates over the calls."""

    def __init__(self, gm: GraphModule, exported: Exported, runtime: str, first: TorchRun) -> None:
        self.exported, self.runtime = exported, runtime
        self.folder = exported.path.parent
        self.target = TARGETS[exported.target]
        self.optimize = self.target.forms == "cpu"  # the forms that ONNX Runtime fuses correctly
        self.ops: Any = ()
        self.float_ops: Mapping[str, int] = {}
        self.problems: list[str] = []
        self.allowed = ROUNDS_RESULTS  # how far the runtime's kernels may differ
        self.tensors: dict[str, TensorAgreement] = {}
        self.outputs = {name: OutputTally(name) for name in exported.output_names}
        self.output_error = max(OUTPUT_ERROR, _token_step(gm) if exported.quantized else 0.0)
        model = require("onnx_ir").load(exported.path)  # weights in a file of their own stay there
        self.whole = self._open_whole(model).run
        floats = [x.abs().max() for x in first.inputs if x.is_floating_point() and x.numel()]
        self.rounding_steps = rounding_steps(model, max(map(float, floats), default=0.0))
        self._compare_weights(model, first)
        self.cut: CutModel | None = None
        self.pieces: Run | None = None
        self._plain: Run | None = None
        # OpenVINO finds no second file for a cut model
        self.ranks = {name: codes.dim() for name, codes in first.codes.items()}
        self._alone: dict[str, Run] = {}
        if runtime == "onnxruntime" or len(exported.files) == 1:
            self.cut = cut(model, self.ranks)
            self.pieces = self._open(self.cut.proto).run
        self._require_all(gm, first)

    def _open(self, model: Any, *, plain: bool = False, save_optimized: Path | None = None) -> Session:
        return open_session(
            model,
            runtime="onnxruntime" if plain else self.runtime,
            threads=torch.get_num_threads(),
            optimize="none" if plain or not self.optimize else "all",
            save_optimized=save_optimized,
            weights_folder=None if model is self.exported.path else self.folder,
            isolated=True,
        )

    def _open_whole(self, model: Any) -> Session:
        if self.runtime != "onnxruntime" or not self.optimize:
            return self._open(self.exported.path)
        with tempfile.TemporaryDirectory() as folder:
            optimized = Path(folder) / "optimized.onnx"
            session = self._open(self.exported.path, save_optimized=optimized)
            made = require("onnx_ir").load(optimized)
            self.ops = integer_ops(model, made, self.target.kernels)
            self.float_ops = float_ops(made)
            if any(node.op_type in ROUNDING_INPUTS for node in made.graph):
                self.allowed = ROUNDS_INPUTS
        return session

    def _marked(self, name: str) -> Marked:
        return self.exported.markers.tensors[name.rpartition("@")[0] if "@" in name else name]

    def _compare_weights(self, model: Any, run: TorchRun) -> None:
        for name, got in stored_weights(model):
            wanted = run.weights.get(name)
            if wanted is None:
                continue  # a bias
            wrong = int(np.count_nonzero(~same_numbers(got, wanted)))
            self.tensors[name] = TensorAgreement(
                name=name, side="W", elements=wanted.numel(), mismatched=wrong, largest=int(wrong > 0)
            )
            if wrong:
                self.problems.append(f"weight {name!r}: {wrong} of {wanted.numel()} numbers differ")

    def _require_all(self, gm: GraphModule, run: TorchRun) -> None:
        """Check that everything quantized in the model is quantized in the file."""
        present = {*self.tensors, *(self.cut.reads if self.cut is not None else run.codes)}
        for kind, names in (("weight", run.weights), ("activation", run.codes)):
            self.problems += [f"{kind} {name!r} is not in the file" for name in sorted(set(names) - present)]
        planned = sum(isinstance(m, Quantizer) and not m.fake_fused for m in gm.modules())
        written = run.weights or run.codes or self.exported.markers.dynamic
        if planned and self.exported.quantized and not written:
            self.problems.append(f"the model has {planned} quantizers, and the file has no quantized tensor")

    def take(self, run: TorchRun) -> None:
        """Compare one call."""
        feed = {name: as_array(x) for name, x in zip(self.exported.input_names, run.inputs, strict=True)}
        whole = self.whole(feed)
        for name, wanted in zip(self.exported.output_names, run.outputs, strict=True):
            self.outputs[name].add(whole[name], wanted)
            if tuple(whole[name].shape) != tuple(wanted.shape):
                self.problems.append(
                    f"output {name!r} has shape {whole[name].shape}, not {tuple(wanted.shape)}"
                )
        if self.pieces is not None and self.cut is not None:
            self._take_pieces(run, feed, self.cut, self.pieces)

    def _take_pieces(self, run: TorchRun, feed: dict[str, Any], cut: CutModel, run_pieces: Run) -> None:
        for name, given in cut.feeds.items():
            feed[given] = (
                run.snapped[name].float().numpy() if name in cut.as_numbers else self._stored(run, name)
            )
        pieces = run_pieces(feed)
        suspects = [name for name in cut.reads if not self._is_explained(run, name, pieces)]
        limit, kernels_differ = self.output_error, False
        if suspects or self._outputs_differ(run, pieces, limit):
            if self._plain is None:
                self._plain = self._open(cut.proto, plain=True).run
            plain = self._plain(feed)
            for name in suspects:
                self._judge(run, name, feed, pieces, plain)
            if not self._outputs_differ(run, plain, limit):  # the file is right, the kernels round
                limit, kernels_differ = max(limit, self.allowed.output), True
        for name, wanted in zip(self.exported.output_names, run.outputs, strict=True):
            tally, error = self.outputs[name], relative_error(pieces[name], wanted)
            if kernels_differ and error > _limit(wanted, limit):
                error = relative_error(self._run_alone(name, feed)[name], wanted)
            tally.piece_error = max(error, tally.piece_error or 0.0)
            if error > _limit(wanted, limit):
                self.problems.append(f"output {name!r} differs by {error:.1e} of its largest value")

    def _run_alone(self, output: str, feed: Mapping[str, Any]) -> Mapping[str, Any]:
        """Run the file cut only at the tensors that one output of the cut file is computed from, and at itself."""
        assert self.cut is not None
        if output not in self._alone:
            model = require("onnx_ir").load(self.exported.path)
            own = {name for name, read in self.cut.reads.items() if read == output}
            part = cut(model, {name: self.ranks[name] for name in self.cut.sources[output] | own})
            self._alone[output] = self._open(part.proto).run
        return self._alone[output](feed)

    def _container(self, name: str) -> Container:
        unsigned = self.target.forms == "cpu"
        return container_of(self._marked(name), unsigned_activations=unsigned, opset=self.exported.opset)

    def _stored(self, run: TorchRun, name: str) -> Any:
        """Quantized values as they are stored in the file."""
        container = self._container(name)
        codes = run.codes[name].numpy().astype(np.int64) + container.shift
        return codes.astype(container.dtype.numpy())

    def _difference(self, run: TorchRun, name: str, got: Mapping[str, Any]) -> tuple[int, int, int]:
        """How many values differ, by how much at most, and how many of them are not explained by rounding."""
        assert self.cut is not None
        value, tensor = got[self.cut.reads[name]], self._marked(name)
        if name in self.cut.as_numbers:
            theirs = float8_steps(run.snapped[name].float().numpy(), tensor)
            count, most = distance(float8_steps(value, tensor), theirs)
            few = most <= FLOAT8.steps and count <= max(1.0, FLOAT8.share * theirs.size)
            return count, most, 0 if few else count
        count, most = distance(value, self._stored(run, name))
        if not count:
            return 0, 0, 0
        wide = 2.0 ** max(0, tensor.bits - 8)  # a 16-bit grid shows the rounding of float32 itself
        rounding = HALF_ROUNDING if tensor.dtype == torch.float16 else ROUNDING
        tolerance = rounding * wide + self.rounding_steps.get(name, 0.0)
        codes = np.asarray(value).astype(np.int64) - self._container(name).shift
        ends = (tensor.grid.code.low, tensor.grid.code.high)
        return count, most, unexplained(codes, run.unrounded[name].numpy(), tolerance, ends)

    def _is_explained(self, run: TorchRun, name: str, got: Mapping[str, Any]) -> bool:
        """Compare one tensor; False if it must be checked again without optimizations."""
        count, most, wrong = self._difference(run, name, got)
        if not wrong:
            self._add(run, name, count, most)
        return not wrong

    def _add(
        self, run: TorchRun, name: str, count: int, most: int, *, blame: str = "", wrong: int = 0
    ) -> None:
        new = TensorAgreement(name=name, side="A", elements=0, mismatched=0, largest=0)
        before = self.tensors.get(name, new)
        self.tensors[name] = replace(
            before,
            elements=before.elements + run.codes[name].numel(),
            mismatched=before.mismatched + count,
            largest=max(before.largest, most),
            unexplained=before.unexplained + wrong,
            blame=blame or before.blame,
        )

    def _judge(
        self,
        run: TorchRun,
        name: str,
        feed: Mapping[str, Any],
        pieces: Mapping[str, Any],
        plain: Mapping[str, Any],
    ) -> None:
        """Decide whether the file or a kernel causes the difference of values."""
        assert self.cut is not None
        elements = run.codes[name].numel()
        count, most, wrong = self._difference(run, name, plain)
        if wrong:
            self._add(run, name, *self._difference(run, name, pieces)[:2], blame="file", wrong=wrong)
            self.problems.append(
                f"tensor {name!r}: {count} of {elements} quantized values differ, by {most} at most; "
                f"rounding does not explain {wrong}"
            )
            return
        if self._exceeds(run, name, pieces):
            pieces = self._run_alone(self.cut.reads[name], feed)
        count, most, wrong = self._difference(run, name, pieces)
        self._add(run, name, count, most, blame="kernel" if wrong else "", wrong=wrong)
        if wrong and self._exceeds(run, name, pieces):
            self.problems.append(
                f"tensor {name!r}: the file is right, but the integer kernel of {self.runtime} gives other quantized "
                f"values in {count} of {elements} places, by {most} at most"
            )

    def _exceeds(self, run: TorchRun, name: str, got: Mapping[str, Any]) -> bool:
        """Whether values differ by more than a kernel may round in its own way."""
        assert self.cut is not None
        count, most, _ = self._difference(run, name, got)
        share = count / run.codes[name].numel() if count > 1 else 0.0
        if share and name in run.unrounded:
            differs = np.asarray(got[self.cut.reads[name]]) != self._stored(run, name)
            share = min(share, distinct_share(run.unrounded[name].numpy(), differs))
        return most > self.allowed.steps or share > self.allowed.share

    def _outputs_differ(self, run: TorchRun, got: Mapping[str, Any], limit: float) -> bool:
        return any(
            relative_error(got[name], wanted) > _limit(wanted, limit)
            for name, wanted in zip(self.exported.output_names, run.outputs, strict=True)
        )

    def report(self) -> CheckReport:
        """The report of all calls so far."""
        outputs = tuple(tally.agreement() for tally in self.outputs.values())
        if not any(tally.finite for tally in self.outputs.values()) and not self.problems:
            self.problems.append("nothing was compared: all outputs are empty, or hold NaN or infinity only")
        if self.pieces is None or self._alone:  # the kernels of the whole file are not those of the pieces
            self.problems += [
                f"output {output.name!r}: {output}" for output in outputs if output.sqnr_db < LOWEST_SQNR
            ]
        return CheckReport(
            path=self.exported.path,
            runtime=self.runtime,
            tensors=tuple(self.tensors.values()),
            outputs=outputs,
            ops=tuple(self.ops),
            float_ops=self.float_ops,
            problems=tuple(dict.fromkeys(self.problems)),
        )


def _token_step(gm: GraphModule) -> float:
    """One step of the coarsest per-token grid: the file is not cut there, so a differently rounded value is visible."""
    bits = [m.bit for m in gm.modules() if isinstance(m, Quantizer) and m.layout.kind == "token"]
    return 2.0 ** (1 - min(bits)) if bits else 0.0


def _limit(wanted: Tensor, limit: float) -> float:
    exact = wanted.dtype in (torch.float32, torch.float64)
    return limit if exact or wanted.dtype.is_complex else max(limit, 2e-2)
