"""The decoder of a transformers model, read from its module.

Sizes, biases, epsilons and rotary frequencies come from the module; names and order come from its family.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sparsebit.errors import SparsebitError
from sparsebit.llm.decoder.families import FAMILIES, Family
from sparsebit.llm.decoder.parts import (
    Activation,
    Attention,
    Decoder,
    Experts,
    FeedForward,
    Layer,
    Matrix,
    Norm,
    Rotary,
)
from sparsebit.llm.packed.linear import PackedLayer
from sparsebit.llm.packed.stack import PackedStack
from sparsebit.llm.weights.uses import stores_transposed

ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
ROPE_TYPES = ("default", "linear", "llama3", "yarn", "longrope")  # "dynamic" has others at every length


def describe_decoder(model: Any, format_name: str) -> Decoder:
    """The decoder of a causal language model; unknown families and settings are errors."""
    config: Any = model.config
    if config.model_type not in FAMILIES:
        raise SparsebitError(
            f"{format_name} folders are written for some architectures only",
            expected=", ".join(FAMILIES),
            got=config.model_type,
            hint="choose another format",
        )
    family = FAMILIES[config.model_type](config)
    for setting in _not_supported(model, family):
        raise SparsebitError(
            f"{format_name} folders of {config.model_type} models do not support {setting}",
            hint="choose another format",
        )
    return _Reader(model, family).decoder()


def _not_supported(model: Any, family: Family) -> Iterator[str]:
    """Settings that make the model compute something no part describes."""
    config = model.config
    yield from (setting for setting, present in family.not_supported.items() if present)
    activation = getattr(config, family.activation)
    if activation not in ACTIVATIONS:
        yield f"{family.activation}={activation!r}, only {', '.join(sorted(ACTIVATIONS))}"
    for kind in set(getattr(config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}:
        yield f"layer_types with {kind!r}, only full_attention and sliding_attention"
    rotary = getattr(model.get_submodule(family.decoder), "rotary_emb", None)
    types = getattr(rotary, "rope_type", "default")
    for kind in types.values() if isinstance(types, dict) else (types,):
        if kind not in ROPE_TYPES:
            yield f"rope_type={kind!r}, only {', '.join(ROPE_TYPES)}"


class _Reader:
    """Reads the parts of one model."""

    def __init__(self, model: Any, family: Family) -> None:
        self._model, self._config, self._family = model, model.config, family
        self._rotaries: dict[str, Rotary] = {}

    def decoder(self) -> Decoder:
        family, config = self._family, self._config
        inside: Any = self._model.get_submodule(family.decoder)
        count = len(inside.get_submodule(family.layers))
        return Decoder(
            embedding=self._matrix(f"{family.decoder}.{family.embedding}"),
            embedding_factor=float(family.embedding_factor),
            positions=self._matrix(f"{family.decoder}.{family.positions}") if family.positions else None,
            position_offset=family.position_offset,
            layers=tuple(
                self._layer(index, f"{family.decoder}.{family.layers}.{index}") for index in range(count)
            ),
            norm=self._norm(f"{family.decoder}.{family.norm}"),
            head=self._matrix("lm_head"),
            logit_factor=float(family.logit_factor),
            softcap=float(getattr(config, "final_logit_softcapping", None) or 0.0),
            context=config.max_position_embeddings,
        )

    def _layer(self, index: int, path: str) -> Layer:
        family = self._family
        norms = [self._norm(f"{path}.{name}") if name else None for name in family.norms]
        before_attention, after_attention, before_feed_forward, after_feed_forward = norms
        return Layer(
            before_attention=before_attention,
            attention=self._attention(index, f"{path}.{family.attention}"),
            after_attention=after_attention,
            before_feed_forward=before_feed_forward,
            feed_forward=self._feed_forward(f"{path}.{family.feed_forward}" if family.feed_forward else path),
            after_feed_forward=after_feed_forward,
            parallel=family.parallel,
            factor=float(family.residual_factor),
        )

    def _attention(self, index: int, path: str) -> Attention:
        family, config = self._family, self._config
        module: Any = self._model.get_submodule(path)
        inputs = tuple(self._matrix(f"{path}.{name}") for name in family.queries_keys_values)
        output = self._matrix(f"{path}.{family.output}")
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        heads = output.shape[1] // width
        rows = sum(one.shape[0] for one in inputs)
        types = getattr(config, "layer_types", None)
        # A window without layer types applies to all layers.
        kind = types[index] if types else "sliding_attention"
        window = getattr(config, "sliding_window", None) if kind == "sliding_attention" else None
        has_norms = hasattr(module, family.head_norms[0])
        is_rotated = not family.positions and getattr(module, "use_rope", True)
        is_rotated = is_rotated and (window is not None or not family.rotates_windows_only)
        first, second = (f"{path}.{name}" for name in family.head_norms)
        return Attention(
            inputs=inputs,
            output=output,
            heads=heads,
            kv_heads=(rows // width - heads) // 2,
            width=width,
            scale=float(getattr(module, "scaling", width**-0.5)),
            groups=family.groups,
            clip=float(family.clip),
            norms=(self._norm(first), self._norm(second)) if has_norms else None,
            rotary=self._rotary(kind) if is_rotated else None,
            window=window,
            softcap=float(family.softcap),
        )

    def _rotary(self, kind: str) -> Rotary:
        """The rotary embedding of layers of this type; layers that share it get one object."""
        module: Any = self._model.get_submodule(self._family.decoder).rotary_emb
        prefix = f"{kind}_" if hasattr(module, f"{kind}_inv_freq") else ""
        if prefix not in self._rotaries:
            # A long text changes the frequencies in the module; the original ones are kept beside them.
            frequencies = _floats(getattr(module, f"{prefix}original_inv_freq"))
            scaling = float(getattr(module, f"{prefix}attention_scaling", 1.0))
            self._rotaries[prefix] = Rotary(
                frequencies, scaling, self._family.interleaved, *self._long_rotary(module, kind, prefix)
            )
        return self._rotaries[prefix]

    def _long_rotary(self, module: Any, kind: str, prefix: str) -> tuple[Tensor | None, int]:
        """Frequencies for texts beyond the model's original training context, and that context."""
        rope_type = module.rope_type[kind] if prefix else module.rope_type
        if rope_type != "longrope":
            return None, 0
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        parameters = self._config.rope_parameters[kind] if prefix else self._config.rope_parameters
        original = int(parameters["original_max_position_embeddings"])
        made, _ = ROPE_INIT_FUNCTIONS[rope_type](
            self._config, "cpu", seq_len=original + 1, layer_type=kind if prefix else None
        )
        return _floats(made), original

    def _feed_forward(self, path: str) -> FeedForward | Experts:
        module: Any = self._model.get_submodule(path)
        if not hasattr(module, "experts"):
            return self._one_feed_forward(self._family.inputs, lambda name: self._matrix(f"{path}.{name}"))
        has_shared = hasattr(module, "shared_expert")
        shared = self._feed_forward(f"{path}.shared_expert") if has_shared else None
        assert not isinstance(shared, Experts)
        return Experts(
            router=self._matrix(f"{path}.gate"),
            experts=tuple(
                self._one_feed_forward(("gate_up_proj",), partial(self._expert, f"{path}.experts", index))
                for index in range(module.experts.num_experts)
            ),
            chosen=self._config.num_experts_per_tok,
            normalized=bool(getattr(module.gate, "norm_topk_prob", True)),
            shared=shared,
            shared_gate=self._matrix(f"{path}.shared_expert_gate") if has_shared else None,
        )

    def _one_feed_forward(self, inputs: tuple[str, ...], matrix: Callable[[str], Matrix]) -> FeedForward:
        family = self._family
        return FeedForward(
            inputs=tuple(matrix(name) for name in inputs),
            down=matrix(family.down),
            activation=ACTIVATIONS[getattr(self._config, family.activation)],
            gated=family.gated,
        )

    def _expert(self, path: str, index: int, name: str) -> Matrix:
        """One matrix of stacked experts."""
        stack = getattr(self._model.get_submodule(path), name)
        if isinstance(stack, PackedStack):
            layer = stack.layer(index)
            shape, read, storage = layer.shape, (lambda: _floats(layer.weight)), layer.packed.data_ptr()
        else:
            one = stack[index]
            shape, read, storage = one.shape, (lambda: _floats(one)), one.data_ptr()
        rows, columns = shape
        return Matrix(f"{path}.{name}[{index}]", (rows, columns), read, storage)

    def _norm(self, path: str) -> Norm:
        module: Any = self._model.get_submodule(path)
        if isinstance(module, nn.LayerNorm):
            weight = torch.ones(module.normalized_shape) if module.weight is None else _floats(module.weight)
            bias = None if module.bias is None else _floats(module.bias)
            return Norm("layer", weight, module.eps, bias)
        if not hasattr(module, "weight"):  # OLMo's norm has a fixed epsilon
            return Norm("layer", torch.ones(module.normalized_shape), 1e-5)
        epsilon = getattr(module, "variance_epsilon", None) or module.eps
        return Norm(self._family.norm_kind, _floats(module.weight) + self._family.norm_offset, float(epsilon))

    def _matrix(self, path: str) -> Matrix:
        module: Any = self._model.get_submodule(path)
        transposed = stores_transposed(module)

        def read() -> Tensor:
            numbers = _floats(module.weight)
            return numbers.T if transposed else numbers

        # A packed layer makes its float weight when asked, so its shape and address are those of what it holds.
        packed = isinstance(module, PackedLayer)
        rows, columns = module.shape if packed else module.weight.shape
        if transposed:
            rows, columns = columns, rows
        storage = (module.packed if packed else module.weight).data_ptr()
        bias = getattr(module, "bias", None)
        bias = None if bias is None else _floats(bias)
        return Matrix(f"{path}.weight", (rows, columns), read, storage, bias)


def _floats(value: Tensor) -> Tensor:
    return value.detach().float().cpu()
