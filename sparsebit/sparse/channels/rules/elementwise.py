"""Element by element: what meets goes together."""

from __future__ import annotations

from sparsebit.graph.ops.spec import OpCall
from sparsebit.sparse.channels.labels import Labels, Layer
from sparsebit.sparse.channels.match import Operand, match, operand, to_labels
from sparsebit.sparse.channels.rules.base import Stop, rule, shape_out, tensor_arguments, tie_vector, why
from sparsebit.sparse.channels.trace import Trace

# f(0) = 0, so a removed unit stays zero through them
ZERO_STAYS = frozenset(
    {"relu", "relu6", "leaky_relu", "gelu", "silu", "tanh", "elu", "celu", "selu", "mish", "hardswish"}
    | {"hardshrink", "softshrink", "softsign", "tanhshrink", "rrelu", "prelu", "abs", "neg", "sign", "sgn"}
    | {"sqrt", "square", "sin", "sinh", "asin", "asinh", "atan", "atanh", "tan", "erf", "erfinv", "expm1"}
    | {"log1p", "round", "floor", "ceil", "trunc", "frac", "positive", "nan_to_num", "to", "type_as", "clone"}
    | {"contiguous", "detach", "identity", "tril", "triu", "real", "imag", "conj", "dropout", "drop_path"}
    | {"feature_dropout", "zero", "deg2rad", "rad2deg", "as_tensor"}
)
ONLY_INPUT = frozenset({"to", "type_as", "bucketize", "bernoulli"})


def join_elements(trace: Trace, call: OpCall) -> Labels:
    """The rule of every element-wise operator: tie the broadcast labels of all operands."""
    name, shape = call.spec.name, shape_out(call)
    found = tensor_arguments(trace, call, *(("input",) if name in ONLY_INPUT else ()))
    if not found:
        raise Stop(f"{why(call)} has no tensor operand")
    rank = len(shape)
    operands = [operand(trace, value, range(rank - len(value.shape), rank), node) for node, value in found]
    result = operands[0]
    for other in operands[1:]:
        result = match(trace, result, other, why(call))
    return to_labels(_alive(trace, result), range(rank), shape, _stays_zero(call, [v for _, v in found]))


@rule("prelu")
def prelu(trace: Trace, call: OpCall) -> Labels:
    """One slope, or one a channel."""
    value = trace.labels_of(call.arguments["input"])
    layers = trace.simple(value)
    if call.shape("weight") != (1,):
        layers = [
            trace.pin(layer, [d for d in layer.dims if d != 1], why(call)) if 1 in layer.dims else layer
            for layer in layers
        ]
        labels = next((layer.labels for layer in layers if layer.dims == (1,)), None)
        tie_vector(trace, call, call.arguments["weight"], labels, "state")
    return Labels(value.shape, tuple(layers), value.zero)


@rule("zeros_like", "ones_like", "full_like", "empty_like", "rand_like", "randn_like", "randint_like")
def same_size(trace: Trace, call: OpCall) -> Labels:
    """A new tensor in the size of another: it shrinks with it."""
    value = trace.labels_of(call.arguments["input"])
    return Labels(value.shape, tuple(trace.simple(value)), call.spec.name == "zeros_like")


@rule("zeros", "ones", "full", "new_zeros", "new_ones", "new_full")
def fill(trace: Trace, call: OpCall) -> Labels:
    """A constant fill can be made in any size: it takes the labels of what it meets first."""
    return Labels(shape_out(call), zero=call.spec.name in ("zeros", "new_zeros"), wild=True)


def _alive(trace: Trace, result: Operand) -> list[Layer]:
    return [layer for layer in map(trace.simplify, result.layers) if layer.dims]


def _stays_zero(call: OpCall, values: list[Labels]) -> bool:
    name, arguments = call.spec.name, call.arguments
    zeros = [value.zero for value in values]
    if name == "mul":
        return any(zeros)
    if name in ("add", "sub", "maximum", "minimum", "fmax", "fmin", "lerp", "addcmul", "where"):
        numbers = [v for v in arguments.values() if isinstance(v, (int, float)) and not isinstance(v, bool)]
        return all(zeros) and (len(values) > 1 or all(number == 0 for number in numbers[:1]))
    if name in ("div", "floor_divide"):
        return zeros[0]
    if name == "hardtanh":
        low, high = arguments.get("min_val", -1.0), arguments.get("max_val", 1.0)
        return zeros[0] and all(isinstance(v, (int, float)) for v in (low, high)) and low <= 0 <= high  # type: ignore[operator]
    if name == "pow":
        exponent = arguments.get("exponent")
        return zeros[0] and isinstance(exponent, (int, float)) and exponent > 0
    if name == "masked_fill":
        return zeros[0] and arguments.get("value") == 0
    if name in ("clamp", "clamp_min", "clamp_max", "hardtanh"):
        low, high = (
            arguments.get(k) for k in (("min", "max") if name != "hardtanh" else ("min_val", "max_val"))
        )
        fits = all(isinstance(v, (int, float)) or v is None for v in (low, high))
        return zeros[0] and fits and (low or 0) <= 0 <= (high or 0 if high is not None else 0)  # type: ignore[operator]
    return name in ZERO_STAYS and zeros[0]
