"""The description of every family, computed in torch by the order of the walk, gives the model's own logits."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sparsebit.llm.decoder.describe import describe_decoder
from sparsebit.llm.decoder.parts import Activation, Attention, Decoder, Experts, Matrix, Norm
from sparsebit.llm.decoder.walk import build_logits, mix_all
from tests.llm.decoder.family_models import VARIANTS, family_model

ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
}


class TorchBuilder:
    """Computes where others add nodes, for ids [batch, length] from the first position on."""

    def __init__(self, ids: Tensor) -> None:
        self.ids, self.places = ids, torch.arange(ids.shape[1])

    def embed(self, decoder: Decoder) -> Tensor:
        found = decoder.embedding.read()[self.ids] * decoder.embedding_factor
        if decoder.positions is None:
            return found
        return found + decoder.positions.read()[self.places + decoder.position_offset]

    def norm(self, x: Tensor, norm: Norm) -> Tensor:
        if norm.kind == "layer":
            return F.layer_norm(x, [len(norm.weight)], norm.weight, norm.bias, norm.epsilon)
        return F.rms_norm(x, [len(norm.weight)], norm.weight, norm.epsilon)

    def add_and_norm(self, x: Tensor, y: Tensor, norm: Norm) -> tuple[Tensor, Tensor]:
        return x + y, self.norm(x + y, norm)

    def attend(self, index: int, attention: Attention, x: Tensor) -> Tensor:
        made = torch.cat([self.multiply_matrix(matrix, x) for matrix in attention.inputs], -1)
        made = made[..., attention.row_order] if len(attention.inputs) == 1 else made
        rows = [count * attention.groups for count in attention.rows]
        made = made.clamp(-attention.clip, attention.clip) if attention.clip else made
        norms: tuple[Norm | None, ...] = (*(attention.norms or (None, None)), None)
        query, key, value = (
            self.by_head(one, norm, attention.width)
            for one, norm in zip(made.split(rows, -1), norms, strict=True)
        )
        query, key = self.rotate(query, attention), self.rotate(key, attention)
        times = attention.heads // attention.kv_heads
        key, value = key.repeat_interleave(times, 1), value.repeat_interleave(times, 1)
        scores = query @ key.transpose(2, 3) * attention.scale
        scores = self.softcap(scores, attention.softcap) if attention.softcap else scores
        distance = self.places[:, None] - self.places
        seen = (distance >= 0) & (distance < (attention.window or len(self.places)))
        return (scores.masked_fill(~seen, -torch.inf).softmax(-1) @ value).transpose(1, 2).flatten(2)

    def by_head(self, x: Tensor, norm: Norm | None, width: int) -> Tensor:
        size = width if norm is None else len(norm.weight)
        parts = x.unflatten(-1, (-1, size))
        normed = parts if norm is None else self.norm(parts, norm)
        return normed.flatten(2).unflatten(-1, (-1, width)).transpose(1, 2)

    def rotate(self, x: Tensor, attention: Attention) -> Tensor:
        rotary = attention.rotary
        if rotary is None:
            return x
        long = rotary.long_frequencies is not None and len(self.places) > rotary.original_context
        angles = torch.outer(self.places, rotary.long_frequencies if long else rotary.frequencies)
        cosine, sine = angles.cos() * rotary.scaling, angles.sin() * rotary.scaling
        turned, rest = x.split([rotary.width, attention.width - rotary.width], -1)
        pairs = turned.unflatten(-1, (-1, 2)) if rotary.interleaved else turned.unflatten(-1, (2, -1)).mT
        first, second = pairs.unbind(-1)
        return torch.cat([first * cosine - second * sine, second * cosine + first * sine, rest], -1)

    def multiply_matrix(self, matrix: Matrix, x: Tensor) -> Tensor:
        assert matrix.read().shape == matrix.shape
        return F.linear(x, matrix.read(), matrix.bias)

    def halves(self, x: Tensor) -> tuple[Tensor, Tensor]:
        first, second = x.chunk(2, -1)
        return first, second

    def activate(self, activation: Activation, x: Tensor) -> Tensor:
        return ACTIVATIONS[activation](x)

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y

    def multiply(self, x: Tensor, y: Tensor) -> Tensor:
        return x * y

    def scale(self, x: Tensor, factor: float) -> Tensor:
        return x * factor

    def sigmoid(self, x: Tensor) -> Tensor:
        return x.sigmoid()

    def softcap(self, x: Tensor, bound: float) -> Tensor:
        return bound * torch.tanh(x / bound)

    def mix(self, experts: Experts, x: Tensor) -> Tensor:
        outputs = self.multiply_matrix(experts.router, x)
        largest, places = outputs.topk(experts.chosen, -1)
        shares = largest.softmax(-1) if experts.normalized else outputs.softmax(-1).gather(-1, places)
        weights = torch.zeros_like(outputs).scatter(-1, places, shares)
        return mix_all(self, experts, x, weights.split(1, -1))


@pytest.mark.parametrize("name", VARIANTS)
@torch.no_grad()
def test_the_description_gives_the_logits_of_the_model(name: str) -> None:
    model = family_model(name)
    ids = torch.randint(3, 96, (2, 12), generator=torch.Generator().manual_seed(1))
    decoder = describe_decoder(model, "a")
    assert torch.allclose(build_logits(TorchBuilder(ids), decoder), model(ids).logits, atol=1e-4)


@torch.no_grad()
def test_long_texts_have_other_frequencies_where_the_model_says_so() -> None:
    model = family_model("phi3, longrope")
    ids = torch.randint(3, 96, (1, 20), generator=torch.Generator().manual_seed(1))
    wanted = model(ids).logits
    decoder = describe_decoder(model, "a")  # after a long text, whose frequencies the model keeps
    assert torch.allclose(build_logits(TorchBuilder(ids), decoder), wanted, atol=1e-4)
    short = ids[:, :12]
    assert torch.allclose(build_logits(TorchBuilder(short), decoder), model(short).logits, atol=1e-4)
    assert not torch.allclose(wanted[:, :12], model(short).logits, atol=1e-2)
