"""The tools for writing rules: their registry, the exception for giving up, and the visited operator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from torch import Tensor
from torch.fx import Node

from sparsebit.graph.ops.spec import OpCall, place
from sparsebit.graph.value import TensorInfo, map_tensors, tensors_in
from sparsebit.sparse.channels.group import Role
from sparsebit.sparse.channels.labels import Family, Labels
from sparsebit.sparse.channels.match import Operand, alive, match, operand, sum_product
from sparsebit.sparse.channels.trace import Trace


class Stop(Exception):
    """Raised if a rule cannot follow the labels: all inputs of this node keep their sizes. The text says why."""


class Visit:
    """One operator during the traversal of a graph: its inputs, and the ways its rule can tie labels.

    The default reason is ``why``: the operator and its place.
    """

    def __init__(self, trace: Trace, call: OpCall) -> None:
        self.trace, self.call, self.arguments = trace, call, call.arguments

    # What the operator is and reads

    @cached_property
    def why(self) -> str:
        """The operator and its place, for a reason."""
        return why(self.call)

    @property
    def shape(self) -> tuple[int, ...]:
        """Recorded shape of the result, or of the first tensor in it."""
        return next(tensors_in(self.call.node.meta["value"])).shape

    @property
    def input(self) -> Labels:
        """The labels of the tensor that the operator works on."""
        return self.labels("input")

    def labels(self, name: str) -> Labels:
        """The labels of an argument that is one tensor."""
        return self.trace.labels_of(self.arguments[name])

    def tensors(self, *names: str) -> list[tuple[Node, Labels]]:
        """The tensors among these arguments (all of them without names), in order."""
        found: list[tuple[Node, Labels]] = []
        for name in names or tuple(self.arguments):
            value = self.arguments.get(name)
            for item in value if isinstance(value, (tuple, list)) else (value,):
                if isinstance(item, Node) and isinstance(self.trace.values.get(item.name), Labels):
                    found.append((item, self.trace.labels_of(item)))
        return found

    def integer(self, name: str, default: int | None = None) -> int:
        """An argument that must be written as a number for the labels to be followed."""
        value = self.arguments.get(name, default)
        if not isinstance(value, int):
            raise Stop(f"{self.why}: {name} is computed")
        return value

    def dim(self, rank: int, default: int | None = None) -> int:
        """The argument ``dim``, counted from the front."""
        return self.integer("dim", default) % max(rank, 1)

    def outputs(self, build: Callable[[TensorInfo], Labels]) -> object:
        """The value of a node with one result, or several of one kind."""
        return map_tensors(self.call.node.meta["value"], build)

    # What belongs together

    def pin(self, family: Family, dims: Iterable[int], reason: str = "") -> Family:
        """Keep the size of these dims; see ``Trace.pin``."""
        return self.trace.pin(family, dims, reason or self.why)

    def pinned(self, value: Labels, dims: Iterable[int], reason: str = "") -> list[Family]:
        """The families of a value that still vary, after ``pin``."""
        return self.trace.pinned(value, dims, reason or self.why)

    def operand(self, value: Labels, letters: Sequence[int], node: object = None) -> Operand:
        """A value with its dims named."""
        return operand(self.trace, value, letters, node)

    def aligned(self, value: Labels, rank: int, node: object = None) -> Operand:
        """A value whose dims are the last of ``rank`` dims, as in a broadcast."""
        return operand(self.trace, value, range(rank - value.rank, rank), node)

    def match(self, left: Operand, right: Operand) -> Operand:
        """Tie the labels of two operands where they meet; the result has the families of both."""
        return match(self.trace, left, right, self.why)

    def alive(self, value: Operand) -> list[Family]:
        """The families that still vary."""
        return alive(self.trace, value)

    def sum_product(self, operands: Sequence[Operand], summed: Sequence[int]) -> list[Family]:
        """The families left after summing the product of operands over letters."""
        return sum_product(self.trace, operands, summed, self.why)

    # Weights, biases and other vectors

    def layer_name(self, tensor: str) -> str:
        """The layer a weight is reported under: the module called, or whatever holds the parameter."""
        if self.call.module is not None:
            return str(self.call.node.target)
        path, _, leaf = tensor.rpartition(".")
        return path if path and leaf == "weight" else tensor

    def weight(self, argument: object, letters: Mapping[int, tuple[int, Role]]) -> Operand:
        """A weight with its relevant axes named: axis -> (letter, role). Any other axis keeps its size."""
        name = tensor_name(argument)
        if name is None:
            value = self.trace.labels_of(argument)
            spare = [dim for dim in range(value.rank) if dim not in letters]
            bare = self.operand(Labels(value.shape, self.pinned(value, spare)), range(value.rank))
            named = {dim: letter for dim, (letter, _) in letters.items()}
            extents = {named[dim]: size for dim, size in bare.extents.items() if dim in named}
            return Operand([family.moved(named) for family in bare.families], extents, value.zero)
        shape = self.trace.shape(name)
        wide = {axis: named for axis, named in letters.items() if shape[axis] > 1}
        families = [
            Family((letter,), self.trace.axis(name, axis, role, self.layer_name(name)))
            for axis, (letter, role) in wide.items()
        ]
        return Operand(families, {letter: shape[axis] for axis, (letter, _) in wide.items()})

    def reads(self, value: Labels, dim: int, axis: int) -> bool:
        """The common case of a layer that reads the only family of channels: nothing needs to be matched.

        True if the weight's axis was tied to the channels along ``dim``.
        """
        name = tensor_name(self.arguments["weight"])
        if (
            name is None
            or len(value.families) != 1
            or (self.trace.canonical(name), axis, 0) in self.trace.axes
        ):
            return False
        family = self.trace.simplify(value.families[0])
        if family.dims != (dim,):
            return False
        self.trace.tie_axis(name, axis, family.labels, "input", self.layer_name(name))
        return True

    def makes(self, axis: int, dim: int) -> Labels:
        """The new channels that a layer computes along ``dim``, tied to its weight and its bias."""
        name, shape = tensor_name(self.arguments["weight"]), self.shape
        assert name is not None
        families = []
        if shape[dim] > 1:
            families = [Family((dim,), self.trace.axis(name, axis, "output", self.layer_name(name)))]
        return Labels(shape, families, self.add_bias(families, dim))

    def add_bias(self, families: Sequence[Family], dim: int) -> bool:
        """Tie the bias to the channels along ``dim``; True if adding it keeps the zeros of removed channels.

        It does not for a family along another dim: every row gets the bias.
        """
        bias = self.arguments.get("bias")
        zero = self.tie_vector(bias, pick(families, dim), "state")
        return bias is None or (zero and all(family.dims == (dim,) for family in families))

    def tie_vector(self, vector: object, labels: Tensor | None, role: Role) -> bool:
        """Tie a bias, a scale or a statistic [n] to the labels of its channels; None if these are fixed.

        True if it is zero for a removed channel, as parameters are; computed values may not be.
        """
        name = tensor_name(vector)
        if vector is None or name is not None:
            if name is not None and labels is not None and len(labels) > 1:
                self.trace.tie_axis(name, 0, labels, role, self.layer_name(name))
            return True
        value = self.trace.labels_of(vector) if isinstance(vector, Node) else Labels(())
        families = self.trace.simple(value)
        for family in families:
            if labels is None:
                self.pin(family, family.dims)
            else:
                self.trace.sets.join(family.along(family.dims), labels)
        if labels is not None and not families:
            self.pin(Family((0,), labels), (0,), f"{self.why} combines it with a tensor of fixed size")
        return value.zero


Rule = Callable[[Visit], object]
RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule under the names that an ``OpSpec`` uses for it in its field ``channels``."""

    def add(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return add


def why(call: OpCall) -> str:
    """The operator and its place, for a reason."""
    return f"{call.spec.name} at {place(call.node)}"


def number(value: object) -> Any:
    """A constant, or the recorded value of a size."""
    return value.meta.get("value") if isinstance(value, Node) else value


def tensor_name(value: object) -> str | None:
    """The name of the parameter or buffer an argument holds, if it is one."""
    if isinstance(value, str):
        return value
    return str(value.target) if isinstance(value, Node) and value.op == "get_attr" else None


def pick(families: Sequence[Family], dim: int) -> Tensor | None:
    """The labels along one dim, if a family varies only along it."""
    return next((family.labels for family in families if family.dims == (dim,)), None)
