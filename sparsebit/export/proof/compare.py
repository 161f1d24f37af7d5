"""Run an exported file and compare it with the model it came from, tensor by tensor."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.fx import GraphModule

from sparsebit.export.forms.container import Container, container_of
from sparsebit.export.graph_export import Exported
from sparsebit.export.proof.bias_steps import bias_steps
from sparsebit.export.proof.codes import distance, float8_steps, relative_error, sqnr, unexplained
from sparsebit.export.proof.cut import CutModel, cut
from sparsebit.export.proof.fusion import integer_ops
from sparsebit.export.proof.report import CheckReport, OutputAgreement, TensorAgreement
from sparsebit.export.proof.torch_side import TorchRun, run_torch
from sparsebit.export.proof.weights import stored_weights
from sparsebit.export.translate.marker import Marked
from sparsebit.export.translate.undisturbed import on_cpu
from sparsebit.runtime.packages import require
from sparsebit.runtime.session import Session, open_session
from sparsebit.targets import TARGETS

Runtime = Literal["onnxruntime", "openvino"]
Call = tuple[Sequence[Any], Mapping[str, Any]]
Run = Callable[[Mapping[str, Any]], dict[str, Any]]

ROUNDING = 0.02  # steps of an 8-bit grid: what summing floats in another order may move a number by
KERNEL_MOST, KERNEL_SHARE = 1, 0.05  # what integer kernels that round in their own way may do
NBITS_MOST, NBITS_SHARE = 4, 0.5  # the same with MatMulNBits, which rounds its inputs to 8 bits
FLOAT8_MOST, FLOAT8_SHARE = 1, 1e-3
OUTPUT_ERROR = 1e-3  # of the largest value
KERNEL_ERROR = 1e-2  # the same, where kernels round: MatMulNBits does its inputs
LOWEST_SQNR = 10.0  # dB, of a whole file that is not cut


def check(
    gm: GraphModule, exported: Exported, calls: Iterable[Call], *, runtime: Runtime = "onnxruntime"
) -> CheckReport:
    """Compare a file with the quantized graph it was written from, on each of some calls.

    Every piece of the graph between quantized tensors is run on the codes torch has there, by the kernels the runtime
    uses for the whole file. So each code can be held against the number it was rounded from in torch: it must be what
    that number rounds to if it is moved by no more than float sums differ (0.02 steps of 8 bits) and half a step of the
    bias. A tensor with a single code that is not is looked at again, without the runtime's optimizations. If all
    its codes are explained then, the file is right and the kernel rounds in its own way (average pools do), which it
    may by one code and in a twentieth of them; otherwise the file is wrong. Outputs are judged likewise, by
    their largest value. Files for TensorRT are run without optimizations at once.

    Args:
        gm: the graph that was exported, quantizers still switched on.
        exported: what ``export_graph`` returned.
        calls: arguments of the model, ``(args, kwargs)`` each; some of the calibration data.
        runtime: ``onnxruntime`` or ``openvino``. A model in two files is compared in OpenVINO by weights and outputs.
    """
    checked: _Check | None = None
    gm = on_cpu(gm)
    for args, kwargs in calls:
        run = run_torch(gm, args, kwargs)
        checked = checked or _Check(exported, runtime, run)
        checked.take(run)
    if checked is None:
        raise ValueError("a check needs at least one call")
    return checked.report()


class _Check:
    """What accumulates over the calls."""

    def __init__(self, exported: Exported, runtime: Runtime, first: TorchRun) -> None:
        self.exported, self.runtime = exported, runtime
        self.folder = exported.path.parent
        self.optimize = TARGETS[exported.target].forms == "cpu"  # ONNX Runtime fuses no other forms right
        # weights in a file of their own stay there: such a model is larger than a protobuf message can be
        self.proto = require("onnx").load(str(exported.path), load_external_data=False)
        self.ops: Any = ()
        self.problems: list[str] = []
        self.whole = self._open_whole().run
        self.cut: CutModel | None = None
        self.pieces: Run | None = None
        self._plain: Run | None = None
        self.bias_steps = bias_steps(self.proto, self.folder)
        self.kernels_round = False
        if (
            runtime == "onnxruntime" or len(exported.files) == 1
        ):  # OpenVINO finds no second file for a cut model
            self.cut = cut(self.proto, {name: codes.dim() for name, codes in first.codes.items()})
            self.pieces = self._open(self.cut.proto).run
        self.tensors: dict[str, TensorAgreement] = {}
        self.outputs: dict[str, OutputAgreement] = {}
        self._compare_weights(first)

    def _open(self, model: Any, *, plain: bool = False, save_optimized: Path | None = None) -> Session:
        return open_session(
            model,
            runtime="onnxruntime" if plain else self.runtime,
            threads=torch.get_num_threads(),
            optimize="none" if plain or not self.optimize else "all",
            save_optimized=save_optimized,
            weights_folder=None if model is self.exported.path else self.folder,
        )

    def _open_whole(self) -> Session:
        if self.runtime != "onnxruntime" or not self.optimize:
            return self._open(self.exported.path)
        with tempfile.TemporaryDirectory() as folder:
            optimized = Path(folder) / "optimized.onnx"
            session = self._open(self.exported.path, save_optimized=optimized)
            graph = require("onnx").load(str(optimized), load_external_data=False)
            self.ops = integer_ops(self.proto, graph, TARGETS[self.exported.target].kernels)
        return session

    def _marked(self, name: str) -> Marked:
        return self.exported.markers.tensors[name.rpartition("@")[0] if "@" in name else name]

    def _compare_weights(self, run: TorchRun) -> None:
        for name, got in stored_weights(self.proto, self.folder):
            wanted = run.weights.get(name)
            if wanted is None:
                continue  # a bias
            off = int((torch.from_numpy(np.ascontiguousarray(got)).to(wanted.dtype) != wanted).sum())
            self.tensors[name] = TensorAgreement(
                name=name, side="W", elements=wanted.numel(), off=off, most=int(off > 0)
            )
            if off:
                self.problems.append(f"weight {name!r}: {off} of {wanted.numel()} numbers differ")
        missing = sorted(set(run.weights) - set(self.tensors))
        self.problems += [f"weight {name!r} is not in the file" for name in missing]

    def take(self, run: TorchRun) -> None:
        """Compare one call."""
        feed = {name: _array(x) for name, x in zip(self.exported.input_names, run.inputs, strict=True)}
        whole = self.whole(feed)
        if self.pieces is None or self.cut is None:
            self._compare_outputs(run, whole, whole)
            return
        for name, given in self.cut.feeds.items():
            feed[given] = (
                run.snapped[name].float().numpy() if name in self.cut.as_numbers else self._stored(run, name)
            )
        pieces = self.pieces(feed)
        suspects = [name for name in self.cut.reads if self._compare(run, name, pieces)]
        if suspects or self._outputs_off(run, pieces):
            if self._plain is None:
                self._plain = self._open(self.cut.proto, plain=True).run
            plain = self._plain(feed)
            for name in suspects:
                self._judge(run, name, pieces, plain)
            if self._outputs_off(run, pieces, KERNEL_ERROR / OUTPUT_ERROR) or self._outputs_off(run, plain):
                self._compare_outputs(run, pieces, whole)
                return
            self.kernels_round = True
        self._compare_outputs(run, pieces, whole)

    def _container(self, name: str) -> Container:
        unsigned = TARGETS[self.exported.target].forms == "cpu"
        return container_of(self._marked(name), unsigned_activations=unsigned, opset=self.exported.opset)

    def _stored(self, run: TorchRun, name: str) -> Any:
        """Codes as they stand in the file."""
        container = self._container(name)
        codes = run.codes[name].numpy().astype(np.int64) + container.shift
        return codes.astype(container.dtype.numpy())

    def _difference(self, run: TorchRun, name: str, got: Mapping[str, Any]) -> tuple[int, int, int]:
        """Codes that differ, by how much at most, and how many of them rounding does not explain."""
        assert self.cut is not None
        value, tensor = got[self.cut.reads[name]], self._marked(name)
        if name in self.cut.as_numbers:
            theirs = float8_steps(run.snapped[name].float().numpy(), tensor)
            off, most = distance(float8_steps(value, tensor), theirs)
            few = most <= FLOAT8_MOST and off <= max(1.0, FLOAT8_SHARE * theirs.size)
            return off, most, 0 if few else off
        off, most = distance(value, self._stored(run, name))
        if not off:
            return 0, 0, 0
        wide = 2.0 ** max(0, tensor.bits - 8)  # a 16-bit grid shows the rounding of float32 itself
        tolerance = ROUNDING * wide + self.bias_steps.get(name, 0.0)
        codes = np.asarray(value).astype(np.int64) - self._container(name).shift
        ends = (tensor.grid.code.low, tensor.grid.code.high)
        return off, most, unexplained(codes, run.unrounded[name].numpy(), tolerance, ends)

    def _compare(self, run: TorchRun, name: str, got: Mapping[str, Any]) -> bool:
        """Add up one tensor; returns whether it needs a second look."""
        off, most, wrong = self._difference(run, name, got)
        before = self.tensors.get(name, TensorAgreement(name=name, side="A", elements=0, off=0, most=0))
        self.tensors[name] = replace(
            before,
            elements=before.elements + run.codes[name].numel(),
            off=before.off + off,
            most=max(before.most, most),
        )
        return wrong > 0

    def _judge(self, run: TorchRun, name: str, pieces: Mapping[str, Any], plain: Mapping[str, Any]) -> None:
        """Whose fault it is that codes differ."""
        elements, agreement = run.codes[name].numel(), self.tensors[name]
        off, most, wrong = self._difference(run, name, plain)
        if wrong:
            self.tensors[name] = replace(agreement, blame="file", unexplained=agreement.unexplained + wrong)
            self.problems.append(
                f"tensor {name!r}: {off} of {elements} codes differ, by {most} at most; "
                f"rounding does not explain {wrong}"
            )
            return
        off, most, wrong = self._difference(run, name, pieces)
        self.tensors[name] = replace(agreement, blame="kernel", unexplained=agreement.unexplained + wrong)
        rounds_inputs = any(op.runs_as == "MatMulNBits" for op in self.ops)
        most_allowed, share = (NBITS_MOST, NBITS_SHARE) if rounds_inputs else (KERNEL_MOST, KERNEL_SHARE)
        if most > most_allowed or off > max(1.0, share * elements):
            self.problems.append(
                f"tensor {name!r}: the file is right, but the integer kernel of {self.runtime} gives other codes "
                f"in {off} of {elements} places, by {most} at most"
            )

    def _outputs_off(self, run: TorchRun, got: Mapping[str, Any], times: float = 1.0) -> bool:
        return any(
            relative_error(got[name], wanted) > times * _limit(wanted)
            for name, wanted in zip(self.exported.output_names, run.outputs, strict=True)
        )

    def _compare_outputs(self, run: TorchRun, pieces: Mapping[str, Any], whole: Mapping[str, Any]) -> None:
        for name, wanted in zip(self.exported.output_names, run.outputs, strict=True):
            error, ratio = relative_error(pieces[name], wanted), sqnr(whole[name], wanted)
            before = self.outputs.get(name)
            if before is not None:
                error, ratio = max(error, before.error), min(ratio, before.sqnr_db)
            self.outputs[name] = OutputAgreement(name=name, error=error, sqnr_db=ratio)
            limit = _limit(wanted) * (KERNEL_ERROR / OUTPUT_ERROR if self.kernels_round else 1)
            if (error > limit) if self.pieces is not None else (ratio < LOWEST_SQNR):
                self.problems.append(
                    f"output {name!r} differs by {error:.1e} of its largest value ({ratio:.0f} dB)"
                )
            elif whole[name].shape != tuple(wanted.shape):
                self.problems.append(
                    f"output {name!r} has shape {whole[name].shape}, not {tuple(wanted.shape)}"
                )

    def report(self) -> CheckReport:
        """Everything so far."""
        return CheckReport(
            path=self.exported.path,
            runtime=self.runtime,
            tensors=tuple(self.tensors.values()),
            outputs=tuple(self.outputs.values()),
            ops=tuple(self.ops),
            problems=tuple(dict.fromkeys(self.problems)),
        )


def _limit(wanted: Tensor) -> float:
    return (
        2e-2
        if wanted.dtype in (torch.float16, torch.bfloat16) or not wanted.dtype.is_floating_point
        else OUTPUT_ERROR
    )


def _array(x: Tensor) -> Any:
    if x.dtype == torch.bfloat16:
        return x.contiguous().view(torch.int16).numpy().view(require("ml_dtypes").bfloat16)
    return x.numpy()
