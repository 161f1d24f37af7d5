"""``export_onnx``: write a quantized, pruned or plain model as an ONNX file, and check the file."""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn
from torch.fx import GraphModule

from sparsebit.batches import Call, ModelInputs, read_batches
from sparsebit.batches.calls import require_dense
from sparsebit.display import in_notebook
from sparsebit.errors import ExportError, with_article
from sparsebit.export.graph_export import Exported, export_graph
from sparsebit.export.proof import CheckReport
from sparsebit.export.proof.compare import check as compare
from sparsebit.export.proof.tensorrt import Finding, check_tensorrt
from sparsebit.export.translate.axes import DynamicAxes
from sparsebit.export.translate.undisturbed import on_cpu
from sparsebit.graph.capture import capture
from sparsebit.graph.capture.unwrap import without_wrappers
from sparsebit.graph.passes import FOLD, SIMPLIFY, run_passes
from sparsebit.quantization.quantized_module import QuantizedModule
from sparsebit.runtime.session import RUNTIMES
from sparsebit.sparse import SparseModel
from sparsebit.targets import TARGETS

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class OnnxExport:
    """The result of ``export_onnx``: the file, and the report of running it."""

    exported: Exported
    report: CheckReport | None = None
    findings: tuple[Finding, ...] = ()  # TensorRT's rules, where that is the target

    _repr_html_ = in_notebook

    @property
    def path(self) -> Path:
        """The file."""
        return self.exported.path

    def __str__(self) -> str:
        parts = [str(self.exported), *([str(self.report)] if self.report is not None else [])]
        return "\n".join([*parts, *map(str, self.findings)])


def as_path(name: Any, usage: str) -> Path:
    """The file to write; the error shows the order of arguments, which differs between the two ``export_onnx``."""
    if not isinstance(name, str | os.PathLike):
        raise ExportError(
            "the file to write is not a path", got=with_article(type(name).__name__), hint=usage
        )
    path = Path(name)
    if not path.name:  # "", "." or "/"
        raise ExportError("the file to write has no name", got=repr(os.fspath(name)), hint=usage)
    return path


def export_onnx(
    model: nn.Module,
    dummy_data: Any,
    name: str | os.PathLike[str],
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    dynamic_axes: DynamicAxes | None = None,
    opset_version: int | None = None,
    verbose: bool = False,
    extra_info: bool = False,
    *,
    check: bool = True,
    calls: Any = None,
    target: str | None = None,
    fixed_sizes: bool = False,
    quantized: bool = True,
) -> OnnxExport:
    """Write a model as ONNX, run the file, and compare it with the model.

    Args:
        model: a ``QuantModel`` or ``SparseModel``, a captured graph, or a plain module, which is captured first.
        dummy_data: example input: a tensor, a tuple of positional or a dict of keyword arguments. Labels in it are
            ignored if the model was captured without them.
        name: the file to write; ``.onnx`` is appended if it has no suffix. If this fails, no file is left.
        input_names, output_names: by default the names of the model's arguments and the keys of its output.
        dynamic_axes: as for ``torch.onnx.export``. By default the batch and the sequence of text are dynamic, if the
            model allows it.
        opset_version: by default the lowest with the types needed, and at least 20.
        verbose: log the whole report instead of its summary.
        extra_info: also write the width of every quantized tensor into the metadata of its nodes.
        check: run the file in ONNX Runtime and compare; a mismatch is an error, and an existing file stays.
        calls: inputs to compare on: batches such as calibration data, each as ``dummy_data``. By default that itself.
        target: the runtime to write for; by default the one the model was planned for.
        fixed_sizes: fix every size that ``dynamic_axes`` does not name, including the batch.
        quantized: write all calibrated quantizers, even if they are switched off. False writes the float model.

    Raises:
        ExportError: if the model cannot be written, or the file computes something else.
    """
    path = as_path(name, "export_onnx(model, dummy_data, 'model.onnx')")
    if isinstance(model, nn.Module):
        model = without_wrappers(model)
    inputs = ModelInputs.of(model)
    args, kwargs = inputs.call(dummy_data)
    compared = [Call(args, kwargs)]
    if calls is not None:
        compared = [inputs.call(one) for one in read_batches(calls)]
    graph = on_cpu(graph_of(model, args, kwargs))
    path = path if path.suffix else path.with_suffix(".onnx")
    chosen = target or str(getattr(getattr(model, "plan", None), "target", "onnxruntime"))
    report: CheckReport | None = None
    findings: tuple[Finding, ...] = ()

    def inspect(written: Exported) -> None:
        """Check a file before it replaces an existing one, so that a good file is not lost."""
        nonlocal report, findings
        if check:
            report = replace(_check(graph, written, compared), path=path)
            report.raise_for_mismatch()
        if TARGETS[chosen].forms == "tensorrt":
            findings = check_tensorrt(written.path)
            _refuse_errors(findings, path, strict=check)

    exported = export_graph(
        graph,
        args,
        kwargs,
        path,
        input_names=input_names,
        output_names=output_names,
        dynamic_axes=dynamic_axes if dynamic_axes is not None or fixed_sizes else "batch",
        opset=opset_version,
        target=chosen,
        extra_info=extra_info,
        quantized=quantized,
        inspect=inspect,
    )
    result = OnnxExport(exported=exported, report=report, findings=findings)
    logger.log(logging.INFO, "%s", result if verbose else exported)
    if check and exported.batch_lost:
        logger.warning("%s: %s", path.name, exported.sizes)
    for op in report.fallbacks if report is not None else ():
        logger.info("%s runs in float: %s", op.name, op.why)
    return result


def _check(graph: GraphModule, exported: Exported, calls: Sequence[Call]) -> CheckReport:
    runtime = TARGETS[exported.target].runtime
    if runtime is not None:
        RUNTIMES[runtime]  # an unknown name raises an error that lists the names
    if runtime is None or importlib.util.find_spec(runtime) is None:
        runtime = "onnxruntime"
    return compare(graph, exported, calls, runtime=runtime)


def _refuse_errors(findings: Sequence[Finding], path: Path, *, strict: bool) -> None:
    errors = [finding for finding in findings if finding.level == "error"]
    if errors and strict:
        raise ExportError(
            f"TensorRT would reject this file: {len(errors)} violations of its rules",
            where=str(path),
            got="; ".join(map(str, errors[:5])),
            hint="plan the model with BACKEND: tensorrt and symmetric grids, or pass check=False",
        )


def graph_of(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> GraphModule:
    """The graph that is exported: of a quantized or pruned model, the captured model itself, or a capture of it."""
    model = without_wrappers(model) if isinstance(model, nn.Module) else model
    if isinstance(model, QuantizedModule):
        return model.folded()  # batch norm may have been kept for training
    if isinstance(model, SparseModel):
        model = model.shrink()
    if isinstance(model, GraphModule):
        return model
    require_dense(args, kwargs)
    captured = capture(model, args, dict(kwargs))
    run_passes(captured, SIMPLIFY + FOLD)
    return captured
