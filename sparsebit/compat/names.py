"""Every name of the old toolkit that was moved or removed, by its old path: its new path, or what replaces it."""

from __future__ import annotations

import importlib

from sparsebit.errors import SparsebitError


class OldNameError(SparsebitError, ImportError):
    """A name of the old toolkit that has no counterpart; the message says what to use instead."""


# Old path -> its current "module:name".
MOVED = {
    "sparsebit.utils.update_config": "sparsebit.compat.config_tree:update_config",
    "sparsebit.utils.yaml_utils.update_config": "sparsebit.compat.config_tree:update_config",
    "sparsebit.utils.check_torch_version": "sparsebit.compat.common:check_torch_version",
    "sparsebit.utils.common.check_torch_version": "sparsebit.compat.common:check_torch_version",
    "sparsebit.quantization.quant_config._C": "sparsebit.compat.config_tree:QUANTIZATION",
    "sparsebit.sparse.sparse_config._C": "sparsebit.compat.config_tree:PRUNING",
    "sparsebit.quantization.common.Backend": "sparsebit.compat.common:Backend",
    "sparsebit.quantization.common.QuantTarget": "sparsebit.compat.common:QuantTarget",
    "sparsebit.quantization.common.get_backend": "sparsebit.compat.common:get_backend",
    "sparsebit.quantization.modules.QMODULE_MAP": "sparsebit.quantization.modules.qmodules:QMODULES",
    "sparsebit.quantization.modules.register_qmodule": "sparsebit.quantization.modules.qmodules:register_qmodule",
    "sparsebit.quantization.quantizers.QUANTIZERS_MAP": "sparsebit.quantization.quantizers:QUANTIZERS",
    "sparsebit.quantization.observers.OBSERVERS_MAP": "sparsebit.quantization.observers:OBSERVERS",
    "sparsebit.quantization.observers.aciq.Observer": "sparsebit.quantization.observers:ACIQ",
    "sparsebit.quantization.observers.kl_histogram.Observer": "sparsebit.quantization.observers:KLHistogram",
    "sparsebit.quantization.observers.mse.Observer": "sparsebit.quantization.observers:MSE",
    "sparsebit.quantization.observers.percentile.Observer": "sparsebit.quantization.observers:Percentile",
    "sparsebit.sparse.sparsers.SPARSERS_MAP": "sparsebit.sparse.sparsers:SPARSERS",
    "sparsebit.sparse.sparsers.l1norm.Sparser": "sparsebit.sparse.sparsers.of_weights:L1Norm",
}

_GRID = (
    "sparsebit.numerics.Grid: scale, zero point and number format of one tensor, with the arithmetic on them"
)
_PATTERN = "sparsebit.graph.match.Pattern and register_replacement; docs/how-to/fusion.md shows a pattern of your own"
_RUNNER = "QuantModel.calibrate(batches), which streams the data once"
_PROFILER = "QuantModel.get_quantization_error(batch)"
_ADAROUND = "SCHEDULE.RECOVERY: [adaround] in the config"
_KL = "OBSERVER.TYPE: kl_histogram in the config"
_CHECKS = "parse_qconfig, which checks every key"
_DEVICE = "QuantModel.calibrate(batches), which moves the data to the model's device by itself"
_TRACE = "sparsebit.capture(model, example_inputs), or QTracer"

# Old path -> what replaces it.
GONE = {
    "sparsebit.quantization.quantizers.build_quantizer": "sparsebit.quantization.QUANTIZERS: look a class up "
    "by name and call it with tensor name, side and spec",
    "sparsebit.quantization.quantizers.quant_descriptor.QuantDescriptor": _GRID,
    "sparsebit.quantization.quantizers.adaround.reconstruct_qlayer": _ADAROUND,
    "sparsebit.quantization.quantizers.adaround.LinearTempDecay": _ADAROUND,
    "sparsebit.quantization.quantizers.lsq.gs_scaling": "QUANTIZER.TYPE: lsq, which scales its gradients by itself",
    "sparsebit.quantization.observers.build_observer": "sparsebit.quantization.OBSERVERS: look a class up "
    "by name and call it with its options",
    "sparsebit.quantization.observers.base.DataCache": "the state of an observer, which update() returns: "
    "data is streamed and not kept; docs/how-to/observer.md",
    "sparsebit.quantization.observers.kl_histogram.run_distributed": _KL,
    "sparsebit.quantization.observers.kl_histogram.get_best_threshold": _KL,
    "sparsebit.quantization.observers.kl_histogram.calibrate_entropy": _KL,
    "sparsebit.quantization.observers.utils.mse_loss": "torch.nn.functional.mse_loss",
    "sparsebit.quantization.quant_config.verify_bits": _CHECKS,
    "sparsebit.quantization.quant_config.verify_backend": _CHECKS,
    "sparsebit.quantization.quant_config.verify_schedule": _CHECKS,
    "sparsebit.quantization.utils.fx_symbolic_trace": _TRACE,
    "sparsebit.quantization.common.Granularity": "Quantizer.layout, a sparsebit.numerics.Layout",
    "sparsebit.quantization.common.get_qscheme": "the scheme as a string, such as 'per-channel-symmetric'",
    "sparsebit.quantization.tools.calibration.CalibrationRunner": _RUNNER,
    "sparsebit.quantization.tools.CalibrationRunner": _RUNNER,
    "sparsebit.quantization.tools.QuantizationErrorProfiler": _PROFILER,
    "sparsebit.quantization.tools.errors_profiler.QuantizationErrorProfiler": _PROFILER,
    "sparsebit.quantization.tools.fx_symbolic_trace": _TRACE,
    "sparsebit.quantization.tools.graph_wrapper.fx_symbolic_trace": _TRACE,
    "sparsebit.quantization.tools.SharedData": "sparsebit.graph.run, which frees values by itself",
    "sparsebit.quantization.tools.to_cpu": _DEVICE,
    "sparsebit.quantization.tools.to_detach": _DEVICE,
    "sparsebit.quantization.tools.graph_wrapper.GraphVisitor": "sparsebit.graph.run, an interpreter of the graph",
    "sparsebit.quantization.tools.graph_wrapper.SharedData": "sparsebit.graph.run, which frees values by itself",
    "sparsebit.quantization.converters.simplify": "sparsebit.graph.passes, which QuantModel runs by itself",
    "sparsebit.quantization.converters.fuse_operations": "SCHEDULE.FUSE_BN and "
    "SCHEDULE.DISABLE_UNNECESSARY_QUANT in the config",
    "sparsebit.quantization.converters.base.ReplacePatternBase": _PATTERN,
    "sparsebit.quantization.converters.utils.MatchingNode": _PATTERN,
    "sparsebit.quantization.converters.utils.SubgraphMatcher": _PATTERN,
    "sparsebit.quantization.modules.PASSTHROUGHT_MODULES": "qmodel.plan, which says for every tensor whether it is "
    "quantized, and why",
    "sparsebit.quantization.converters.prune.PruneGraph": "sparsebit.graph.passes.remove_dead_nodes",
    "sparsebit.sparse.modules.SMODULE_MAP": "channel rules of operators; docs/how-to/operator.md",
    "sparsebit.sparse.modules.register_smodule": "sparsebit.register_op, which says how channels flow through an "
    "operator; docs/how-to/operator.md",
    "sparsebit.sparse.sparsers.build_sparser": "sparsebit.sparse.sparsers.make_sparser(name, options)",
    "sparsebit.utils.yaml_utils._parse_config": "parse_qconfig or parse_sconfig",
}

_PASSES = (
    "sparsebit.graph.passes, which QuantModel runs by itself, or a pass of your own; docs/how-to/fusion.md"
)
# Old files that no longer exist -> what replaces each name in them.
GONE_FILES = {
    "sparsebit.quantization.converters.fuse_operations": _PASSES,
    "sparsebit.quantization.converters.fuse_operations.disable_unnecessary_quant": _PASSES,
    "sparsebit.quantization.converters.fuse_operations.fuse_bn": _PASSES,
    "sparsebit.quantization.converters.fuse_operations.lists": _PASSES,
    "sparsebit.quantization.converters.simplifiers": _PASSES,
    "sparsebit.quantization.converters.simplifiers.getattr_to_shape": _PASSES,
    "sparsebit.quantization.converters.simplifiers.lists": _PASSES,
    "sparsebit.quantization.converters.simplifiers.remove_identity": _PASSES,
    "sparsebit.quantization.converters.simplifiers.unbind_getitem_to_subtensor": _PASSES,
    "sparsebit.quantization.converters.utils.bitpartite_graph_matching": _PATTERN,
    "sparsebit.quantization.converters.utils.disjoint_set_union": _PATTERN,
    "sparsebit.quantization.converters.utils.dominator_tree": _PATTERN,
    "sparsebit.quantization.converters.utils.subgraph_matching": _PATTERN,
    "sparsebit.quantization.converters.utils.subgraph_matching_node": _PATTERN,
    "sparsebit.quantization.converters.utils.subgraph_matching_replace_pattern": _PATTERN,
    "sparsebit.quantization.converters.utils.subgraph_matching_utils": _PATTERN,
    "sparsebit.quantization.quantizers.quant_tensor": _GRID,
    "sparsebit.quantization.tools.tensor_wrapper": _DEVICE,
}

# Names of operator classes, by the old file of sparsebit/quantization/modules that had them, and what they stand for.
OPERATORS: dict[str, dict[str, tuple[str, ...]]] = {
    "activations": {
        "QReLU": ("relu",),
        "QReLU6": ("relu6",),
        "QLeakyReLU": ("leaky_relu",),
        "QSiLU": ("silu",),
        "QMish": ("mish",),
        "QHardSigmoid": ("hardsigmoid",),
        "QSigmoid": ("sigmoid",),
        "QGELU": ("gelu",),
        "QTanh": ("tanh",),
    },
    "conv": {"QConv2d": ("conv2d",), "QConvTranspose2d": ("conv_transpose2d",)},
    "embedding": {"QEmbedding": ("embedding",)},
    "linear": {"QLinear": ("linear",)},
    "math": {"QAdd": ("add",), "QMean": ("mean",)},
    "matmul": {"MatMul": ("matmul",)},
    "normalization": {"QBatchNorm2d": ("batch_norm",), "QLayerNorm": ("layer_norm",)},
    "pool": {"QAvgPool2d": ("avg_pool2d",), "QAdaptiveAvgPool2d": ("adaptive_avg_pool2d",)},
    "resize": {"QUpsample": ("interpolate",), "QInterpolate": ("interpolate",)},
    "unary": {"QIdentity": ("identity",), "QSoftmax": ("softmax",)},
    "base": {"MultipleInputsQuantOpr": ("add", "matmul")},
}
# Classes that were never quantized and only wrapped torch's own.
PLAIN = (
    ("sparsebit.quantization.modules", "normalization", "QBatchNorm1d", "BatchNorm1d"),
    ("sparsebit.quantization.modules", "pool", "MaxPool2d", "MaxPool2d"),
    ("sparsebit.quantization.modules", "unary", "Dropout", "Dropout"),
    ("sparsebit.quantization.modules", "shape", "Flatten", "Flatten"),
    ("sparsebit.sparse.modules", "normalization", "SBatchNorm2d", "BatchNorm2d"),
)
# Functions that were modules in the old toolkit; here they are functions in the graph.
FUNCTIONS = {
    "math": ("QSubtract", "QMul", "QDivide", "QFloorDiv"),
    "python_builtins": ("QGetItem", "QGetAttr", "QEqual"),
    "shape": (
        "Size",
        "Reshape",
        "Expand",
        "Expand_as",
        "Transpose",
        "Permute",
        "Split",
        "Concat",
    ),
    "unary": ("Clone", "Contiguous", "Detach", "Where"),
    "torchvision_ops": ("StochasticDepth",),
}


def _class_paths() -> tuple[dict[str, str], dict[str, str]]:
    """Classes of operators under both old paths, package and file: those that moved, and those that were removed."""
    modules, pruning = "sparsebit.quantization.modules", "sparsebit.sparse.modules"
    found = [
        (modules, file, name, "sparsebit.compat.operators") for file in OPERATORS for name in OPERATORS[file]
    ]
    found += [
        (modules, "base", "QuantOpr", "sparsebit.compat.operators"),
        (pruning, "base", "SparseOpr", "sparsebit.compat.operators"),
        (pruning, "conv", "SConv2d", "sparsebit.compat.operators"),
        (pruning, "linear", "SLinear", "sparsebit.compat.operators"),
    ]
    moved = {}
    for package, file, name, place in found:
        moved[f"{package}.{name}"] = moved[f"{package}.{file}.{name}"] = f"{place}:{name}"
    for package, file, name, torch_name in PLAIN:
        moved[f"{package}.{name}"] = moved[f"{package}.{file}.{name}"] = f"torch.nn:{torch_name}"
    functions = [(file, name) for file, names in FUNCTIONS.items() for name in names]
    advice = (
        "a function node of qmodel.model.graph; sparsebit.graph.ops.op_name(graph, node) names its operator"
    )
    gone = {f"{modules}.{name}": advice for _, name in functions}
    gone |= {f"{modules}.{file}.{name}": advice for file, name in functions}
    return moved, gone


MOVED |= _class_paths()[0]
GONE |= _class_paths()[1]


def find(path: str) -> object:
    """The object that an old path refers to now.

    Raises ``OldNameError`` for a removed name, and ``KeyError`` for one that never existed.

    Example:
        >>> find("sparsebit.quantization.observers.OBSERVERS_MAP")["MinMax"].__name__
        'MinMax'
    """
    advice = GONE.get(path) or GONE_FILES.get(path.rpartition(".")[0])
    if advice is not None:
        raise OldNameError(f"{path} of the old Sparsebit does not exist here", hint=f"use {advice}")
    module, _, name = MOVED[path].partition(":")
    return getattr(importlib.import_module(module), name)
