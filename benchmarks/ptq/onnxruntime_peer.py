"""onnxruntime's static quantizer: unsigned activations, per-channel weights, ranges by minimum and maximum."""

from __future__ import annotations

import importlib.util
import logging
import shutil
import tempfile
import warnings
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.ptq.method import Args, Method, Missing
from benchmarks.ptq.torchao_peer import dynamic_shapes


class OnnxRuntime(Method):
    """Export to ONNX, quantize_static to a QDQ model, and the runtime itself to answer.

    Layers are read from the same file with the runtime's fusions switched off, as fused ones cannot be seen.
    """

    def __init__(self, calibration: str = "MinMax") -> None:
        self.name = f"onnxruntime {calibration.lower()}"
        self.calibration = calibration
        wanted = [
            name for name in ("onnx", "onnxruntime", "onnxscript") if not importlib.util.find_spec(name)
        ]
        if wanted:
            raise Missing(f'not installed: {", ".join(wanted)}: pip install -e ".[onnx]"')
        folder = tempfile.mkdtemp(prefix="sparsebit_ptq_")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self.float_file, self.file = f"{folder}/float.onnx", f"{folder}/quantized.onnx"

    def prepare(self, model: nn.Module, example: Args) -> None:
        import onnx

        logging.getLogger("onnxscript").setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                model, example, dynamic_shapes=dynamic_shapes(example), dynamo=True, verbose=False
            )
        assert program is not None
        program.save(self.float_file, external_data=False)
        graph = onnx.load(self.float_file).graph
        self.inputs = [value.name for value in graph.input]
        self.layer_of_node = _layers_of_nodes(graph, {name for name, _ in model.named_modules()})

    def calibrate(self, batches: Sequence[Args]) -> None:
        from onnxruntime.quantization import CalibrationMethod, QuantType, quantize_static

        logger = logging.getLogger()
        before = logger.level
        logger.setLevel(logging.ERROR)
        try:
            quantize_static(
                self.float_file,
                self.file,
                _Reader(self.inputs, batches),
                per_channel=True,
                activation_type=QuantType.QUInt8,
                weight_type=QuantType.QInt8,
                calibrate_method=getattr(CalibrationMethod, self.calibration),
            )
        finally:
            logger.setLevel(before)
        self.session = self._session(self.file, fused=True)

    def predict(self, *args: Any) -> Any:
        return torch.from_numpy(self.session.run(None, self._feed(args))[0])

    def layers(self, args: Args) -> dict[str, Tensor]:
        import onnx

        model = onnx.load(self.file)
        # By node, not by tensor: a ReLU that the grid makes superfluous is removed and its name handed on.
        tensors = {
            node.output[0]: self.layer_of_node[node.name]
            for node in model.graph.node
            if node.name in self.layer_of_node
        }
        present = {value.name for value in model.graph.output}
        model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in tensors if name not in present)
        session = self._session(model.SerializeToString(), fused=False)
        values = session.run(list(tensors), self._feed(args))
        return {name: torch.from_numpy(value) for name, value in zip(tensors.values(), values, strict=True)}

    def _feed(self, args: Sequence[Tensor]) -> dict[str, Any]:
        return {name: tensor.numpy() for name, tensor in zip(self.inputs, args, strict=True)}

    def _session(self, model: str | bytes, *, fused: bool) -> Any:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 3
        if not fused:
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


class _Reader:
    """Feeds one batch after the other, as the calibrators ask."""

    def __init__(self, names: Sequence[str], batches: Sequence[Args]) -> None:
        self.feeds: Iterator[dict[str, Any]] = (
            {name: tensor.numpy() for name, tensor in zip(names, batch, strict=True)} for batch in batches
        )

    def get_next(self) -> dict[str, Any] | None:
        return next(self.feeds, None)

    def __iter__(self) -> _Reader:
        return self

    def __next__(self) -> dict[str, Any]:
        return next(self.feeds)


def _layers_of_nodes(graph: Any, modules: set[str]) -> dict[str, str]:
    """The last node that reads a module's weight or bias is where the layer's result is."""
    found: dict[str, str] = {}
    for node in graph.node:
        if node.op_type in ("Conv", "ConvTranspose", "Gemm", "MatMul", "Add"):
            for source in node.input:
                module, _, parameter = source.rpartition(".")
                if parameter in ("weight", "bias") and module in modules:
                    found[module] = node.name
    return {node: module for module, node in found.items()}
