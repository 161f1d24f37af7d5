"""The plan: which tensors are quantized, how, which operators read them, and why; also why others are not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from sparsebit.config import Side, TensorSpec
from sparsebit.display import in_notebook, printable
from sparsebit.errors import PlugInError, RegistryError, SparsebitError
from sparsebit.numerics import Layout
from sparsebit.quantization.observers import OBSERVERS
from sparsebit.quantization.quantizers import QUANTIZERS
from sparsebit.storage.typed import from_plain

INSIDE = "it is computed inside"  # the reason for an activation that is fused into the operator before it


@dataclass(frozen=True, kw_only=True)
class PlannedTensor:
    """One quantizer: its tensor, and everything that reads the result.

    ``producer`` is a node for an activation and a qualified parameter name for a weight. ``readers`` are the nodes that
    read the quantized tensor directly; ``consumers`` are the operators that use it, perhaps after a reshape.
    """

    name: str
    side: Side
    producer: str
    readers: tuple[str, ...]
    consumers: tuple[str, ...]
    spec: TensorSpec
    layout: Layout
    reason: str


@dataclass(frozen=True, kw_only=True)
class PlannedEdge:
    """One input of one operator: the tensor whose grid it is on, or None for float, and why."""

    source: str
    consumer: str
    op: str | None
    tensor: str | None
    reason: str

    @property
    def in_float(self) -> bool:
        """Whether an operator of its own reads the input in float."""
        return self.tensor is None and not self.reason.startswith(INSIDE)


@dataclass(frozen=True, kw_only=True)
class QuantPlan:
    """Every decision for one graph, config and target, as data: it can be printed, compared, saved and loaded."""

    target: str
    tensors: tuple[PlannedTensor, ...] = ()
    edges: tuple[PlannedEdge, ...] = ()
    notes: tuple[str, ...] = ()

    _repr_html_ = in_notebook

    def weights(self) -> tuple[PlannedTensor, ...]:
        """The weights among the tensors."""
        return tuple(tensor for tensor in self.tensors if tensor.side == "W")

    def activations(self) -> tuple[PlannedTensor, ...]:
        """The activations among the tensors."""
        return tuple(tensor for tensor in self.tensors if tensor.side == "A")

    def left_float(self) -> tuple[PlannedEdge, ...]:
        """The inputs that operators of their own read in float."""
        return tuple(edge for edge in self.edges if edge.in_float)

    def fused(self) -> tuple[PlannedEdge, ...]:
        """The inputs that exist only inside a fused operator, so that they need no quantizer."""
        return tuple(edge for edge in self.edges if edge.tensor is None and not edge.in_float)

    def with_specs(self, specs: Mapping[str, TensorSpec]) -> QuantPlan:
        """The same tensors with other specs, for example after ``set_bit``."""
        changed = tuple(replace(t, spec=specs.get(t.name, t.spec)) for t in self.tensors)
        return replace(self, tensors=changed)

    def difference(self, other: QuantPlan) -> list[str]:
        """The decisions in which ``other`` differs, one line each."""
        ours, theirs = ({t.name: t for t in plan.tensors} for plan in (self, other))
        lines = [f"- {name}: {ours[name].spec}" for name in ours if name not in theirs]
        lines += [f"+ {name}: {theirs[name].spec}" for name in theirs if name not in ours]
        for name in ours:
            if name in theirs and ours[name] != theirs[name]:
                what = [
                    f"{f.name} {getattr(ours[name], f.name)} -> {getattr(theirs[name], f.name)}"
                    for f in fields(PlannedTensor)
                    if getattr(ours[name], f.name) != getattr(theirs[name], f.name)
                ]
                lines.append(f"~ {name}: {'; '.join(what)}")
        return lines

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return {
            "target": self.target,
            "tensors": [asdict(tensor) | {"spec": _spec_to_dict(tensor.spec)} for tensor in self.tensors],
            "edges": [asdict(edge) for edge in self.edges],
            "notes": list(self.notes),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> QuantPlan:
        """The plan from the data of ``to_dict``."""
        try:
            plan = from_plain(cls, data)
            for tensor in plan.tensors:
                OBSERVERS.make(tensor.spec.observer, **tensor.spec.observer_options)
                QUANTIZERS[tensor.spec.quantizer]
        except RegistryError as error:
            raise SparsebitError(
                f"the saved plan names a plug-in that is not registered: {error.message}",
                hint="import the file that registers it first (on the command line: --plug-in FILE)",
            ) from None
        except (TypeError, ValueError, LookupError, PlugInError) as error:
            raise SparsebitError(f"this is not a saved plan: {error}") from None
        names = {tensor.name for tensor in plan.tensors}
        if len(names) != len(plan.tensors) or any(
            edge.tensor is not None and edge.tensor not in names for edge in plan.edges
        ):
            raise SparsebitError("this is not a saved plan: its edges and tensors are inconsistent")
        return plan

    def __str__(self) -> str:
        lines = [
            f"plan for {self.target}: {len(self.weights())} weights and {len(self.activations())} activations"
        ]
        width = max((len(t.name) for t in self.tensors), default=0)
        for tensor in self.tensors:
            readers = f" -> {', '.join(tensor.consumers)}" if tensor.consumers else ""
            lines.append(f"  {tensor.side} {tensor.name:<{width}}  {tensor.spec}{readers}: {tensor.reason}")
        for what, edges in (("in float", self.left_float()), ("no quantizer needed", self.fused())):
            if edges:
                lines.append(f"{what} ({len(edges)} inputs of operators)")
                lines += [f"  {edge.consumer} <- {edge.source}: {edge.reason}" for edge in edges]
        lines += [f"note: {note}" for note in self.notes]
        return printable("\n".join(lines))


def _spec_to_dict(spec: TensorSpec) -> dict[str, Any]:
    return {
        f.name: dict(value) if isinstance(value := getattr(spec, f.name), Mapping) else value
        for f in fields(spec)
    }
