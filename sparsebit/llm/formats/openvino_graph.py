"""A decoder in OpenVINO's operators, with keys and values as its state.

The operators form the patterns that the CPU plugin fuses (RMS norm, rotary embedding, attention with a cache, products
with packed weights), so that each becomes one kernel. ``openvino_genai.LLMPipeline`` takes the same inputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparsebit.llm.decoder.parts import Activation, Attention, Decoder, Experts, Matrix, Norm, Rotary
from sparsebit.llm.decoder.walk import build_logits, mix_all
from sparsebit.llm.formats.matmul_nbits import block_weight
from sparsebit.numerics.packed import PackedTensor
from sparsebit.numerics.packing import unpack_bits
from sparsebit.runtime.packages import require

LAST = np.iinfo(np.int64).max  # the end of a slice
SMALLEST = float(np.finfo(np.float16).min)  # the mask value of a position that may not be seen


class OpenVinoGraph:
    """Adds nodes for one decoder; ``model`` is the result."""

    def __init__(self, decoder: Decoder, weights: Mapping[str, PackedTensor]) -> None:
        self._openvino, self._ops = require("openvino"), require("openvino.opset13")
        self._decoder, self._weights = decoder, weights
        self._tables: dict[int, Any] = {}  # a table used as embedding and head is written once
        self._masks: dict[int | None, Any] = {}  # by window
        self._turns: dict[int, tuple[Any, Any]] = {}  # by rotary
        self._sinks: list[Any] = []
        self._ids, self._mask, self._positions = (
            self._input(name, [-1, -1], np.int64) for name in ("input_ids", "attention_mask", "position_ids")
        )
        self._beam = self._input("beam_idx", [-1], np.int32)
        self._batch = self._ops.gather(self._ops.shape_of(self._ids), [0], 0)

    def model(self) -> Any:
        """Ids, mask, positions and the order of the rows in; logits out; keys and values are variables."""
        result = self._ops.result(build_logits(self, self._decoder))
        result.output(0).set_names({"logits"})
        inputs = [self._ids, self._mask, self._positions, self._beam]
        return self._openvino.Model([result], self._sinks, inputs, "decoder")

    def embed(self, decoder: Decoder) -> Any:
        """The rows of the table, packed or float."""
        ops = self._ops
        found = ops.gather(self._table(decoder.embedding), self._ids, 0, name=decoder.embedding.layer)
        if decoder.embedding_factor != 1:
            found = self.scale(found, decoder.embedding_factor)
        if decoder.positions is None:
            return found
        table = decoder.positions.read()[decoder.position_offset :]
        return ops.add(found, ops.gather(_floats(table), self._positions, 0))

    def norm(self, x: Any, norm: Norm) -> Any:
        """The operators that the plugin fuses into one."""
        ops = self._ops
        if norm.kind == "layer":
            made = ops.multiply(ops.mvn(x, [-1], True, norm.epsilon, "inside_sqrt"), _floats(norm.weight))
            return made if norm.bias is None else ops.add(made, _floats(norm.bias))
        mean = ops.reduce_mean(ops.power(x, np.float32(2)), [-1], keep_dims=True)
        root = ops.sqrt(ops.add(mean, np.float32(norm.epsilon)))
        return ops.multiply(ops.multiply(x, ops.divide(np.float32(1), root)), _floats(norm.weight))

    def add_and_norm(self, x: Any, y: Any, norm: Norm) -> tuple[Any, Any]:
        """The sum, and its norm."""
        both = self.add(x, y)
        return both, self.norm(both, norm)

    def attend(self, index: int, attention: Attention, x: Any) -> Any:
        """Attention with keys and values kept for the next call."""
        ops = self._ops
        query, key, value = self._queries_keys_values(attention, x)
        if attention.rotary is not None:
            query, key = (self._rotated(one, attention) for one in (query, key))
        key, value = (
            self._repeated(self._kept(f"past_key_values.{index}.{name}", one, attention), attention)
            for name, one in (("key", key), ("value", value))
        )
        seen, scale = self._seen(attention.window), np.float32(attention.scale)
        if attention.softcap:
            scores = ops.multiply(ops.matmul(query, key, False, True), scale)
            scores = ops.add(self.softcap(scores, attention.softcap), seen)
            attended = ops.matmul(ops.softmax(scores, -1), value, False, False)
        else:
            attended = ops.scaled_dot_product_attention(query, key, value, seen, scale, causal=False)
        channels = attention.heads * attention.width
        return ops.reshape(ops.transpose(attended, [0, 2, 1, 3]), [0, 0, channels], True)

    def multiply_matrix(self, matrix: Matrix, x: Any) -> Any:
        """One operator, which the plugin fuses with those that unpack the matrix."""
        made = self._ops.matmul(x, self._table(matrix), False, True, name=matrix.layer)
        return made if matrix.bias is None else self._ops.add(made, _floats(matrix.bias))

    def halves(self, x: Any) -> tuple[Any, Any]:
        """One operator."""
        first, second = self._ops.split(x, -1, 2).outputs()
        return first, second

    def activate(self, activation: Activation, x: Any) -> Any:
        """One operator."""
        ops = self._ops
        if activation in ("gelu", "gelu_tanh"):
            return ops.gelu(x, "tanh" if activation == "gelu_tanh" else "erf")
        return ops.swish(x) if activation == "silu" else ops.relu(x)

    def add(self, x: Any, y: Any) -> Any:
        """One operator."""
        return self._ops.add(x, y)

    def multiply(self, x: Any, y: Any) -> Any:
        """One operator."""
        return self._ops.multiply(x, y)

    def scale(self, x: Any, factor: float) -> Any:
        """One operator."""
        return self._ops.multiply(x, np.float32(factor))

    def sigmoid(self, x: Any) -> Any:
        """One operator."""
        return self._ops.sigmoid(x)

    def softcap(self, x: Any, bound: float) -> Any:
        """Three operators."""
        size = np.float32(bound)
        return self._ops.multiply(self._ops.tanh(self._ops.divide(x, size)), size)

    def mix(self, experts: Experts, x: Any) -> Any:
        """All experts; a weight is the softmax of the router's outputs, or zero."""
        ops = self._ops
        shares = ops.softmax(self.multiply_matrix(experts.router, x), -1)
        largest, places = ops.topk(shares, experts.chosen, -1, "max", "value").outputs()
        if experts.normalized:
            largest = ops.divide(largest, ops.reduce_sum(largest, [-1], keep_dims=True))
        nothing = ops.broadcast(np.float32(0), ops.shape_of(shares))
        weights = ops.scatter_elements_update(nothing, places, largest, -1)
        return mix_all(self, experts, x, ops.split(weights, -1, len(experts.experts)).outputs())

    def _input(self, name: str, shape: list[int], dtype: Any) -> Any:
        made = self._ops.parameter(shape, dtype, name=name)
        made.output(0).set_names({name})
        return made

    def _seen(self, window: int | None) -> Any:
        """[batch, 1, length, total]: zero where a position may be seen."""
        if window not in self._masks:
            ops = self._ops
            length, total = (ops.gather(ops.shape_of(one), [1], 0) for one in (self._ids, self._mask))
            flat = np.array([], np.int64)
            end = ops.reshape(total, flat, False)
            keys = ops.range(np.int64(0), end, np.int64(1), "i64")
            start = ops.reshape(ops.subtract(total, length), flat, False)
            queries = ops.unsqueeze(ops.range(start, end, np.int64(1), "i64"), [1])
            allowed = ops.less_equal(keys, queries)
            if window is not None:
                near = ops.greater(keys, ops.subtract(queries, np.int64(window)))
                allowed = ops.logical_and(allowed, near)
            given = ops.unsqueeze(ops.not_equal(self._mask, np.int64(0)), [1, 2])
            both = ops.logical_and(ops.unsqueeze(allowed, [0, 1]), given)
            self._masks[window] = ops.select(both, np.float32(0), np.float32(SMALLEST))
        return self._masks[window]

    def _turn(self, rotary: Rotary) -> tuple[Any, Any]:
        """Cosine and sine of every position, [batch, 1, length, rotated channels]."""
        if id(rotary) not in self._turns:
            ops = self._ops
            places = ops.unsqueeze(ops.convert(self._positions, "f32"), [2])
            frequencies = _floats(rotary.frequencies)[None, None]
            if rotary.long_frequencies is not None:
                last = ops.reduce_max(self._positions, [0, 1], keep_dims=False)
                long = _floats(rotary.long_frequencies)[None, None]
                beyond = ops.greater_equal(last, np.int64(rotary.original_context))
                frequencies = ops.select(beyond, long, frequencies)
            angles = ops.multiply(places, frequencies)
            both = ops.unsqueeze(ops.concat([angles, angles], -1), [1])
            cosine, sine = ops.cos(both), ops.sin(both)
            if rotary.scaling != 1:
                cosine, sine = (ops.multiply(one, np.float32(rotary.scaling)) for one in (cosine, sine))
            self._turns[id(rotary)] = cosine, sine
        return self._turns[id(rotary)]

    def _rotated(self, x: Any, attention: Attention) -> Any:
        rotary = attention.rotary
        assert rotary is not None
        ops, (cosine, sine), half = self._ops, self._turn(rotary), rotary.width // 2
        apart = rotary.width < attention.width
        turned = ops.slice(x, [0], [rotary.width], [1], [3]) if apart else x
        if rotary.interleaved:  # reordering queries and keys alike does not change their products
            order = torch.arange(rotary.width).view(-1, 2).T.flatten().numpy()
            turned = ops.gather(turned, order, 3)
        first, second = (
            ops.slice(turned, [start], [stop], [1], [3]) for start, stop in ((0, half), (half, LAST))
        )
        minus = np.full((1, 1, 1, 1), -1, np.float32)
        other = ops.concat([ops.multiply(second, minus), first], -1)
        turned = ops.add(ops.multiply(turned, cosine), ops.multiply(other, sine))
        return ops.concat([turned, ops.slice(x, [rotary.width], [LAST], [1], [3])], -1) if apart else turned

    def _queries_keys_values(self, attention: Attention, x: Any) -> tuple[Any, Any, Any]:
        """[batch, heads, length, width] each, clipped and normed."""
        ops, width = self._ops, attention.width
        made = [self.multiply_matrix(matrix, x) for matrix in attention.inputs]
        if len(made) == 1:
            grouped = ops.reshape(made[0], [0, 0, attention.groups, -1], True)
            made = ops.variadic_split(grouped, 3, np.array(attention.rows, np.int64)).outputs()
        if attention.clip:
            made = [ops.clamp(one, -attention.clip, attention.clip) for one in made]
        norms: tuple[Norm | None, ...] = (*(attention.norms or (None, None)), None)
        heads = (attention.heads, attention.kv_heads, attention.kv_heads)
        query, key, value = (
            self._by_head(one, norm, count, width)
            for one, norm, count in zip(made, norms, heads, strict=True)
        )
        return query, key, value

    def _by_head(self, x: Any, norm: Norm | None, heads: int, width: int) -> Any:
        """The norm over each head, or over all heads if its weight covers all."""
        if norm is not None and len(norm.weight) != width:
            x, norm = self.norm(x, norm), None
        apart = self._ops.transpose(self._ops.reshape(x, [0, 0, heads, width], True), [0, 2, 1, 3])
        return apart if norm is None else self.norm(apart, norm)

    def _kept(self, name: str, new: Any, attention: Attention) -> Any:
        """The cached values in the order of ``beam_idx``, followed by ``new``; both are cached."""
        ops, heads, width = self._ops, attention.kv_heads, attention.width
        sizes = np.array([heads, 0, width], np.int64)
        empty = ops.broadcast(np.float32(0), ops.concat([self._batch, sizes], 0))
        shape = self._openvino.PartialShape([-1, heads, -1, width])
        read = ops.read_value(empty, name, self._openvino.Type.f32, shape)
        both = ops.concat([ops.gather(read, self._beam, 0), new], 2)
        self._sinks.append(ops.assign(both, name))
        return both

    def _repeated(self, x: Any, attention: Attention) -> Any:
        """Repeat each key or value head for the queries that share it."""
        ops, heads, width = self._ops, attention.kv_heads, attention.width
        times = attention.heads // heads
        if times == 1:
            return x
        shape = ops.concat([self._batch, np.array([heads, times, 1, width], np.int64)], 0)
        spread = ops.broadcast(ops.unsqueeze(x, 2), shape, broadcast_spec="BIDIRECTIONAL")
        return ops.reshape(spread, [0, attention.heads, -1, width], True)

    def _table(self, matrix: Matrix) -> Any:
        """A matrix [out, in]: packed and unpacked by operators that the plugin fuses, or float."""
        held = self._weights.get(matrix.name)
        if matrix.storage not in self._tables:
            made = self._ops.constant(_floats(matrix.read())) if held is None else self._unpacked(held)
            self._tables[matrix.storage] = made
        return self._tables[matrix.storage]

    def _unpacked(self, held: PackedTensor) -> Any:
        """(values - zero points) * scales. Without zero points the values are signed where there is such a type."""
        ops, weight = self._ops, block_weight(held)
        rows, count = weight.scales.shape
        shape = [rows, count, weight.block_size]
        kind = getattr(self._openvino.Type, f"i{weight.bits}", None)
        signed = weight.zero_points is None and kind is not None
        values = weight.values
        if signed:  # the same values shifted to start at zero: flip the highest bit, which is the sign
            sign = sum(1 << (shift + weight.bits - 1) for shift in range(0, 8, weight.bits))
            values = values ^ sign
        kind = kind if signed else getattr(self._openvino.Type, f"u{weight.bits}")
        steps = ops.convert(self._packed(values, shape, kind), "f32")
        if weight.zero_points is not None:
            points = unpack_bits(weight.zero_points, weight.bits, count)
            steps = ops.subtract(steps, ops.convert(ops.constant(points[..., None].numpy()), "f32"))
        elif not signed:
            steps = ops.subtract(steps, np.float32(2 ** (weight.bits - 1)))
        numbers = ops.multiply(steps, self._scales(weight.scales[..., None]))
        return ops.reshape(numbers, [rows, -1], False)

    def _scales(self, scales: Tensor) -> Any:
        """Stored as float16 if exact, which makes the file a tenth smaller at the same speed; used as float32."""
        half = scales.half()
        if not torch.equal(half.float(), scales):
            return self._ops.constant(scales.numpy())
        return self._ops.convert(self._ops.constant(half.numpy()), "f32")

    def _packed(self, values: Tensor, shape: list[int], kind: Any) -> Any:
        flat = np.ascontiguousarray(values.reshape(-1).numpy())
        tensor = self._openvino.Tensor(flat, self._openvino.Shape(shape), kind)
        # Shared memory would not be kept alive.
        return self._openvino.op.Constant(tensor, shared_memory=False)


def _floats(value: Tensor) -> np.ndarray[Any, Any]:
    array: np.ndarray[Any, Any] = value.detach().to(torch.float32).contiguous().cpu().numpy()
    return array
