"""Find patterns of operators in a graph, by canonical name; refused matches carry a reason.

A pattern lists operators in order, each with its inputs by name:

    Pattern("conv_bn", ops=[
        Op("conv", ("conv1d", "conv2d", "conv3d")),
        Op("bn", "batch_norm", inputs=("conv",)),
    ])

Inputs are the *activations* of the canonical operator, so a keyword argument, a swapped argument order of
another front-end or a functional call with its weights spelled out match the same pattern.
"""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import EllipsisType

from torch.fx import GraphModule, Node

from sparsebit.errors import GraphError
from sparsebit.graph.ops import OPS, bind, op_name

ANY = "*"  # as an input: any value; as an operator: any operator, known or not

NodeCheck = Callable[[GraphModule, Node], "str | None"]
MatchCheck = Callable[[GraphModule, "Match"], "str | None"]
InputRef = str | EllipsisType
Kind = str | type | Callable[..., object]  # canonical operator name, module class, function


@dataclass(frozen=True)
class Op:
    """One operator of a pattern.

    ``ops`` are canonical operator names; a module class or a function stands for exactly what calls it, known or not.

    ``inputs`` names, for each activation of the operator: an earlier ``Op`` of the pattern, ``"*"`` for
    anything, or ``"$x"`` for a value outside the match that must be the same wherever ``$x`` is written. A
    last ``...`` allows further activations; without it their number must agree. ``None`` accepts any inputs.

    A node that feeds another node of the match must not feed anything else, unless ``shared`` allows it.
    """

    name: str
    ops: Kind | tuple[Kind, ...] = ANY
    inputs: tuple[InputRef, ...] | None = None
    commutative: bool = False
    shared: bool = False
    check: NodeCheck | None = None

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """What this operator accepts: canonical operator names, module classes and functions."""
        return self.ops if isinstance(self.ops, tuple) else (self.ops,)

    @property
    def references(self) -> tuple[str, ...]:
        """The inputs that are names: of other operators, or ``$`` values."""
        return tuple(ref for ref in self.inputs or () if isinstance(ref, str) and ref != ANY)


@dataclass(frozen=True)
class Match:
    """One place where a pattern was found."""

    pattern: str
    nodes: Mapping[str, Node]
    values: Mapping[str, Node]  # the values of the "$x" inputs, without the "$"

    def __getitem__(self, name: str) -> Node:
        return self.nodes[name]


@dataclass(frozen=True)
class Refusal:
    """A place that matches the pattern and is refused."""

    rule: str  # the pattern or pass that refused
    node: Node
    reason: str

    def __str__(self) -> str:
        return f"{self.rule} at {self.node.name}: {self.reason}"


@dataclass(frozen=True)
class Pattern:
    """Operators in topological order, all of which feed the last one; checked when built.

    ``check`` sees a complete match. It and the checks of single operators return None, or the reason to refuse.

    Example:
        >>> swiglu = Pattern("swiglu", ops=[
        ...     Op("gate", "linear", inputs=("$x",)),
        ...     Op("up", "linear", inputs=("$x",)),
        ...     Op("act", "silu", inputs=("gate",)),
        ...     Op("out", "mul", inputs=("act", "up"), commutative=True),
        ... ])
        >>> swiglu.result.name
        'out'
    """

    name: str
    ops: Sequence[Op]
    check: MatchCheck | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "ops", tuple(self.ops))
        seen: set[str] = set()
        if not self.ops:
            raise self._wrong("has no operators")
        for op in self.ops:
            if op.name in seen:
                raise self._wrong(f"has two operators called {op.name!r}")
            if op.name == ANY or op.name.startswith("$"):
                raise self._wrong(
                    f"cannot name an operator {op.name!r}, which is the spelling of a wildcard in inputs"
                )
            for ref in op.references:
                if not ref.startswith("$") and ref not in seen:
                    near = difflib.get_close_matches(ref, seen, n=1)
                    text = f"{op.name!r} reads {ref!r}, which is not an operator listed before it"
                    hint = "list it before; write '*' or '$name' for any value"
                    raise self._wrong(text, f"did you mean {near[0]!r}?" if near else hint)
            if ... in (op.inputs or ())[:-1]:
                raise self._wrong(f"{op.name!r} has '...' before its last input")
            seen.add(op.name)
        if idle := [op.name for op in self.ops[:-1] if op.name not in self.feeding]:
            raise self._wrong(
                f"has several results: {', '.join([*idle, self.result.name])}",
                "let every operator but the last feed another one, or match them as two patterns",
            )

    def _wrong(self, text: str, hint: str | None = None) -> GraphError:
        return GraphError(f"pattern {self.name!r} {text}", hint=hint)

    @property
    def result(self) -> Op:
        """The last operator: the only one whose result leaves the match."""
        return self.ops[-1]

    @property
    def feeding(self) -> list[str]:
        """The operators whose results stay inside the match, in order."""
        refs = {ref for op in self.ops for ref in op.references}
        return [op.name for op in self.ops if op.name in refs]


class NodeIndex:
    """The nodes of a graph by canonical operator, looked up once and shared by several searches.

    ``visits`` counts how often a node was looked at, so that a test can show that the work is linear.
    Build a new one after the graph has changed.
    """

    def __init__(self, gm: GraphModule) -> None:
        self.gm, self.visits = gm, 0
        self.position: dict[Node, int] = {}
        self._name: dict[Node, str | None] = {}
        self._target: dict[Node, object] = {}
        self._by_kind: dict[object, list[Node]] = {}
        self._inputs: dict[Node, tuple[Node, ...]] = {}
        for position, node in enumerate(gm.graph.nodes):
            self.visits += 1
            self.position[node] = position
            name = self._name[node] = op_name(gm, node)
            target = type(gm.get_submodule(str(node.target))) if node.op == "call_module" else node.target
            self._target[node] = target
            for kind in {name, target} - {None} if node.op.startswith("call_") else ():
                self._by_kind.setdefault(kind, []).append(node)

    def candidates(self, op: Op) -> list[Node]:
        """The nodes that could match one operator of a pattern, in graph order."""
        if ANY in op.kinds:
            return [node for node in self.position if node.op.startswith("call_")]
        found = dict.fromkeys(node for kind in op.kinds for node in self._by_kind.get(kind, ()))
        return sorted(found, key=self.position.__getitem__)

    def fits(self, op: Op, node: Node) -> bool:
        """Whether a node is the right kind of operator."""
        self.visits += 1
        if ANY in op.kinds:
            return node.op.startswith("call_")
        return self._name.get(node) in op.kinds or self._target.get(node) in op.kinds

    def inputs(self, node: Node) -> tuple[Node, ...]:
        """The activations of a node; all its inputs if the operator is unknown."""
        if node not in self._inputs:
            call = bind(self.gm, node)
            self._inputs[node] = tuple(call.activations if call is not None else node.all_input_nodes)
        return self._inputs[node]


def find_matches(gm: GraphModule, pattern: Pattern, index: NodeIndex | None = None) -> list[Match]:
    """Every place a pattern occurs, in graph order and without overlap.

    One visit per node and a bounded number per candidate, so the work grows with the size of the graph.

    Example:
        >>> import torch
        >>> gm = torch.fx.symbolic_trace(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU()))
        >>> pattern = Pattern("fc_relu", ops=[Op("fc", "linear"), Op("relu", "relu", inputs=("fc",))])
        >>> [match["relu"].name for match in find_matches(gm, pattern)]
        ['_1']
    """
    return scan(gm, pattern, index)[0]


def scan(
    gm: GraphModule, pattern: Pattern, index: NodeIndex | None = None
) -> tuple[list[Match], list[Refusal]]:
    """As ``find_matches``, and the places that match the pattern's operators but were refused, with reasons."""
    search = _Search(gm, pattern, index or NodeIndex(gm))
    return search.matches, search.refusals


class _Search:
    def __init__(self, gm: GraphModule, pattern: Pattern, index: NodeIndex) -> None:
        self.gm, self.pattern, self.index = gm, pattern, index
        self.ops = {op.name: op for op in pattern.ops}
        for kind in (kind for op in pattern.ops for kind in op.kinds):
            if isinstance(kind, str) and kind != ANY:
                OPS[kind]  # an unknown name, which could never match, is an error with the nearest one
        self.matches: list[Match] = []
        self.refusals: list[Refusal] = []
        self.taken: set[Node] = set()
        possible = all(index.candidates(op) for op in pattern.ops)
        for node in index.candidates(pattern.result) if possible else ():
            if node not in self.taken:
                self._try(node)

    def _try(self, result: Node) -> None:
        refusal: Refusal | None = None
        for places in self._place([(self.pattern.result.name, result)], {}):
            ours = {name: places[name] for name in self.ops}
            values = {name[1:]: node for name, node in places.items() if name.startswith("$")}
            match = Match(self.pattern.name, ours, values)
            refused = self._refused(match)
            if refused is None:
                self.taken |= set(ours.values())
                self.matches.append(match)
                return
            refusal = refusal or refused
        if refusal is not None:
            self.refusals.append(refusal)

    def _place(self, wanted: list[tuple[str, Node]], places: dict[str, Node]) -> Iterator[dict[str, Node]]:
        """Assign names to nodes, following inputs backwards; one result for each possible assignment."""
        if not wanted:
            yield places
            return
        (ref, node), rest = wanted[0], wanted[1:]
        if ref == ANY or places.get(ref) is node:
            yield from self._place(rest, places)
        elif ref in places:
            return
        elif ref.startswith("$"):
            yield from self._place(rest, {**places, ref: node})
        elif (
            node not in self.taken
            and self.index.fits(self.ops[ref], node)
            and not any(places.get(name) is node for name in self.ops)
        ):
            for aligned in self._align(self.ops[ref], node):
                yield from self._place(aligned + rest, {**places, ref: node})

    def _align(self, op: Op, node: Node) -> Iterator[list[tuple[str, Node]]]:
        """The ways to assign the activations of a node to the inputs of an operator."""
        if op.inputs is None:
            yield []
            return
        wanted = [ref for ref in op.inputs if isinstance(ref, str)]
        given = self.index.inputs(node)
        if len(given) < len(wanted) or (len(given) > len(wanted) and op.inputs[-1:] != (...,)):
            return
        if not op.commutative:
            yield list(zip(wanted, given, strict=False))
            return
        yield from _arrangements([ref for ref in wanted if ref != ANY], given)

    def _refused(self, match: Match) -> Refusal | None:
        inside = set(match.nodes.values())
        for name in self.pattern.feeding:
            node = match[name]
            others = [user.name for user in node.users if user not in inside]
            if others and not self.ops[name].shared:
                return Refusal(self.pattern.name, node, f"{node.name} also feeds {', '.join(others)}")
        for name, op in self.ops.items():
            if op.check is not None and (reason := op.check(self.gm, match[name])) is not None:
                return Refusal(self.pattern.name, match[name], reason)
        if self.pattern.check is not None and (reason := self.pattern.check(self.gm, match)) is not None:
            return Refusal(self.pattern.name, match[self.pattern.result.name], reason)
        return None


def _arrangements(refs: list[str], given: tuple[Node, ...]) -> Iterator[list[tuple[str, Node]]]:
    """Every way to give each name its own input, in the order written first."""
    return (list(zip(refs, chosen, strict=True)) for chosen in itertools.permutations(given, len(refs)))
