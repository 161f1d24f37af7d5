"""Small decoders with random weights, one for each shape of block that language models have."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
import torch
from torch import nn

from sparsebit.llm.blocks.find import find_stack
from sparsebit.llm.blocks.route import find_route
from sparsebit.llm.blocks.streams import Stream

VOCABULARY = 96


def _from_config(name: str, **settings: object) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.for_model(name, **settings)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config)
    return model.eval()  # type: ignore[no-any-return]


_SIZES = {"vocab_size": VOCABULARY, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}
_WIDE = {**_SIZES, "intermediate_size": 128, "max_position_embeddings": 64}
_TOKENS = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}

DECODERS: dict[str, Callable[[], nn.Module]] = {
    "llama": lambda: _from_config("llama", **_WIDE, **_TOKENS, num_key_value_heads=2),
    "qwen2": lambda: _from_config("qwen2", **_WIDE, **_TOKENS, num_key_value_heads=2),
    "qwen3": lambda: _from_config("qwen3", **_WIDE, **_TOKENS, num_key_value_heads=2, head_dim=16),
    "mistral": lambda: _from_config("mistral", **_WIDE, **_TOKENS, num_key_value_heads=2),
    "gemma2": lambda: _from_config("gemma2", **_WIDE, **_TOKENS, num_key_value_heads=2, head_dim=16),
    "phi": lambda: _from_config("phi", **_WIDE, **_TOKENS),
    "gpt2": lambda: _from_config(
        "gpt2", vocab_size=VOCABULARY, n_embd=64, n_layer=3, n_head=4, n_positions=64, **_TOKENS
    ),
    "opt": lambda: _from_config(
        "opt", **_SIZES, **_TOKENS, ffn_dim=128, max_position_embeddings=64, word_embed_proj_dim=64
    ),
    "gpt_neox": lambda: _from_config("gpt_neox", **_WIDE, **_TOKENS),
    "falcon": lambda: _from_config("falcon", **_SIZES, **_TOKENS),
    "mixtral": lambda: _from_config(
        "mixtral", **_WIDE, **_TOKENS, num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2
    ),
}


# Other layouts: fused projections, stacked experts of another width than the feed-forward part, one key for all heads.
_GROUPED = {**_WIDE, **_TOKENS, "num_key_value_heads": 2}
MORE_DECODERS: dict[str, Callable[[], nn.Module]] = {
    "phi3": lambda: _from_config("phi3", **_GROUPED),
    "gemma": lambda: _from_config("gemma", **{**_GROUPED, "num_key_value_heads": 1}, head_dim=16),
    "gemma3": lambda: _from_config("gemma3_text", **_GROUPED, head_dim=16),
    "qwen2_moe": lambda: _from_config(
        "qwen2_moe",
        **_GROUPED,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=96,
        shared_expert_intermediate_size=160,
    ),
    "qwen3_moe": lambda: _from_config(
        "qwen3_moe", **_GROUPED, head_dim=16, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=96
    ),
    "granitemoe": lambda: _from_config("granitemoe", **_GROUPED, num_local_experts=4, num_experts_per_tok=2),
    "gptj": lambda: _from_config(
        "gptj", vocab_size=VOCABULARY, n_embd=64, n_layer=3, n_head=4, n_positions=64, rotary_dim=8, **_TOKENS
    ),
    "falcon_grouped": lambda: _from_config(
        "falcon", **_SIZES, **_TOKENS, new_decoder_architecture=True, num_kv_heads=2
    ),
    "falcon_alibi": lambda: _from_config("falcon", **_SIZES, **_TOKENS, multi_query=False, alibi=True),
}

# Experts that hold their matrices as [in, out], multiplied one by one or all at once.
TRANSPOSED_EXPERTS: dict[str, Callable[[], nn.Module]] = {
    "gpt_oss": lambda: _from_config(
        "gpt_oss",
        **{**_GROUPED, "intermediate_size": 64},
        head_dim=16,
        num_local_experts=4,
        num_experts_per_tok=2,
    ),
    "llama4": lambda: _from_config(
        "llama4_text",
        **{**_GROUPED, "intermediate_size": 64},
        head_dim=16,
        intermediate_size_mlp=64,
        num_local_experts=4,
        interleave_moe_layer_step=1,
    ),
}


def latent_attention() -> nn.Module:
    """A small DeepSeek without experts: queries, keys and values are made from narrower vectors, which have norms."""
    ranks = {"q_lora_rank": 32, "kv_lora_rank": 48, "first_k_dense_replace": 3}
    heads = {"num_key_value_heads": 4, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16}
    return _from_config("deepseek_v2", **_WIDE, **_TOKENS, **ranks, **heads)


def encoder() -> nn.Module:
    """A small BERT with random weights."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    return transformers.BertModel(transformers.BertConfig(**_WIDE)).eval()  # type: ignore[no-any-return]


def sharp(name: str) -> nn.Module:
    """A decoder that attends to few positions and is sure of its tokens, so that any mistake in it shows."""
    model = DECODERS[name]()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if parameter.dim() == 2:
                parameter *= 12 if "q_proj" in key or "k_proj" in key else 5
    return model


def tokenizer() -> object:
    """Byte-level BPE with one token for each letter and one merge."""
    transformers, tokenizers = pytest.importorskip("transformers"), pytest.importorskip("tokenizers")
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())[: VOCABULARY - 4]
    vocabulary = {text: index for index, text in enumerate(["<s>", "</s>", "<pad>", *letters, "th"])}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=[("t", "h")]))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )


def tokens(count: int = 512) -> torch.Tensor:
    """Ids in which each depends on the one before, so that there is something to predict."""
    generator = torch.Generator().manual_seed(0)
    steps = torch.randint(1, 6, (count,), generator=generator)
    return steps.cumsum(0) % VOCABULARY


def stream_of(model: nn.Module, ids: torch.Tensor) -> Stream:
    """One batch of token ids before the first block of a model."""
    names = find_stack(model).names
    route = find_route(model, names, lambda name: contextlib.nullcontext(model), ids[:1])
    return Stream(model, route, [ids])


class Plain(nn.Module):
    """Blocks of torch's own layers, with nothing of transformers about them."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 32)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)) for _ in range(2)
        )
        self.head = nn.Linear(32, VOCABULARY)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(input_ids)
        for block in self.blocks:
            hidden = hidden + block(hidden)
        out: torch.Tensor = self.head(hidden)
        return out


class _Residual(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + super().forward(x)
        return out


class NamesEnds:
    """Says which layers are the embedding and the head, as models of transformers do."""

    embed: nn.Module
    head: nn.Module

    def get_input_embeddings(self) -> nn.Module:
        return self.embed

    def get_output_embeddings(self) -> nn.Module:
        return self.head


class Residual(NamesEnds, Plain):
    """The same model with its residuals inside the blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(_Residual(*block) for block in self.blocks)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(input_ids)
        for block in self.blocks:
            hidden = block(hidden)
        out: torch.Tensor = self.head(hidden)
        return out


class Skips(NamesEnds, nn.Module):
    """A U-Net of blocks: scaled one by one, joined to earlier ones, and all of them read behind the last."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 32)
        self.blocks = nn.ModuleList(
            _Residual(nn.LayerNorm(32), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)) for _ in range(6)
        )
        self.joins = nn.ParameterList(nn.Parameter(torch.randn(64, 32) / 8) for _ in range(2))
        self.scales = nn.Parameter(torch.tensor([1.0, 1.0, 0.5, 1.0, 2.0, 1.0]))
        self.head = nn.Linear(32, VOCABULARY)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        hidden, seen = self.embed(input_ids), []
        for index, (scale, block) in enumerate(zip(self.scales, self.blocks, strict=True)):
            if index >= 4:
                hidden = torch.cat([hidden, seen[5 - index]], -1) @ self.joins[index - 4]
            hidden = block(hidden if index % 2 else hidden * scale)
            seen.append(hidden)
        out: torch.Tensor = self.head(torch.stack(seen[2:]).mean(0))
        return out


class Looped(Residual):
    """Two blocks that are called in turn, three times each, and the first one once more."""

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        hidden = start = self.embed(input_ids)
        for _ in range(3):
            hidden = self.blocks[1](self.blocks[0](hidden)) + start
        out: torch.Tensor = self.head(self.blocks[0](hidden))
        return out


def _seeded(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        torch.manual_seed(0)
        return make().eval()

    return build


def _pretrained(name: str, **settings: object) -> Callable[[], nn.Module]:
    """A model of transformers by the names of its class and its config."""

    def make() -> nn.Module:
        transformers = pytest.importorskip("transformers")
        kind = getattr(transformers, name)
        return kind(kind.config_class(vocab_size=VOCABULARY, **_TOKENS, **settings))  # type: ignore[no-any-return]

    return _seeded(make)


_PAIR = {
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
    "max_position_embeddings": 64,
    "decoder_start_token_id": 1,
}

_LAYERS = {name: value for name, value in _WIDE.items() if name != "vocab_size"}

# Models whose blocks do not simply follow one another.
ROUTES: dict[str, Callable[[], nn.Module]] = {
    "plain": _seeded(Plain),
    "skips": _seeded(Skips),
    "looped": _seeded(Looped),
    "albert": _pretrained(
        "AlbertForMaskedLM", embedding_size=32, **{**_LAYERS, "num_hidden_layers": 4}, num_hidden_groups=2
    ),
    "xlm": _pretrained(
        "XLMWithLMHeadModel", emb_dim=64, n_layers=2, n_heads=4, max_position_embeddings=64, n_langs=1
    ),
    "bart": _pretrained(
        "BartForConditionalGeneration", **_PAIR, forced_eos_token_id=None, scale_embedding=True
    ),
    "marian": _pretrained("MarianMTModel", **_PAIR),
    "t5": _pretrained(
        "T5ForConditionalGeneration",
        **{"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4},
        decoder_start_token_id=2,
    ),
    "hrm_text": _seeded(
        lambda: _from_config(
            "hrm_text",
            **{**_WIDE, "num_hidden_layers": 1},
            **_TOKENS,
            num_key_value_heads=4,
            head_dim=16,
            L_cycles=1,
        )
    ),
}
