"""A decoder as an ONNX graph of ONNX Runtime's own operators."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import onnx_ir as ir
import torch
from torch import Tensor

from sparsebit.llm.decoder.parts import (
    Activation,
    Attention,
    Decoder,
    Experts,
    Matrix,
    Norm,
    Rotary,
)
from sparsebit.llm.decoder.walk import build_logits, mix_all
from sparsebit.llm.formats.matmul_nbits import BlockWeight, block_kind, block_weight, joined, with_rows
from sparsebit.llm.formats.onnx_tape import OnnxTape
from sparsebit.llm.formats.stacked_experts import BITS, Stack, StackedExperts, stack_experts
from sparsebit.numerics.packed import PackedTensor


class OnnxGraph:
    """Adds nodes for one decoder; ``model`` is the result."""

    def __init__(
        self, decoder: Decoder, weights: Mapping[str, PackedTensor], levels: Mapping[str, int]
    ) -> None:
        """Args:
        decoder: what is computed.
        weights: its quantized matrices.
        levels: the accuracy level of each layer; others are computed in float.
        """
        self._decoder, self._weights, self._levels = decoder, weights, levels
        self._tape = OnnxTape()
        self._made: dict[str, tuple[BlockWeight, list[ir.Value | None]]] = {}
        self._rotary_tables: dict[int, tuple[ir.Value, ir.Value]] = {}
        self._float_table: ir.Value | None = None
        self._positions: ir.Value | None = None
        self._long_places: dict[int, ir.Value] = {}
        self._ids = self._tape.input("input_ids", ["batch_size", "sequence_length"])
        mask = self._tape.input("attention_mask", ["batch_size", "total_sequence_length"])
        self._lengths = self._count(mask)

    def model(self) -> ir.Model:
        """The graph: ids, mask and earlier keys and values in; logits and all keys and values out."""
        logits = build_logits(self, self._decoder)
        shape: list[str | int] = ["batch_size", "sequence_length", self._decoder.head.shape[0]]
        self._tape.output(logits, "logits", shape)
        return self._tape.model()

    def embed(self, decoder: Decoder) -> ir.Value:
        """The rows of the table, packed or float."""
        found = self._rows(decoder.embedding)
        if decoder.embedding_factor != 1:
            found = self.scale(found, decoder.embedding_factor)
        if decoder.positions is None:
            return found
        table = decoder.positions.read()[decoder.position_offset :]
        return self.add(found, self._tape.op("Gather", [self._tape.constant(table), self._position_ids()]))

    def norm(self, x: ir.Value, norm: Norm) -> ir.Value:
        """One operator."""
        attributes = {"axis": -1, "epsilon": norm.epsilon, "stash_type": 1}
        kind = "SimplifiedLayerNormalization" if norm.kind == "rms" else "LayerNormalization"
        return self._tape.op(kind, [x, *self._of_norm(norm)], attributes)

    def add_and_norm(self, x: ir.Value, y: ir.Value, norm: Norm) -> tuple[ir.Value, ir.Value]:
        """One operator for both."""
        outputs = self._tape.ops(
            "SkipSimplifiedLayerNormalization" if norm.kind == "rms" else "SkipLayerNormalization",
            [x, y, *self._of_norm(norm)],
            {"epsilon": norm.epsilon},
            count=4,
        )
        outputs[1].name = outputs[2].name = ""  # mean and variance, which are not computed
        return outputs[3], outputs[0]

    def attend(self, index: int, attention: Attention, x: ir.Value) -> ir.Value:
        """One operator; queries, keys and values are one value if one product computes them."""
        projected, rotary = self._queries_keys_values(attention, x), attention.rotary
        if rotary is not None and not _rotated_by_attention(attention):
            projected, rotary = self._rotated(projected, attention), None
        shape: list[str | int] = ["batch_size", attention.kv_heads, "past_sequence_length", attention.width]
        past = [
            self._tape.input(f"past_key_values.{index}.{part}", shape, ir.DataType.FLOAT)
            for part in ("key", "value")
        ]
        out, *present = self._tape.ops(
            "GroupQueryAttention",
            [
                *projected,
                *[None] * (3 - len(projected)),
                *past,
                *self._lengths,
                *([] if rotary is None else self._rotary_table(rotary)),
            ],
            {
                "num_heads": attention.heads,
                "kv_num_heads": attention.kv_heads,
                "scale": attention.scale,
                "do_rotary": int(rotary is not None),
                "rotary_interleaved": int(rotary is not None and rotary.interleaved),
                "local_window_size": attention.window or -1,
                "softcap": attention.softcap,
            },
            count=3,
        )
        shape[2] = "total_sequence_length"
        for part, value in zip(("key", "value"), present, strict=True):
            self._tape.output(value, f"present.{index}.{part}", shape)
        return out

    def multiply_matrix(self, matrix: Matrix, x: ir.Value) -> ir.Value:
        """``MatMulNBits`` if the matrix is packed."""
        return self._product([matrix], x)

    def halves(self, x: ir.Value) -> tuple[ir.Value, ir.Value]:
        """One operator."""
        first, second = self._tape.ops("Split", [x], {"axis": -1, "num_outputs": 2}, count=2)
        return first, second

    def activate(self, activation: Activation, x: ir.Value) -> ir.Value:
        """SiLU as its two operators, which the runtime fuses."""
        if activation == "silu":
            return self.multiply(x, self.sigmoid(x))
        if activation == "relu":
            return self._tape.op("Relu", [x])
        return self._tape.op("Gelu", [x], {"approximate": "tanh" if activation == "gelu_tanh" else "none"})

    def add(self, x: ir.Value, y: ir.Value) -> ir.Value:
        """One operator."""
        return self._tape.op("Add", [x, y])

    def multiply(self, x: ir.Value, y: ir.Value) -> ir.Value:
        """One operator."""
        return self._tape.op("Mul", [x, y])

    def scale(self, x: ir.Value, factor: float) -> ir.Value:
        """One operator."""
        return self.multiply(x, self._tape.constant(factor))

    def sigmoid(self, x: ir.Value) -> ir.Value:
        """One operator."""
        return self._tape.op("Sigmoid", [x])

    def softcap(self, x: ir.Value, bound: float) -> ir.Value:
        """Three operators."""
        size = self._tape.constant(bound)
        return self.multiply(self._tape.op("Tanh", [self._tape.op("Div", [x, size])]), size)

    def mix(self, experts: Experts, x: ir.Value) -> ir.Value:
        """``QMoE``, which computes only the chosen experts; all experts if it does not support their grids."""
        tape, count = self._tape, len(experts.experts)
        scores = self.multiply_matrix(experts.router, x)
        stacked = stack_experts(experts, self._weights)
        if stacked is not None:
            flat = self._tape.integers([-1, count])
            return self._chosen_experts(experts, stacked, x, tape.op("Reshape", [scores, flat]))
        shares = tape.op("Softmax", [scores], {"axis": -1})
        chosen = self._tape.integers([experts.chosen])
        largest, places = tape.ops("TopK", [shares, chosen], {"axis": -1}, count=2)
        if experts.normalized:
            last = self._tape.integers([-1])
            largest = tape.op("Div", [largest, tape.op("ReduceSum", [largest, last])])
        nothing = tape.op("ConstantOfShape", [tape.op("Shape", [shares])])
        weights = tape.op("ScatterElements", [nothing, places, largest], {"axis": -1})
        split = {"axis": -1, "num_outputs": count}
        return mix_all(self, experts, x, tape.ops("Split", [weights], split, count=count))

    def _chosen_experts(
        self, experts: Experts, stacked: StackedExperts, x: ir.Value, scores: ir.Value
    ) -> ir.Value:
        up, down = (self._parts(stack.name, stack) for stack in (stacked.gate_and_up, stacked.down))
        # Weights that are not normalized are the softmax of all scores.
        shares = [] if experts.normalized else [self._tape.op("Softmax", [scores], {"axis": -1})]
        inputs = [x, scores, *up[:2], None, *down[:2], *[None] * 4, up[2], down[2], None, *shares]
        return self._tape.op(
            "QMoE",
            inputs,
            {
                "k": experts.chosen,
                "expert_weight_bits": BITS,
                "block_size": stacked.block_size,
                "activation_type": "swiglu",
                "activation_alpha": 1.0,
                "activation_beta": 0.0,
                "swiglu_limit": float("inf"),
                "swiglu_fusion": 1,
                "normalize_routing_weights": int(experts.normalized),
            },
            name=f"{stacked.gate_and_up.name}+{stacked.down.name}",
        )

    def _count(self, mask: ir.Value) -> tuple[ir.Value, ir.Value]:
        """How many ids each row has, less one, and the length of the mask: both in int32."""
        one = self._tape.integers([1])
        counted = self._tape.op("Sub", [self._tape.op("ReduceSum", [mask, one]), one])
        total = self._tape.op("Gather", [self._tape.op("Shape", [mask]), self._tape.integers(1)], {"axis": 0})
        to = {"to": int(ir.DataType.INT32)}
        return self._tape.op("Cast", [counted], to), self._tape.op("Cast", [total], to)

    def _rotary_table(self, rotary: Rotary) -> tuple[ir.Value, ir.Value]:
        """Cosines and sines of all positions, created once for all layers that share them."""
        if id(rotary) not in self._rotary_tables:
            positions = torch.arange(self._decoder.context, dtype=torch.float32)
            angles = torch.outer(positions, rotary.frequencies)
            if rotary.long_frequencies is not None:
                long = torch.outer(positions, rotary.long_frequencies)
                angles = torch.cat([angles[: rotary.original_context], long])
            self._rotary_tables[id(rotary)] = (
                self._tape.constant(angles.cos() * rotary.scaling),
                self._tape.constant(angles.sin() * rotary.scaling),
            )
        return self._rotary_tables[id(rotary)]

    def _queries_keys_values(self, attention: Attention, x: ir.Value) -> list[ir.Value]:
        """One value if one product computes all three, otherwise three."""
        inputs = attention.inputs
        if len(inputs) == 3:
            held = [self._weights.get(matrix.name) for matrix in inputs]
            kinds = {None if one is None else block_kind(one) for one in held}
            together = len(kinds) == 1 and None not in kinds and attention.norms is None
            made = (
                [self._product(inputs, x)] if together else [self._product([matrix], x) for matrix in inputs]
            )
        else:
            made = [self._product(inputs, x, attention)]
        if attention.clip:
            low, high = (self._tape.constant(bound) for bound in (-attention.clip, attention.clip))
            made = [self._tape.op("Clip", [one, low, high]) for one in made]
        if attention.norms is None:
            return made
        *both, value = self._apart(made, attention)
        width = attention.width
        return [
            *(self._norm_heads(one, norm, width) for one, norm in zip(both, attention.norms, strict=True)),
            value,
        ]

    def _apart(self, made: list[ir.Value], attention: Attention) -> list[ir.Value]:
        """Queries, keys and values as three."""
        if len(made) == 3:
            return made
        sizes = self._tape.integers([rows * attention.groups for rows in attention.rows])
        return list(self._tape.ops("Split", [made[0], sizes], {"axis": -1}, count=3))

    def _rotated(self, made: list[ir.Value], attention: Attention) -> list[ir.Value]:
        """Queries and keys, rotated by a separate operator."""
        rotary = attention.rotary
        assert rotary is not None
        *both, value = self._apart(made, attention)
        places = self._rotary_places(rotary)
        turned = [
            self._tape.op(
                "RotaryEmbedding",
                [one, places, *self._rotary_table(rotary)],
                {
                    "num_heads": heads,
                    "rotary_embedding_dim": rotary.width,
                    "interleaved": int(rotary.interleaved),
                },
            )
            for one, heads in zip(both, (attention.heads, attention.kv_heads), strict=True)
        ]
        return [*turned, value]

    def _rotary_places(self, rotary: Rotary) -> ir.Value:
        """The rows of the rotary table for these positions."""
        places = self._position_ids()
        if rotary.long_frequencies is None:
            return places
        if id(rotary) not in self._long_places:
            # Rows for long texts follow those of the original context.
            size = self._tape.integers(rotary.original_context)
            last = self._tape.op("ReduceMax", [places], {"keepdims": 0})
            beyond = self._tape.op("GreaterOrEqual", [last, size])
            shift = self._tape.op(
                "Mul", [self._tape.op("Cast", [beyond], {"to": int(ir.DataType.INT64)}), size]
            )
            self._long_places[id(rotary)] = self.add(places, shift)
        return self._long_places[id(rotary)]

    def _position_ids(self) -> ir.Value:
        """The input with the position of each id; only some graphs have it."""
        if self._positions is None:
            self._positions = self._tape.input(
                "position_ids", ["batch_size", "sequence_length"], ir.DataType.INT64
            )
        return self._positions

    def _norm_heads(self, x: ir.Value, norm: Norm, width: int) -> ir.Value:
        """The norm of each head, or of all heads together if its weight covers all."""
        if len(norm.weight) != width:
            return self.norm(x, norm)
        apart, together = (self._tape.integers(to) for to in ([0, 0, -1, width], [0, 0, -1]))
        return self._tape.op("Reshape", [self.norm(self._tape.op("Reshape", [x, apart]), norm), together])

    def _of_norm(self, norm: Norm) -> list[ir.Value]:
        parts = [norm.weight] if norm.bias is None else [norm.weight, norm.bias]
        return [self._tape.constant(part) for part in parts]

    def _rows(self, table: Matrix) -> ir.Value:
        """The rows of a table for the ids."""
        held = self._weights.get(table.name)
        if held is None:
            self._float_table = self._tape.constant(table.read())
            return self._tape.op("Gather", [self._float_table, self._ids])
        weight, (values, scales, points) = self._packed(table.layer, block_weight(held))
        flat = self._tape.integers([held.shape[0], -1])
        attributes = {"bits": weight.bits, "block_size": weight.block_size}
        return self._tape.op(
            "GatherBlockQuantized",
            [self._tape.op("Reshape", [values, flat]), self._ids, scales, points],
            attributes | {"gather_axis": 0, "quantize_axis": 1},
            name=table.layer,
        )

    def _product(
        self, matrices: Sequence[Matrix], x: ir.Value, attention: Attention | None = None
    ) -> ir.Value:
        """One product for matrices that read ``x``: several packed on grids of one kind, or a single one.

        Rows of a fused matrix of ``attention`` are reordered: queries, then keys, then values.
        """
        moves = attention is not None and attention.groups > 1
        order = attention.row_order if attention is not None and moves else None
        held = [self._weights.get(matrix.name) for matrix in matrices]
        packed = [block_weight(one) for one in held if one is not None]
        if not packed:
            result = self._float_product(matrices[0], x, order)
        else:
            name = "+".join(matrix.layer for matrix in matrices)
            table = self._decoder.embedding
            key = table.layer if matrices[0].storage == table.storage else name
            whole = joined(packed)
            weight, parts = self._packed(key, whole if order is None else with_rows(whole, order))
            attributes = {"K": matrices[0].shape[1], "N": len(weight.scales), "bits": weight.bits}
            level = self._levels.get(matrices[0].layer, 0)
            attributes |= {"block_size": weight.block_size, "accuracy_level": level}
            result = self._tape.op("MatMulNBits", [x, *parts], attributes, name=name)
            node = result.producer()
            assert node is not None
            node.metadata_props["rows"] = json.dumps([matrix.shape[0] for matrix in matrices])
            if attention is not None and order is not None:
                node.metadata_props["groups"] = json.dumps([attention.groups, *attention.rows])
        if any(matrix.bias is not None for matrix in matrices):
            biases = [
                torch.zeros(matrix.shape[0]) if matrix.bias is None else matrix.bias for matrix in matrices
            ]
            bias = torch.cat(biases)
            result = self.add(result, self._tape.constant(bias if order is None else bias[order]))
        return result

    def _float_product(self, matrix: Matrix, x: ir.Value, order: Tensor | None) -> ir.Value:
        if matrix.storage == self._decoder.embedding.storage:  # one table for both in the file
            attributes = {"transB": 1}
            return self._tape.op("FusedMatMul", [x, self._float_table], attributes)
        numbers = matrix.read() if order is None else matrix.read()[order]
        return self._tape.op("MatMul", [x, self._tape.constant(numbers.T)])

    def _packed(self, key: str, weight: BlockWeight) -> tuple[BlockWeight, list[ir.Value | None]]:
        """The initializers of a weight, created once for each key."""
        if key not in self._made:
            self._made[key] = weight, self._parts(key, weight)
        return self._made[key]

    def _parts(self, name: str, held: BlockWeight | Stack) -> list[ir.Value | None]:
        """Values, scales and zero points."""
        points = held.zero_points
        return [
            self._tape.constant(held.values, f"{name}.values"),
            self._tape.constant(held.scales, f"{name}.scales"),
            None if points is None else self._tape.constant(points, f"{name}.zero_points"),
        ]


def _rotated_by_attention(attention: Attention) -> bool:
    """Whether ``GroupQueryAttention`` supports these rotations: multiples of 16 channels, one table for all lengths."""
    rotary = attention.rotary
    assert rotary is not None
    return attention.width % 16 == 0 and rotary.width % 16 == 0 and rotary.long_frequencies is None
