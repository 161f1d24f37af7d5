"""Run an exported file and compare it with the model it came from, tensor by tensor."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.fx import GraphModule

from sparsebit.export.check.codes import distance, float8_steps, relative_error, sqnr
from sparsebit.export.check.cut import CutModel, cut
from sparsebit.export.check.fusion import integer_ops
from sparsebit.export.check.report import CheckReport, OutputAgreement, TensorAgreement
from sparsebit.export.check.runtime import Run, in_onnxruntime, in_openvino
from sparsebit.export.check.torch_side import TorchRun, run_torch
from sparsebit.export.check.weights import stored_weights
from sparsebit.export.container import container_of
from sparsebit.export.export_graph import REWRITTEN, Exported
from sparsebit.export.marker import Marked
from sparsebit.export.packages import require

Runtime = Literal["onnxruntime", "openvino"]
Call = tuple[Sequence[Any], Mapping[str, Any]]

MOST_OFF = 1  # codes, where both round the same number
SHARE_OFF = 1e-3  # of the codes of a tensor; beyond it a second look is taken
WRONG_MOST, WRONG_SHARE = 2, 1e-2  # beyond these the file is wrong; between them a rounded bias explains it
FEW = 3  # codes off in a small tensor allow no conclusion
OUTPUT_ERROR = 1e-2  # of the largest value
LOWEST_SQNR = 10.0  # dB, of a whole file that is not cut
LARGEST_CUT = 1_500_000_000  # bytes of a model that is cut in memory


def check(
    gm: GraphModule, exported: Exported, calls: Iterable[Call], *, runtime: Runtime = "onnxruntime"
) -> CheckReport:
    """Compare a file with the quantized graph it was written from, on each of some calls.

    Every piece of the graph between quantized tensors is run on the codes torch has there, by the kernels the runtime
    uses for the whole file. A tensor whose codes differ more than rounding explains is run again without the runtime's
    optimizations: if that agrees, the file is right and the kernel rounds in its own way (average pools do).

    Args:
        gm: the graph that was exported, quantizers still switched on.
        exported: what ``export_graph`` returned.
        calls: arguments of the model, ``(args, kwargs)`` each; some of the calibration data.
        runtime: ``onnxruntime``; or ``openvino`` for weights and outputs of the whole file (its plugin computes cut
            models differently from whole ones, so codes cannot be compared there).
    """
    checked: _Check | None = None
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
        onnx = require("onnx")
        self.proto = onnx.load(str(exported.path)) if exported.bytes < LARGEST_CUT else None
        self.ops: Any = ()
        self.problems: list[str] = []
        self.whole = self._open_whole()
        self.cut: CutModel | None = None
        self.pieces: Run | None = None
        self._plain: Run | None = None
        if self.proto is not None and runtime == "onnxruntime":
            self.cut = cut(self.proto, {name: codes.dim() for name, codes in first.codes.items()})
            self.pieces = in_onnxruntime(self.cut.proto)
        self.tensors: dict[str, TensorAgreement] = {}
        self.outputs: dict[str, OutputAgreement] = {}
        self._compare_weights(first)

    def _open(self, model: Any) -> Run:
        return in_openvino(model) if self.runtime == "openvino" else in_onnxruntime(model)

    def _open_whole(self) -> Run:
        if self.runtime == "openvino" or self.proto is None:
            return self._open(self.exported.path)
        onnx = require("onnx")
        with tempfile.TemporaryDirectory() as folder:
            optimized = Path(folder) / "optimized.onnx"
            run = in_onnxruntime(self.exported.path, optimized=optimized)
            self.ops = integer_ops(self.proto, onnx.load(str(optimized)))
        return run

    def _marked(self, name: str) -> Marked:
        return self.exported.markers.tensors[name.rpartition("@")[0] if "@" in name else name]

    def _compare_weights(self, run: TorchRun) -> None:
        if self.proto is None:
            return
        stored = stored_weights(self.proto)
        for name, wanted in run.weights.items():
            if name not in stored:
                self.problems.append(f"weight {name!r} is not in the file")
                continue
            got, right = stored[name], wanted.float().numpy()
            off = int(np.count_nonzero(got.astype(wanted.float().numpy().dtype) != right))
            if wanted.dtype != torch.float32:
                off = int(
                    np.count_nonzero(torch.from_numpy(np.ascontiguousarray(got)).to(wanted.dtype) != wanted)
                )
            self.tensors[name] = TensorAgreement(
                name=name, side="W", elements=right.size, off=off, most=int(off > 0)
            )
            if off:
                self.problems.append(f"weight {name!r}: {off} of {right.size} numbers differ")

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
                self._plain = in_onnxruntime(self.cut.proto, optimize=False)
            plain = self._plain(feed)
            for name in suspects:
                self._judge(run, name, plain)
            pieces |= {name: plain[name] for name in self.exported.output_names if name in plain}
        self._compare_outputs(run, pieces, whole)

    def _stored(self, run: TorchRun, name: str) -> Any:
        """Codes as they stand in the file."""
        tensor = self._marked(name)
        container = container_of(
            tensor, unsigned_activations=self.exported.target in REWRITTEN, opset=self.exported.opset
        )
        codes = run.codes[name].numpy().astype(np.int64) + container.shift
        return codes.astype(container.dtype.numpy())

    def _difference(self, run: TorchRun, name: str, got: Mapping[str, Any]) -> tuple[int, int]:
        assert self.cut is not None
        value = got[self.cut.reads[name]]
        if name in self.cut.as_numbers:
            tensor = self._marked(name)
            return distance(
                float8_steps(value, tensor), float8_steps(run.snapped[name].float().numpy(), tensor)
            )
        return distance(value, self._stored(run, name))

    def _compare(self, run: TorchRun, name: str, got: Mapping[str, Any]) -> bool:
        """Add up one tensor; returns whether it needs a second look."""
        off, most = self._difference(run, name, got)
        elements = run.codes[name].numel()
        before = self.tensors.get(name, TensorAgreement(name=name, side="A", elements=0, off=0, most=0))
        self.tensors[name] = replace(
            before, elements=before.elements + elements, off=before.off + off, most=max(before.most, most)
        )
        return self._is_off(name, elements, off, most, MOST_OFF, SHARE_OFF)

    def _is_off(
        self, name: str, elements: int, off: int, most: int, most_allowed: int, share_allowed: float
    ) -> bool:
        wide = max(1, 2 ** (self._marked(name).bits - 8))  # a 16-bit grid shows float32 rounding itself
        share = off / max(elements, 1)
        return most > most_allowed * wide or (wide == 1 and share > share_allowed and off > FEW)

    def _judge(self, run: TorchRun, name: str, plain: Mapping[str, Any]) -> None:
        off, most = self._difference(run, name, plain)
        elements = run.codes[name].numel()
        agreement = self.tensors[name]
        if self._is_off(name, elements, off, most, WRONG_MOST, WRONG_SHARE):
            self.tensors[name] = replace(agreement, blame="file")
            self.problems.append(f"tensor {name!r}: {off} of {elements} codes differ, by {most} at most")
        elif self._is_off(name, elements, off, most, MOST_OFF, SHARE_OFF):
            self.tensors[name] = replace(agreement, blame="rounding")
        else:
            self.tensors[name] = replace(agreement, blame="kernel")

    def _outputs_off(self, run: TorchRun, got: Mapping[str, Any]) -> bool:
        return any(
            relative_error(got[name], wanted) > _limit(wanted)
            for name, wanted in zip(self.exported.output_names, run.outputs, strict=True)
        )

    def _compare_outputs(self, run: TorchRun, pieces: Mapping[str, Any], whole: Mapping[str, Any]) -> None:
        for name, wanted in zip(self.exported.output_names, run.outputs, strict=True):
            error, ratio = relative_error(pieces[name], wanted), sqnr(whole[name], wanted)
            before = self.outputs.get(name)
            if before is not None:
                error, ratio = max(error, before.error), min(ratio, before.sqnr_db)
            self.outputs[name] = OutputAgreement(name=name, error=error, sqnr_db=ratio)
            if (error > _limit(wanted)) if self.pieces is not None else (ratio < LOWEST_SQNR):
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
        5e-2
        if wanted.dtype in (torch.float16, torch.bfloat16) or not wanted.dtype.is_floating_point
        else OUTPUT_ERROR
    )


def _array(x: Tensor) -> Any:
    if x.dtype == torch.bfloat16:
        return x.contiguous().view(torch.int16).numpy().view(require("ml_dtypes").bfloat16)
    return x.numpy()
