"""Small edits of an ``onnx_ir`` graph: nodes, constants shared by value, rewrites of one node at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sparsebit.export.translate.marker import Markers
from sparsebit.export.translate.naming import unique
from sparsebit.runtime.packages import require

PRODUCTS = ("Conv", "Gemm", "MatMul")  # that have integer kernels on CPUs
WEIGHTED = (*PRODUCTS, "ConvTranspose")
SMALL = 65536  # elements up to which constants are compared
# Operators that integers pass through.
MOVES = frozenset({"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Identity"})
SCALED = "Scaled"  # the last word in the name of the node that unpacks 8-bit floats


class Editor:
    """Edits one graph. Constants with equal values share one initializer, which runtimes require for fusion.

    ``markers`` are the quantized tensors of the model, and ``dynamic`` is whether some input size is free.
    """

    def __init__(self, model: Any, markers: Markers, *, dynamic: bool = False) -> None:
        self.ir = require("onnx_ir")
        self.model, self.graph, self.markers, self.dynamic = model, model.graph, markers, dynamic
        self._shared: dict[Any, Any] = {}
        self._names = {value.name for value in self.graph.inputs} | set(self.graph.initializers)
        for node in self.graph.all_nodes():
            self._names |= {node.name, *(value.name for value in node.outputs)}
        for value in self.graph.initializers.values():
            tensor = value.const_value
            if tensor is not None and tensor.size <= SMALL:
                array = tensor.numpy()
                self._shared.setdefault((tensor.dtype, array.shape, array.tobytes()), value)

    @property
    def opset(self) -> int:
        """The version of ONNX's own operators."""
        return int(self.model.opset_imports[""])

    def fresh(self, name: str) -> str:
        """``name``, or the name with a number if it is already in use."""
        return unique(name, self._names)

    def of_type(self, *names: str) -> list[Any]:
        """The nodes with one of these operator types, as they are now."""
        return [node for node in self.graph if node.op_type in names]

    def apply(self, rewrite: Rewrite, *op_types: str) -> int:
        """Apply a rewrite to every node of these types; returns how many it changed."""
        changed = sum(rewrite(self, node) for node in self.of_type(*op_types))
        if changed:
            self.sweep()
        return changed

    def constant(self, values: Any, dtype: Any, name: str) -> Any:
        """An initializer with these values (a numpy array) in an ONNX type; one for all with the same values.

        If the type is unknown (None, for a value without a type from the exporter), it is that of the array.
        """
        dtype = dtype or self.ir.DataType.from_numpy(np.asarray(values).dtype)
        array = np.ascontiguousarray(values).astype(dtype.numpy()).reshape(np.shape(values))
        key = (dtype, array.shape, array.tobytes()) if array.size <= SMALL else None
        if key in self._shared:
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
        output: str = "",
        like: Any = None,
        dtype: Any = None,
        metadata: dict[str, str] | None = None,
        **attributes: Any,
    ) -> Any:
        """A new node before or after another; returns its output, with the shape and type of ``like``."""
        made = self.ir.Node(
            "",
            op_type,
            list(inputs),
            self.ir.convenience.convert_attributes(attributes),
            num_outputs=1,
            name=self.fresh(name),
            metadata_props=dict(metadata or {}),
        )
        value = made.outputs[0]
        value.name = self.fresh(output or f"{name}_output_0")
        if like is not None:
            value.shape, dtype = like.shape, dtype or like.dtype
        if dtype is not None:
            value.type = self.ir.TensorType(dtype)
        if before is not None:
            self.graph.insert_before(before, made)
        else:
            self.graph.insert_after(after, made)
        return value

    def replace(self, old: Any, new: Any) -> None:
        """Make all readers of ``old`` read ``new``; an output of the graph keeps its name."""
        for user, place in list(old.uses()):
            user.replace_input_with(place, new)
        for index, output in enumerate(self.graph.outputs):
            if output is old:
                self.graph.outputs[index] = self._as_output(old, new)

    def swap(self, node: Any, new: Any) -> None:
        """Make all readers of a node's result read ``new``, and remove the node."""
        self.replace(node.outputs[0], new)
        self.graph.remove(node, safe=True)

    def put_behind(self, value: Any, op_type: str, more: Sequence[Any] = (), *, name: str) -> None:
        """Make all readers of a value read the result of a new node, whose inputs are the value and ``more``."""
        uses = list(value.uses())
        made = self.node(op_type, [value, *more], after=value.producer(), name=name, like=value)
        for reader, place in uses:
            reader.replace_input_with(place, made)

    def put_before(self, node: Any, index: int, op_type: str, *, name: str) -> None:
        """Insert a new node before one input of a node."""
        value = node.inputs[index]
        node.replace_input_with(index, self.node(op_type, [value], before=node, name=name, like=value))

    def _as_output(self, old: Any, new: Any) -> Any:
        name, old.name = old.name, self.fresh(f"{old.name}_before")
        if new.producer() is not None and new not in self.graph.outputs and not new.is_graph_input():
            new.name, new.shape, new.type = name, old.shape, old.type
            return new
        copied = self.ir.Node("", "Identity", [new], num_outputs=1, name=self.fresh(f"{name}/Identity"))
        value = copied.outputs[0]
        value.name, value.shape, value.type = name, old.shape, old.type
        self.graph.append(copied)
        return value

    def sweep(self) -> None:
        """Remove nodes and initializers that nothing reads."""
        outputs = set(self.graph.outputs)
        for node in reversed(list(self.graph)):
            if not any(value.uses() or value in outputs for value in node.outputs):
                self.graph.remove(node, safe=True)
        for name, value in list(self.graph.initializers.items()):
            if not value.uses() and value not in outputs:
                del self.graph.initializers[name]

    def evaluated(self, value: Any) -> Any:
        """A value that is computed from constants only, as a numpy array; None if it depends on the inputs."""
        known = array_of(value)
        if known is not None or value is None or value.producer() is None:
            return known
        nodes: dict[Any, None] = {}
        waiting, leaves = [value], {}
        while waiting:
            current = waiting.pop()
            if current is None or current.producer() in nodes:
                continue
            if current.const_value is not None:
                leaves[current.name] = current.const_value.numpy()
            elif current.producer() is None or len(nodes) > 50:
                return None
            else:
                nodes[current.producer()] = None
                waiting += current.producer().inputs
        onnx = require("onnx")
        made = onnx.helper.make_graph(
            [self.ir.serde.serialize_node(node) for node in self.graph if node in nodes],
            "constant",
            [],
            [onnx.helper.make_empty_tensor_value_info(value.name)],
            [onnx.numpy_helper.from_array(array, name) for name, array in leaves.items()],
        )
        opset = onnx.helper.make_opsetid("", min(20, self.opset))
        model = onnx.helper.make_model(made, opset_imports=[opset])
        return require("onnx.reference").ReferenceEvaluator(model).run(None, {})[0]


Rewrite = Callable[[Editor, Any], bool]  # edits the graph around one node; returns whether it did


def readers(value: Any) -> list[Any]:
    """The nodes that read a value, each once."""
    return list(dict.fromkeys(node for node, _ in value.uses()))


def only_reader(value: Any) -> Any:
    """The only node that reads a value, or None; an output of the graph counts as another reader."""
    found = readers(value)
    return found[0] if len(found) == 1 and not value.is_graph_output() else None


def array_of(value: Any) -> Any:
    """A constant as a numpy array, or None for a computed value; a constant that is cast counts as a constant."""
    if value is None:
        return None
    tensor, maker = value.const_value, value.producer()
    if tensor is None and maker is not None and maker.op_type == "Constant":
        tensor = attribute(maker, "value")
    if tensor is None and maker is not None and maker.op_type == "Cast":  # how torch writes bounds of clip
        number = array_of(maker.inputs[0])
        kind = require("onnx_ir").DataType(attribute(maker, "to")).numpy()
        return number.astype(kind) if number is not None and number.size == 1 else None
    return None if tensor is None else tensor.numpy()


def attribute(node: Any, name: str, default: Any = None) -> Any:
    """The value of an attribute of a node."""
    found = node.attributes.get(name)
    return default if found is None else found.value


def maker_of(value: Any, *, behind: frozenset[str] = frozenset()) -> Any:
    """The node that computes a value, or None; operators in ``behind`` are skipped, by their first input."""
    node = value.producer() if value is not None else None
    while node is not None and node.op_type in behind:
        node = node.inputs[0].producer()
    return node


def dequantized(value: Any, *, behind: frozenset[str] = frozenset()) -> Any:
    """The DequantizeLinear a value comes from, or None."""
    node = maker_of(value, behind=behind)
    return node if node is not None and node.op_type == "DequantizeLinear" else None


def quantized_source(value: Any, *, behind: frozenset[str] = MOVES) -> Any:
    """The DequantizeLinear with one scale that an activation comes from, perhaps through a reshape, or None."""
    node = dequantized(value, behind=behind)
    if node is None or array_of(node.inputs[0]) is not None or np.ndim(array_of(node.inputs[1])):
        return None
    return node if array_of(node.inputs[1]) is not None else None


def is_float8(value: Any, *, behind: frozenset[str] = MOVES) -> bool:
    """Whether a value consists of unpacked 8-bit floats, perhaps after a reshape."""
    node = maker_of(value, behind=behind)
    return node is not None and node.op_type == "Mul" and str(node.name).endswith(f"/{SCALED}")
