"""The decoder of a Llama-like model as OpenVINO's own operators, keys and values kept as its state.

The operators stand as its CPU plugin looks for them (root mean square, rotary embedding, attention with a cache,
products with packed weights), so that each becomes one kernel. ``openvino_genai.LLMPipeline`` takes the same inputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparsebit.errors import missing_package
from sparsebit.llm.formats.matmul_nbits import block_weight
from sparsebit.numerics.packed import PackedTensor
from sparsebit.numerics.packing import unpack_bits

LAST = np.iinfo(np.int64).max  # the end of a slice
SMALLEST = float(np.finfo(np.float16).min)  # what a position that may not be seen gets in the mask


def import_openvino() -> Any:
    """The package that writes and runs the files."""
    try:
        import openvino
        import openvino.opset13
    except ImportError as error:
        raise missing_package("openvino", "an openvino folder", extra="openvino", error=error) from None
    return openvino


class OpenVinoGraph:
    """Adds nodes for one model; ``model`` is the result."""

    def __init__(self, module: Any, weights: Mapping[str, PackedTensor]) -> None:
        self._openvino = import_openvino()
        self._ops: Any = self._openvino.opset13
        self._module, self._config, self._weights = module, module.config, weights
        self._heads, self._kv_heads = self._config.num_attention_heads, self._config.num_key_value_heads
        self._width = getattr(self._config, "head_dim", None) or self._config.hidden_size // self._heads
        self._tables: dict[int, Any] = {}  # a table that is embedding and head is written once
        self._sinks: list[Any] = []

    def model(self) -> Any:
        """Ids, mask, positions and the order of the rows in; logits out; keys and values are variables."""
        ops = self._ops
        ids, mask, positions = (
            self._input(name, [-1, -1], np.int64) for name in ("input_ids", "attention_mask", "position_ids")
        )
        beam = self._input("beam_idx", [-1], np.int32)
        self._beam = beam
        self._batch = ops.gather(ops.shape_of(ids), [0], 0)
        seen = self._mask(ids, mask)
        turned = self._rotary(positions)
        decoder = self._module.model
        hidden = self._embedded(ids)
        for index, layer in enumerate(decoder.layers):
            path = f"model.layers.{index}"
            normed = self._norm(hidden, layer.input_layernorm)
            hidden = ops.add(hidden, self._attention(path, layer.self_attn, normed, seen, turned))
            normed = self._norm(hidden, layer.post_attention_layernorm)
            hidden = ops.add(hidden, self._feed_forward(f"{path}.mlp", layer.mlp, normed))
        logits = self._linear("lm_head", self._module.lm_head, self._norm(hidden, decoder.norm))
        result = ops.result(logits)
        result.output(0).set_names({"logits"})
        return self._openvino.Model([result], self._sinks, [ids, mask, positions, beam], "decoder")

    def _input(self, name: str, shape: list[int], dtype: Any) -> Any:
        made = self._ops.parameter(shape, dtype, name=name)
        made.output(0).set_names({name})
        return made

    def _mask(self, ids: Any, mask: Any) -> Any:
        """[batch, 1, length, total]: zero where a position may be seen."""
        ops = self._ops
        length, total = (ops.gather(ops.shape_of(one), [1], 0) for one in (ids, mask))
        flat = np.array([], np.int64)
        end = ops.reshape(total, flat, False)
        keys = ops.range(np.int64(0), end, np.int64(1), "i64")
        queries = ops.range(ops.reshape(ops.subtract(total, length), flat, False), end, np.int64(1), "i64")
        queries = ops.unsqueeze(queries, [1])
        allowed = ops.less_equal(keys, queries)
        if window := getattr(self._config, "sliding_window", None):
            allowed = ops.logical_and(allowed, ops.greater(keys, ops.subtract(queries, np.int64(window))))
        given = ops.unsqueeze(ops.not_equal(mask, np.int64(0)), [1, 2])
        both = ops.logical_and(ops.unsqueeze(allowed, [0, 1]), given)
        return ops.select(both, np.float32(0), np.float32(SMALLEST))

    def _rotary(self, positions: Any) -> tuple[Any, Any]:
        """Cosine and sine of every position, [batch, 1, length, width]."""
        ops, rotary = self._ops, self._module.model.rotary_emb
        frequencies = self._floats(rotary.inv_freq)[None, None]
        places = ops.unsqueeze(ops.convert(positions, "f32"), [2])
        angles = ops.multiply(places, frequencies)
        both = ops.concat([angles, angles], -1)
        scaling = np.float32(getattr(rotary, "attention_scaling", 1.0))
        cosine, sine = ops.unsqueeze(ops.cos(both), [1]), ops.unsqueeze(ops.sin(both), [1])
        return (
            (cosine, sine) if scaling == 1 else (ops.multiply(cosine, scaling), ops.multiply(sine, scaling))
        )

    def _rotated(self, x: Any, turned: tuple[Any, Any]) -> Any:
        ops, half = self._ops, self._width // 2
        first, second = (ops.slice(x, [start], [stop], [1], [3]) for start, stop in ((0, half), (half, LAST)))
        minus = np.full((1, 1, 1, 1), -1, np.float32)
        other = ops.concat([ops.multiply(second, minus), first], -1)
        return ops.add(ops.multiply(x, turned[0]), ops.multiply(other, turned[1]))

    def _norm(self, x: Any, norm: Any) -> Any:
        ops = self._ops
        mean = ops.reduce_mean(ops.power(x, np.float32(2)), [-1], keep_dims=True)
        root = ops.sqrt(ops.add(mean, np.float32(self._config.rms_norm_eps)))
        return ops.multiply(ops.multiply(x, ops.divide(np.float32(1), root)), self._floats(norm.weight))

    def _attention(self, path: str, attention: Any, x: Any, seen: Any, turned: tuple[Any, Any]) -> Any:
        ops, name = self._ops, f"{path}.self_attn"
        query, key, value = (
            self._by_head(self._linear(f"{name}.{part}_proj", getattr(attention, f"{part}_proj"), x), heads)
            for part, heads in (("q", self._heads), ("k", self._kv_heads), ("v", self._kv_heads))
        )
        if hasattr(attention, "q_norm"):
            query, key = self._norm(query, attention.q_norm), self._norm(key, attention.k_norm)
        query = self._rotated(query, turned)
        key = self._repeated(self._kept(f"{path}.key", self._rotated(key, turned)))
        value = self._repeated(self._kept(f"{path}.value", value))
        scale = np.float32(attention.scaling)
        attended = ops.scaled_dot_product_attention(query, key, value, seen, scale, causal=False)
        flat = ops.reshape(ops.transpose(attended, [0, 2, 1, 3]), [0, 0, self._heads * self._width], True)
        return self._linear(f"{name}.o_proj", attention.o_proj, flat)

    def _by_head(self, x: Any, heads: int) -> Any:
        return self._ops.transpose(self._ops.reshape(x, [0, 0, heads, self._width], True), [0, 2, 1, 3])

    def _kept(self, name: str, new: Any) -> Any:
        """What the variable holds, in the order of ``beam_idx``, and ``new`` after it; both are held from then on."""
        ops = self._ops
        sizes = np.array([self._kv_heads, 0, self._width], np.int64)
        empty = ops.broadcast(np.float32(0), ops.concat([self._batch, sizes], 0))
        shape = self._openvino.PartialShape([-1, self._kv_heads, -1, self._width])
        read = ops.read_value(empty, name, self._openvino.Type.f32, shape)
        both = ops.concat([ops.gather(read, self._beam, 0), new], 2)
        self._sinks.append(ops.assign(both, name))
        return both

    def _repeated(self, x: Any) -> Any:
        """Each head of keys or values for all the queries that share it."""
        ops, times = self._ops, self._heads // self._kv_heads
        if times == 1:
            return x
        shape = ops.concat([self._batch, np.array([self._kv_heads, times, 1, self._width], np.int64)], 0)
        spread = ops.broadcast(ops.unsqueeze(x, 2), shape, broadcast_spec="BIDIRECTIONAL")
        return ops.reshape(spread, [0, self._heads, -1, self._width], True)

    def _feed_forward(self, path: str, mlp: Any, x: Any) -> Any:
        gate, up = (
            self._linear(f"{path}.{name}", getattr(mlp, name), x) for name in ("gate_proj", "up_proj")
        )
        return self._linear(f"{path}.down_proj", mlp.down_proj, self._ops.multiply(self._ops.swish(gate), up))

    def _embedded(self, ids: Any) -> Any:
        table = self._table("model.embed_tokens.weight", self._module.model.embed_tokens)
        return self._ops.gather(table, ids, 0, name="model.embed_tokens")

    def _linear(self, name: str, layer: Any, x: Any) -> Any:
        table = self._table(f"{name}.weight", layer)
        made = self._ops.matmul(x, table, False, True, name=name)
        bias = getattr(layer, "bias", None)
        return made if bias is None else self._ops.add(made, self._floats(bias))

    def _table(self, name: str, layer: Any) -> Any:
        """A matrix [out, in]: packed and unpacked by operators that the plugin fuses, or float."""
        held = self._weights.get(name)
        key = (layer.weight if held is None else held.bits).data_ptr()
        if held is None:
            self._tables.setdefault(key, self._ops.constant(self._floats(layer.weight)))
        elif key not in self._tables:
            self._tables[key] = self._unpacked(held)
        return self._tables[key]

    def _unpacked(self, held: PackedTensor) -> Any:
        """(values - zero points) * scales. Without zero points the values are signed."""
        ops, weight = self._ops, block_weight(held)
        rows, count = weight.scales.shape
        shape = [rows, count, weight.block_size]
        signed = weight.zero_points is None
        values = weight.values
        if signed:  # the same values counted from zero: the highest bit of each is the sign
            sign = sum(1 << (shift + weight.bits - 1) for shift in range(0, 8, weight.bits))
            values = values ^ sign
        kind = getattr(self._openvino.Type, f"{'i' if signed else 'u'}{weight.bits}")
        steps = ops.convert(self._packed(values, shape, kind), "f32")
        if weight.zero_points is not None:
            points = unpack_bits(weight.zero_points, weight.bits, count)
            steps = ops.subtract(steps, ops.convert(ops.constant(points[..., None].numpy()), "f32"))
        numbers = ops.multiply(steps, self._scales(weight.scales[..., None]))
        return ops.reshape(numbers, [rows, -1], False)

    def _scales(self, scales: Tensor) -> Any:
        """As float16 where that is exact, which is the same speed and a tenth of the file less; used as float32."""
        half = scales.half()
        if not torch.equal(half.float(), scales):
            return self._ops.constant(scales.numpy())
        return self._ops.convert(self._ops.constant(half.numpy()), "f32")

    def _packed(self, values: Tensor, shape: list[int], kind: Any) -> Any:
        flat = np.ascontiguousarray(values.reshape(-1).numpy())
        tensor = self._openvino.Tensor(flat, self._openvino.Shape(shape), kind)
        return self._openvino.op.Constant(
            tensor, shared_memory=False
        )  # shared memory would not be kept alive

    def _floats(self, value: Tensor) -> np.ndarray[Any, Any]:
        array: np.ndarray[Any, Any] = value.detach().to(torch.float32).contiguous().cpu().numpy()
        return array
