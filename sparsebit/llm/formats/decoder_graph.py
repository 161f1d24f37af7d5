"""The decoder of a Llama-like model as an ONNX graph of ONNX Runtime's own operators, built layer by layer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from sparsebit.llm.formats.matmul_nbits import BlockWeight, block_weight, joined
from sparsebit.numerics.packed import PackedTensor

MICROSOFT = "com.microsoft"


class DecoderGraph:
    """Adds nodes for one model; ``model`` is the result."""

    def __init__(
        self,
        module: Any,
        weights: Mapping[str, PackedTensor],
        levels: Mapping[str, int],
    ) -> None:
        """Args:
        module: a model of transformers.
        weights: its quantized matrices.
        levels: the accuracy level of each layer.
        """
        self._module, self._config, self._weights = module, module.config, weights
        self._levels = levels
        self._tape = ir.tape.Tape()
        self._heads = self._config.num_attention_heads
        self._kv_heads = self._config.num_key_value_heads
        self._width = getattr(self._config, "head_dim", None) or self._config.hidden_size // self._heads
        self._inputs: list[ir.Value] = []
        self._outputs: list[ir.Value] = []
        self._made: dict[str, tuple[BlockWeight, list[ir.Value | None]]] = {}

    def model(self) -> ir.Model:
        """The graph: ids, mask and earlier keys and values in; logits and all keys and values out."""
        ids = self._input("input_ids", ["batch_size", "sequence_length"], ir.DataType.INT64)
        mask = self._input("attention_mask", ["batch_size", "total_sequence_length"], ir.DataType.INT64)
        lengths = self._lengths(mask)
        cache = self._rotary_cache()
        decoder = self._module.model
        hidden = self._embedded(ids)
        normed = self._norm(hidden, decoder.layers[0].input_layernorm)
        for index, layer in enumerate(decoder.layers):
            path = f"model.layers.{index}"
            attended = self._attention(path, layer.self_attn, normed, lengths, cache, index)
            normed, hidden = self._add_and_norm(hidden, attended, layer.post_attention_layernorm)
            fed = self._feed_forward(f"{path}.mlp", layer.mlp, normed)
            last = index + 1 == len(decoder.layers)
            norm = decoder.norm if last else decoder.layers[index + 1].input_layernorm
            normed, hidden = self._add_and_norm(hidden, fed, norm)
        (logits,) = self._linears(["lm_head"], [self._module.lm_head], normed)
        shape = ["batch_size", "sequence_length", self._config.vocab_size]
        self._outputs.insert(0, self._named(logits, "logits", shape))
        graph = ir.Graph(
            self._inputs,
            self._outputs,
            nodes=self._tape.nodes,
            initializers=self._tape.initializers,
            opset_imports={"": 22, MICROSOFT: 1},
            name="decoder",
        )
        return ir.Model(graph, ir_version=10, producer_name="sparsebit")

    def _lengths(self, mask: ir.Value) -> tuple[ir.Value, ir.Value]:
        """How many ids each row has, less one, and the length of the mask: both in int32."""
        one = self._constant(np.array([1], np.int64))
        counted = self._tape.op("Sub", [self._tape.op("ReduceSum", [mask, one]), one])
        total = self._tape.op(
            "Gather", [self._tape.op("Shape", [mask]), self._constant(np.array(1, np.int64))], {"axis": 0}
        )
        to = {"to": int(ir.DataType.INT32)}
        return self._tape.op("Cast", [counted], to), self._tape.op("Cast", [total], to)

    def _rotary_cache(self) -> tuple[ir.Value, ir.Value]:
        rotary = self._module.model.rotary_emb
        positions = torch.arange(self._config.max_position_embeddings, dtype=torch.float32)
        angles = torch.outer(positions, rotary.inv_freq.float().cpu())
        scaling = float(getattr(rotary, "attention_scaling", 1.0))
        return self._constant(angles.cos() * scaling), self._constant(angles.sin() * scaling)

    def _embedded(self, ids: ir.Value) -> ir.Value:
        held = self._weights.get("model.embed_tokens.weight")
        if held is None:
            return self._tape.op("Gather", [self._constant(self._module.model.embed_tokens.weight), ids])
        weight, (values, scales, points) = self._parts("model.embed_tokens", held)
        flat = self._constant(np.array([held.shape[0], -1], np.int64))
        attributes = {"bits": weight.bits, "block_size": weight.block_size} | {
            "gather_axis": 0,
            "quantize_axis": 1,
        }
        inputs = [self._tape.op("Reshape", [values, flat]), ids, scales, points]
        return self._tape.op(
            "GatherBlockQuantized", inputs, attributes, domain=MICROSOFT, name="model.embed_tokens"
        )

    def _attention(
        self,
        path: str,
        attention: Any,
        x: ir.Value,
        lengths: tuple[ir.Value, ir.Value],
        cache: tuple[ir.Value, ir.Value],
        index: int,
    ) -> ir.Value:
        names = [f"{path}.self_attn.{name}_proj" for name in "qkv"]
        layers = [attention.q_proj, attention.k_proj, attention.v_proj]
        if hasattr(attention, "q_norm"):
            projected = [
                self._linears([name], [layer], x)[0] for name, layer in zip(names, layers, strict=True)
            ]
            for place, norm in enumerate((attention.q_norm, attention.k_norm)):
                projected[place] = self._norm_of_heads(projected[place], norm)
        else:
            projected = self._linears(names, layers, x)
        shape = ["batch_size", self._kv_heads, "past_sequence_length", self._width]
        past = [
            self._input(f"past_key_values.{index}.{part}", shape, ir.DataType.FLOAT)
            for part in ("key", "value")
        ]
        out, *present = self._tape.op_multi_out(
            "GroupQueryAttention",
            [*projected, *[None] * (3 - len(projected)), *past, *lengths, *cache],
            {
                "num_heads": self._heads,
                "kv_num_heads": self._kv_heads,
                "scale": float(attention.scaling),
                "do_rotary": 1,
                "rotary_interleaved": 0,
                "local_window_size": getattr(self._config, "sliding_window", None) or -1,
            },
            num_outputs=3,
            domain=MICROSOFT,
        )
        shape[2] = "total_sequence_length"
        for part, value in zip(("key", "value"), present, strict=True):
            self._outputs.append(self._named(value, f"present.{index}.{part}", shape))
        return self._linears([f"{path}.self_attn.o_proj"], [attention.o_proj], out)[0]

    def _feed_forward(self, path: str, mlp: Any, x: ir.Value) -> ir.Value:
        (gate,) = self._linears([f"{path}.gate_proj"], [mlp.gate_proj], x)
        (up,) = self._linears([f"{path}.up_proj"], [mlp.up_proj], x)
        active = self._tape.op("Mul", [gate, self._tape.op("Sigmoid", [gate])])
        return self._linears([f"{path}.down_proj"], [mlp.down_proj], self._tape.op("Mul", [active, up]))[0]

    def _norm(self, x: ir.Value, norm: Any) -> ir.Value:
        return self._tape.op(
            "SimplifiedLayerNormalization",
            [x, self._constant(norm.weight)],
            {"axis": -1, "epsilon": float(self._config.rms_norm_eps), "stash_type": 1},
        )

    def _norm_of_heads(self, x: ir.Value, norm: Any) -> ir.Value:
        """The norm of each head by itself."""
        apart, joined_again = ([0, 0, -1, self._width], [0, 0, -1])
        heads = self._tape.op("Reshape", [x, self._constant(np.array(apart, np.int64))])
        return self._tape.op(
            "Reshape", [self._norm(heads, norm), self._constant(np.array(joined_again, np.int64))]
        )

    def _add_and_norm(self, hidden: ir.Value, more: ir.Value, norm: Any) -> tuple[ir.Value, ir.Value]:
        """The norm of the sum, and the sum."""
        outputs = self._tape.op_multi_out(
            "SkipSimplifiedLayerNormalization",
            [hidden, more, self._constant(norm.weight)],
            {"epsilon": float(self._config.rms_norm_eps)},
            num_outputs=4,
            domain=MICROSOFT,
        )
        outputs[1].name = outputs[2].name = ""  # mean and variance, which are not computed
        return outputs[0], outputs[3]

    def _linears(self, names: Sequence[str], layers: Sequence[Any], x: ir.Value) -> list[ir.Value]:
        """Linear layers that read ``x``: one product for all where their grids are of one kind, else one each."""
        held = [self._weights.get(f"{name}.weight") for name in names]
        made = [block_weight(one) for one in held if one is not None]
        biases = [getattr(layer, "bias", None) for layer in layers]
        same = len(made) == len(names) and len({one.kind for one in made}) == 1
        if len(names) > 1 and not same:
            return [self._linears([name], [layer], x)[0] for name, layer in zip(names, layers, strict=True)]
        if not made:
            weight = layers[0].weight.detach().float().T
            result = self._tape.op("MatMul", [x, self._constant(weight)])
        else:
            tied = len(names) == 1 and held[0] is not None and self._tied(names[0], held[0])
            key = "model.embed_tokens" if tied else "+".join(names)
            weight_of, parts = self._parts(key, held[0], joined(made))
            rows, _ = weight_of.scales.shape
            columns = layers[0].in_features
            attributes = {"K": columns, "N": rows, "bits": weight_of.bits}
            attributes |= {"block_size": weight_of.block_size, "accuracy_level": self._levels[names[0]]}
            result = self._tape.op(
                "MatMulNBits", [x, *parts], attributes, domain=MICROSOFT, name="+".join(names)
            )
            node = result.producer()
            assert node is not None
            node.metadata_props["rows"] = json.dumps([layer.out_features for layer in layers])
        if any(bias is not None for bias in biases):
            whole = [
                torch.zeros(layer.out_features) if bias is None else bias.detach().float()
                for layer, bias in zip(layers, biases, strict=True)
            ]
            result = self._tape.op("Add", [result, self._constant(torch.cat(whole))])
        return [result]

    def _tied(self, name: str, held: PackedTensor) -> bool:
        embedding = self._weights.get("model.embed_tokens.weight")
        return (
            name == "lm_head" and embedding is not None and embedding.bits.data_ptr() == held.bits.data_ptr()
        )

    def _parts(
        self, key: str, held: PackedTensor | None, weight: BlockWeight | None = None
    ) -> tuple[BlockWeight, list[ir.Value | None]]:
        """The initializers of a weight, made once for each key."""
        if key not in self._made:
            if weight is None:
                assert held is not None
                weight = block_weight(held)
            points = weight.zero_points
            parts = [
                self._constant(weight.values, f"{key}.values"),
                self._constant(weight.scales, f"{key}.scales"),
                None if points is None else self._constant(points, f"{key}.zero_points"),
            ]
            self._made[key] = weight, parts
        return self._made[key]

    def _constant(self, value: Tensor | np.ndarray[Any, Any], name: str = "") -> ir.Value:
        array = value.detach().contiguous().cpu().numpy() if isinstance(value, Tensor) else value
        name = name or f"constant_{len(self._tape.initializers)}"
        return self._tape.initializer(ir.tensor(array, name=name), name=name)

    def _input(self, name: str, shape: Sequence[str | int], dtype: ir.DataType) -> ir.Value:
        self._inputs.append(ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(dtype)))
        return self._inputs[-1]

    def _named(self, value: ir.Value, name: str, shape: Sequence[str | int]) -> ir.Value:
        value.name, value.shape, value.type = name, ir.Shape(shape), ir.TensorType(ir.DataType.FLOAT)
        return value
