"""What one operator is (``OpSpec``) and one use of it in a graph (``OpCall``)."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node

from sparsebit.errors import GraphError, RegistryError
from sparsebit.graph.value import items_in, tensors_in

Answer = bool | Callable[["OpCall"], bool]
KeepsZero = bool | Callable[["OpCall", Sequence[bool]], bool]
Bounds = Callable[["OpCall"], tuple[float, float] | None]
Masks = Literal["", "chosen", "added"]


class Signature(NamedTuple):
    """Argument names in order, with defaults; ``variadic`` names the one that takes the rest (``*shape``)."""

    names: tuple[str, ...]
    defaults: Mapping[str, object]
    variadic: str | None = None


@cache
def parse_signature(text: str) -> Signature:
    """Read a signature as written in a ``def``.

    Example:
        >>> parse_signature("input, *shape, dim=0")
        Signature(names=('input', 'shape', 'dim'), defaults={'dim': 0}, variadic='shape')
    """
    try:
        arguments = ast.parse(f"def f({text}): ...").body[0].args  # type: ignore[attr-defined]
    except SyntaxError as error:
        raise RegistryError(
            f"the signature {text!r:.80} cannot be read: {error.msg}", expected='as in a def: "input, dim=0"'
        ) from None
    plain, late = [a.arg for a in arguments.args], [a.arg for a in arguments.kwonlyargs]
    defaults = dict(zip(reversed(plain), map(ast.literal_eval, reversed(arguments.defaults)), strict=False))
    defaults |= {name: ast.literal_eval(d) for name, d in zip(late, arguments.kw_defaults, strict=True) if d}
    variadic = arguments.vararg.arg if arguments.vararg else None
    names = (*plain, *((variadic,) if variadic else ()), *late)
    return Signature(names, {name: defaults[name] for name in names if name in defaults}, variadic)


@dataclass(frozen=True, kw_only=True, eq=False)
class OpSpec:
    """One operator, as data: what placement, channel groups, cost and export each need to know about it.

    Identity:
        name: canonical; the same from every front-end ("conv2d", "add", "relu").
        family: the table it is in ("conv", "norm", ...); a coarse kind for reports and rules.
        targets: everything that means it: module classes, functions, Tensor methods, Python operators;
            "aten::relu" for all overloads of an aten operator and "aten::max.other" for one;
            "package.module.name" for a function or class that is not imported here.
        overloads: targets that mean this operator or another one, by their arguments (``torch.max(x, y)`` is
            "maximum"), each with a function from the node to the canonical name.
        class_names: fnmatch patterns on the names of module classes that cannot be imported ("*DropPath").

    Arguments (all by the names of ``signature``, whatever the target calls them):
        signature: as in a ``def``, with the defaults of the functional form; ``*shape`` may be one tuple.
        orders: signatures of the targets whose positional order differs. Python functions and aten overloads
            need none: their own signature is read and only renamed.
        aliases: names used by other targets -> the name here (``indices`` -> ``input``).
        attributes: argument -> attribute of the module form, where they differ (``pad`` -> ``padding``).
        implied: arguments that a target fixes by being what it is (``Tensor.half`` -> ``dtype``).
        tidy: a last change to the bound arguments, for overloads that differ only in types (``Tensor.to``).

    Roles:
        activations: arguments that hold activations; one may hold a list (``tensors`` of "cat"). An argument
            named here and as ``weight`` is the weight if it is a parameter, else an activation (``other`` of
            "matmul").
        weight, bias: arguments, and attributes of the module form, that hold them.
        weight_axes: (output, input) channel axes of the weight.
        channel_axis: axis of the result that ``weight_axes[0]`` becomes, or that 1-d weights run along.

        placed_as: the operator whose rules of a target it follows ("linear" for a product with a parameter). Where the
            weight may also be an activation, only where it is a parameter.
        with_weight: runs the module form with another weight: ``with_weight(module, weight, *inputs)``. The functional
            form needs none, because the weight is an argument.
        spatial: how many dims its windows slide along.

    Behaviour:
        channels: the rule by which pruning follows channels through it, a name in ``sparse.channels.rules.RULES``.
            Empty: the rule of element-wise operators if it is one, else channels that reach it are never pruned.
        moves: every number of the result is a number of the first activation, or zero. So the operator runs on any
            grid. A function of the call where that depends on the arguments (padding with zero moves).
        keeps_zero: the result is zero where its tensor operands are. A function of the call and of which operands are
            zero where that depends on them. What moves numbers keeps zero.
        homogeneous: f(s * x) = s * f(x) for every s > 0. What moves numbers is.
        bounds: the lowest and highest value of an operator that clips its input to them and does nothing else.
        sizes: which of its arguments hold sizes that change when channels are removed, a way to rewrite them in
            ``sparse.shrink``: "shape", "split", "slice", "getitem", "pad", "squeeze", "attention", "norm", "groups".
        integers: the result holds integers or truth values, whatever comes in.
        several: the result is several tensors.
        data_sized: how many elements the result has depends on the numbers in the inputs. A function of the node where
            that depends on the arguments (an index that is a mask).
        masks: it can replace chosen numbers by very low ones, as attention does before a softmax: "chosen" always,
            "added" where one operand is a mask.
        elementwise: an element of the result depends only on the same element of each (broadcast) input.
        view: the result may share memory with an input (in the out-of-place form).
        random: it may draw random numbers.
        effect: it is run for its side effect, not for its result: never delete it, never reorder across it.
        macs: multiply-accumulates of one call; None means none. By convention only contractions count: bias
            additions, element-wise operators, norms, reductions, pooling and FFTs are free.
    """

    name: str
    targets: tuple[object, ...]
    family: str = "custom"
    overloads: Mapping[object, Callable[[Node], str]] = field(default_factory=dict)
    class_names: tuple[str, ...] = ()
    signature: str = "input"
    orders: Mapping[object, str] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    attributes: Mapping[str, str] = field(default_factory=dict)
    implied: Mapping[object, Mapping[str, object]] = field(default_factory=dict)
    tidy: Callable[[dict[str, object]], None] | None = None
    activations: tuple[str, ...] = ("input",)
    weight: str | None = None
    bias: str | None = None
    weight_axes: tuple[int, int] | None = None
    channel_axis: int | None = None
    placed_as: str = ""
    with_weight: Callable[..., Tensor] | None = None
    spatial: int = 0
    channels: str = ""
    moves: Answer = False
    keeps_zero: KeepsZero = False
    homogeneous: Answer = False
    bounds: Bounds | None = None
    sizes: str = ""
    integers: bool = False
    several: bool = False
    data_sized: bool | Callable[[Node], bool] = False
    masks: Masks = ""
    elementwise: bool = False
    view: bool = False
    random: bool = False
    effect: bool = False
    macs: Callable[[OpCall], int] | None = None

    def __post_init__(self) -> None:
        where = f"operator {self.name!r}"
        for (kind, expected), names in _TYPES.items():
            for name in names:
                if not isinstance(getattr(self, name), kind):
                    raise RegistryError(
                        f"{name} of an operator cannot be {getattr(self, name)!r:.80}",
                        where=where,
                        expected=expected,
                    )
        named = [*self.activations, *filter(None, (self.weight, self.bias))]
        if not isinstance(self.targets, tuple | list):
            raise RegistryError(
                "targets is not a tuple",
                where=where,
                expected="module classes and functions that mean this operator",
                got=f"{self.targets!r:.80}",
            )
        for target in self.targets:
            by_name = isinstance(target, str) and ("::" in target or "." in target)
            if isinstance(target, nn.Module) or not (callable(target) or by_name):
                raise RegistryError(
                    f"{target!r:.80} is not a target",
                    where=where,
                    expected='a module class, a function, a method or an aten operator such as "aten::relu"',
                )
        if missing := [name for name in named if name not in self.parameters]:
            raise RegistryError(
                f"{', '.join(map(str, missing))}: not an argument of the operator",
                where=where,
                expected=f"one of {', '.join(self.parameters)}",
                hint="name it in signature=..., or drop it from activations, weight and bias",
            )
        if self.weight_axes is not None and self.weight is None:
            raise RegistryError(
                "weight_axes without a weight", where=where, hint="say which argument is the weight"
            )

    @property
    def parameters(self) -> tuple[str, ...]:
        """Argument names of the functional form, in order."""
        return parse_signature(self.signature).names

    def is_data_sized(self, node: Node) -> bool:
        """Whether the size of a node's result depends on the numbers in its inputs."""
        return self.data_sized(node) if callable(self.data_sized) else self.data_sized

    def __repr__(self) -> str:
        return f"<operator {self.name}>"


# The fields of each type; a mistake in them would be found only when a graph is read.
_TYPES: dict[tuple[type[Any], str], tuple[str, ...]] = {
    (str, "a text"): ("signature", "placed_as", "channels", "sizes"),
    (Mapping, "a mapping"): ("overloads", "orders", "aliases", "attributes", "implied"),
    (tuple, "a tuple of texts"): ("activations", "class_names"),
}


@dataclass(frozen=True, kw_only=True, eq=False)
class OpCall:
    """One node read through its ``OpSpec``: every argument under its canonical name.

    ``arguments`` holds fx Nodes if the graph passes values, plain constants elsewhere, and the qualified
    name (a string such as "conv1.weight") for the tensors a module brings along. Constants stay as they were
    written: a stride may be 1 or (1, 1).
    """

    spec: OpSpec
    node: Node
    owner: GraphModule
    module: nn.Module | None
    arguments: Mapping[str, object]

    @property
    def activations(self) -> tuple[Node, ...]:
        """The nodes in the activation arguments, one per slot, without the weight and the bias.

        A parameter in its own slot (an added position embedding) is listed: it is a ``get_attr`` node.
        """
        weight = self.spec.weight if self.weight_name else None
        bias = self.spec.bias if self.bias_name else None
        names = [name for name in self.spec.activations if name not in (weight, bias)]
        return tuple(node for name in names for node in nodes_in(self.arguments.get(name)))

    @property
    def weight_name(self) -> str | None:
        """Qualified name of the weight, or None if there is none or it is computed in the graph."""
        return self._tensor_name(self.spec.weight)

    @property
    def bias_name(self) -> str | None:
        """Qualified name of the bias, or None if there is none or it is computed in the graph."""
        return self._tensor_name(self.spec.bias)

    @property
    def placed_as(self) -> str:
        """The operator whose rules of a target this call follows."""
        spec = self.spec
        if not spec.placed_as or (spec.weight in spec.activations and self.weight_name is None):
            return spec.name
        return spec.placed_as

    @property
    def groups(self) -> int:
        """The groups of a convolution; 1 for other operators."""
        groups = self.arguments.get("groups", 1)
        assert isinstance(groups, int)
        return groups

    @property
    def inplace(self) -> bool:
        """Whether the call writes into its first argument."""
        if self.arguments.get("inplace") is True:
            return True
        if self.module is not None:
            return False
        target = self.node.target
        name = target if isinstance(target, str) else getattr(target, "__name__", "")
        # operator.and_ writes nowhere
        if getattr(target, "__module__", None) == "_operator" or name.startswith("__"):
            return name.strip("_") in _INPLACE_OPERATORS
        if isinstance(target, torch._ops.OpOverload):
            name = target._schema.name
        return name.endswith("_")

    @property
    def moves(self) -> bool:
        """Whether this call only passes on numbers of its first activation, and perhaps zeros."""
        return self._answer(self.spec.moves)

    @property
    def homogeneous(self) -> bool:
        """Whether scaling its input by a positive number scales its result by the same."""
        return self.moves or self._answer(self.spec.homogeneous)

    @property
    def bounds(self) -> tuple[float, float] | None:
        """The ends to which it clips its input, if that is all it does and they are numbers."""
        return self.spec.bounds(self) if self.spec.bounds is not None else None

    def keeps_zero(self, zeros: Sequence[bool]) -> bool:
        """Whether the result is zero where the given tensor operands are; one flag for each operand."""
        if self.bounds is not None:
            low, high = self.bounds
            return zeros[0] and low <= 0 <= high
        if callable(self.spec.keeps_zero):
            return self.spec.keeps_zero(self, zeros)
        return (self.moves or self.spec.keeps_zero) and all(zeros[:1])

    def _answer(self, fact: Answer) -> bool:
        return fact(self) if callable(fact) else fact

    @property
    def macs(self) -> int:
        """Multiply-accumulates of this call; needs the recorded shapes."""
        return self.spec.macs(self) if self.spec.macs else 0

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Shape of the result, or of the first tensor in it."""
        return shape_of(self.owner, self.node)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of the tensor in an argument, or of the first one if it holds several."""
        value = self.arguments.get(name)
        if isinstance(value, str):
            return tuple(fetch_tensor(self.owner, value).shape)
        node = next(nodes_in(value), None)
        if node is None:
            raise GraphError(f"{name} holds no tensor", where=place(self.node), got=repr(value))
        return shape_of(self.owner, node)

    def _tensor_name(self, argument: str | None) -> str | None:
        value = self.arguments.get(argument) if argument else None
        if isinstance(value, str):
            return value
        if not (isinstance(value, Node) and value.op == "get_attr"):
            return None
        name = str(value.target)
        # A table or mask as factor is an ordinary operand; only a parameter is a weight.
        operand = argument in self.spec.activations
        return None if operand and not isinstance(fetch_tensor(self.owner, name), nn.Parameter) else name


_INPLACE_OPERATORS = frozenset(
    {"iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "imatmul", "setitem"}
    | {"iand", "ior", "ixor", "ilshift", "irshift", "iconcat"}
)


def bounds_in(low: str | None, high: str | None) -> Bounds:
    """The bounds in two arguments, if they are numbers; a missing end is infinite."""

    def read(call: OpCall) -> tuple[float, float] | None:
        ends = [call.arguments.get(name) if name else None for name in (low, high)]
        if not all(end is None or isinstance(end, (int, float)) for end in ends):
            return None
        first, last = ends
        return -math.inf if first is None else float(first), math.inf if last is None else float(last)  # type: ignore[arg-type]

    return read


def place(node: Node) -> str:
    """Where a node comes from, for messages: the model's own file and line if they were recorded."""
    source, module = node.meta.get("source"), node.meta.get("module_path")
    parts = [f"node {node.name!r}"]
    if module:
        parts.append(f"in {module}")
    if isinstance(source, tuple) and len(source) >= 2:
        parts.append(f"at {source[0]}:{source[1]}")
    return " ".join(parts)


def fetch_tensor(gm: GraphModule, name: str) -> Tensor:
    """The parameter, buffer or plain tensor attribute under a dotted name."""
    path, _, attribute = name.rpartition(".")
    tensor = getattr(gm.get_submodule(path), attribute)
    assert isinstance(tensor, Tensor), name
    return tensor


def shape_of(gm: GraphModule, node: Node) -> tuple[int, ...]:
    """Recorded shape of a node's result, or of the first tensor in it; a parameter knows its own."""
    if "value" not in node.meta and node.op == "get_attr":
        return tuple(fetch_tensor(gm, str(node.target)).shape)
    info = next(tensors_in(node.meta.get("value")), None)
    if info is None:
        raise GraphError(
            "no shape is recorded here" if "value" not in node.meta else "the result holds no tensor",
            where=place(node),
            hint="capture the model with example inputs, so that every node's shape is recorded",
        )
    return info.shape


def nodes_in(value: object) -> Iterator[Node]:
    """The nodes in an argument, which may be a list of them."""
    return (item for item in items_in(value) if isinstance(item, Node))
