"""Small edits of an ``onnx_ir`` graph: nodes, constants shared by value, what is dead."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from sparsebit.runtime.packages import require

SMALL = 65536  # elements up to which constants are compared


class Editor:
    """Edits one graph. Two constants with equal values are one initializer, which runtimes need to see to fuse."""

    def __init__(self, model: Any) -> None:
        self.ir = require("onnx_ir")
        self.model, self.graph = model, model.graph
        self._shared: dict[Any, Any] = {}
        self._names = {value.name for value in self.graph.inputs} | set(self.graph.initializers)
        self._node_names: set[str] = set()
        for node in self.graph.all_nodes():
            self._names |= {value.name for value in node.outputs}
            self._node_names.add(node.name or "")
        for value in self.graph.initializers.values():
            tensor = value.const_value
            if tensor is not None and tensor.size <= SMALL:
                array = tensor.numpy()
                self._shared.setdefault((tensor.dtype, array.shape, array.tobytes()), value)

    def fresh(self, name: str) -> str:
        """``name``, or with a number behind it where it is taken."""
        candidate, number = name, 1
        while candidate in self._names:
            candidate, number = f"{name}_{number}", number + 1
        self._names.add(candidate)
        return candidate

    def _fresh_node(self, name: str) -> str:
        candidate, number = name, 1
        while candidate in self._node_names:
            candidate, number = f"{name}_{number}", number + 1
        self._node_names.add(candidate)
        return candidate

    def constant(self, values: Any, dtype: Any, name: str) -> Any:
        """An initializer with these values (a numpy array) in an ONNX type; one for all with the same values.

        Where the type is not known (None, for a value that an exporter left without one) it is that of the array.
        """
        dtype = dtype or self.ir.DataType.from_numpy(np.asarray(values).dtype)
        array = np.ascontiguousarray(values).astype(dtype.numpy()).reshape(np.shape(values))
        small = array.size <= SMALL
        key = (dtype, array.shape, array.tobytes()) if small else None
        if key is not None and key in self._shared:
            return self._shared[key]
        name = self.fresh(name)
        value = self.ir.Value(
            name=name,
            shape=self.ir.Shape(array.shape),
            type=self.ir.TensorType(dtype),
            const_value=self.ir.Tensor(array, dtype=dtype, name=name),
        )
        self.graph.register_initializer(value)
        if key is not None:
            self._shared[key] = value
        return value

    def node(
        self,
        op_type: str,
        inputs: Sequence[Any],
        *,
        before: Any = None,
        after: Any = None,
        name: str,
        output: str,
        like: Any = None,
        dtype: Any = None,
        metadata: dict[str, str] | None = None,
        **attributes: Any,
    ) -> Any:
        """A new node in front of or behind another; returns its output, with the shape of ``like``."""
        made = self.ir.Node(
            "",
            op_type,
            list(inputs),
            self.ir.convenience.convert_attributes(attributes),
            num_outputs=1,
            name=self._fresh_node(name),
            metadata_props=metadata or {},
        )
        value = made.outputs[0]
        value.name = self.fresh(output)
        if like is not None:
            value.shape = like.shape
        if dtype is not None:
            value.type = self.ir.TensorType(dtype)
        if before is not None:
            self.graph.insert_before(before, made)
        else:
            self.graph.insert_after(after, made)
        return value

    def replace(self, old: Any, new: Any) -> None:
        """Let everybody read ``new`` instead of ``old``; an output of the graph keeps its name."""
        for user, place in list(old.uses()):
            user.replace_input_with(place, new)
        for index, output in enumerate(self.graph.outputs):
            if output is old:
                self.graph.outputs[index] = self._as_output(old, new)

    def put_behind(
        self, value: Any, op_type: str, more: Sequence[Any] = (), *, name: str, output: str
    ) -> None:
        """Let every reader of a computed value read the result of a new node instead, which takes it and ``more``."""
        uses = list(value.uses())
        made = self.node(
            op_type, [value, *more], after=value.producer(), name=name, output=output, like=value,
            dtype=value.dtype,
        )  # fmt: skip
        for reader, place in uses:
            reader.replace_input_with(place, made)

    def _as_output(self, old: Any, new: Any) -> Any:
        name, old.name = old.name, self.fresh(f"{old.name}_before")
        if new.producer() is not None and new not in self.graph.outputs and not new.is_graph_input():
            new.name, new.shape, new.type = name, old.shape, old.type
            return new
        copied = self.ir.Node("", "Identity", [new], num_outputs=1, name=f"{name}/Identity")
        value = copied.outputs[0]
        value.name, value.shape, value.type = name, old.shape, old.type
        self.graph.append(copied)
        return value

    def sweep(self) -> int:
        """Remove nodes and initializers that nothing reads; returns how many nodes."""
        removed = 0
        outputs = set(self.graph.outputs)
        for node in reversed(list(self.graph)):
            if not any(value.uses() or value in outputs for value in node.outputs):
                self.graph.remove(node, safe=True)
                removed += 1
        for name, value in list(self.graph.initializers.items()):
            if not value.uses() and value not in outputs:
                del self.graph.initializers[name]
        return removed


def readers(value: Any) -> list[Any]:
    """The nodes that read a value, each once."""
    found: list[Any] = []
    for node, _ in value.uses():
        if all(node is not other for other in found):
            found.append(node)
    return found


def only_reader(value: Any) -> Any:
    """The one node that reads a value, or None; being an output of the graph counts as another."""
    found = readers(value)
    return found[0] if len(found) == 1 and not value.is_graph_output() else None


def array_of(value: Any) -> Any:
    """A constant as a numpy array, or None for what is computed."""
    if value is None:
        return None
    tensor = value.const_value
    if tensor is None and value.producer() is not None and value.producer().op_type == "Constant":
        attribute = value.producer().attributes.get("value")
        tensor = attribute.value if attribute is not None else None
    return None if tensor is None else tensor.numpy()


def attribute(node: Any, name: str, default: Any = None) -> Any:
    """The value of an attribute of a node."""
    found = node.attributes.get(name)
    return default if found is None else found.value


def of_type(graph: Any, *names: str) -> Iterable[Any]:
    """The nodes with one of these operator types, as they were when asked."""
    return [node for node in graph if node.op_type in names and node.domain in ("", "ai.onnx")]


def evaluated(editor: Editor, value: Any) -> Any:
    """What a value computed from constants alone is, as a numpy array; None if it depends on the inputs."""
    known = array_of(value)
    if known is not None or value is None or value.producer() is None:
        return known
    nodes: list[Any] = []
    waiting, seen, leaves = [value], set(), {}
    while waiting:
        current = waiting.pop()
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        if current.const_value is not None:
            leaves[current.name] = current.const_value.numpy()
        elif current.producer() is None or len(nodes) > 50:
            return None
        else:
            nodes.append(current.producer())
            waiting += list(current.producer().inputs)
    order = {id(node): place for place, node in enumerate(editor.graph)}
    nodes = sorted({id(node): node for node in nodes}.values(), key=lambda node: order.get(id(node), 0))
    onnx = require("onnx")
    made = onnx.helper.make_graph(
        [editor.ir.serde.serialize_node(node) for node in nodes],
        "constant",
        [],
        [onnx.helper.make_empty_tensor_value_info(value.name)],
        [onnx.numpy_helper.from_array(array, name) for name, array in leaves.items()],
    )
    opset = onnx.helper.make_opsetid("", min(20, editor.model.opset_imports.get("", 20)))
    model = onnx.helper.make_model(made, opset_imports=[opset])
    return require("onnx.reference").ReferenceEvaluator(model).run(None, {})[0]
