"""Text encoders and encoder-decoders: ``transformers`` from small configs, and nets of ``torch.nn`` parts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from .entry import Call, ZooEntry, integers, padding_mask, zoo_entry
from .huggingface import SPREAD, TRANSFORMER, hf
from .nets.text_nets import BagClassifier, EncoderClassifier, SdpaDecoder, Seq2SeqTransformer, TextCNN

VOCABULARY = 100
_BERT = {**TRANSFORMER, "vocab_size": VOCABULARY, "max_position_embeddings": 64}
_T5 = {"vocab_size": VOCABULARY, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
_BART = {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 32,
    "init_std": 0.2,
}


def _masked(batch: int, length: int = 10) -> Call:
    """Tokens with real padding."""
    return (), {
        "input_ids": integers(VOCABULARY, batch, length, low=3),
        "attention_mask": padding_mask(batch, length),
    }


def _bare(batch: int, length: int = 10) -> Call:
    """Tokens alone, by position."""
    return (integers(VOCABULARY, batch, length, low=3),), {}


def _pair(batch: int, length: int = 10) -> Call:
    """Two sentences in one row, told apart by ``token_type_ids``."""
    args, kwargs = _masked(batch, length)
    return args, {**kwargs, "token_type_ids": (torch.arange(length) >= 4).long().repeat(batch, 1)}


def _labelled(batch: int, length: int = 10) -> Call:
    args, kwargs = _masked(batch, length)
    return args, {**kwargs, "labels": integers(3, batch, seed=1)}


def _seq2seq(batch: int, length: int = 8, target: int = 6) -> Call:
    args, kwargs = _masked(batch, length)
    return args, {
        **kwargs,
        "decoder_input_ids": integers(VOCABULARY, batch, target, low=3, seed=1),
        "use_cache": False,
    }


def _with(call: Callable[..., Call], **extra: object) -> Callable[..., Call]:
    def inputs(batch: int, length: int = 10) -> Call:
        args, kwargs = call(batch, length)
        return args, {**kwargs, **extra}

    return inputs


def _text(
    name: str, build: Callable[[], nn.Module], inputs: Callable[..., Call] = _masked, **rest: Any
) -> ZooEntry:
    rest.setdefault("other_sizes", lambda: [inputs(2, 7), inputs(2, 13)])
    return zoo_entry(name, "language", build, inputs, **rest)


def _bag(batch: int) -> Call:
    return (integers(60, 4 * batch), torch.arange(batch) * 4), {}


def _two_texts(batch: int, source: int = 8, target: int = 6) -> Call:
    return (integers(40, batch, source), integers(40, batch, target, seed=1)), {}


def _padded_tokens(batch: int, length: int = 9) -> Call:
    return (integers(50, batch, length, low=1) * padding_mask(batch, length),), {}


_ALBERT = {**_BERT, "embedding_size": 16, "num_hidden_groups": 1, "inner_group_num": 1}
_DEBERTA = {**_BERT, "relative_attention": True}
_DISTILBERT = {"vocab_size": VOCABULARY, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64, **SPREAD}

ENTRIES = [
    _text("hf_bert", hf("BertModel", "BertConfig", **_BERT), _pair),
    _text("hf_bert_eager", hf("BertModel", "BertConfig", **_BERT, attn_implementation="eager")),
    _text("hf_bert_unmasked", hf("BertModel", "BertConfig", **_BERT), _bare),
    _text(
        "hf_bert_classifier",
        hf("BertForSequenceClassification", "BertConfig", **_BERT, num_labels=3),
        _labelled,
    ),
    _text("hf_bert_tagger", hf("BertForTokenClassification", "BertConfig", **_BERT, num_labels=5)),
    _text("hf_bert_qa", hf("BertForQuestionAnswering", "BertConfig", **_BERT), _pair),
    _text(
        "hf_bert_masked_lm",
        hf("BertForMaskedLM", "BertConfig", **_BERT),
        notes="decoder tied to the embedding",
    ),
    _text(
        "hf_bert_all_outputs",
        hf("BertModel", "BertConfig", **_BERT, attn_implementation="eager"),
        _with(_masked, output_hidden_states=True, output_attentions=True),
        notes="tuples of tensors inside a ModelOutput",
    ),
    _text(
        "hf_roberta",
        hf("RobertaModel", "RobertaConfig", **_BERT),
        notes="positions from a cumsum over the tokens",
    ),
    _text("hf_roberta_classifier", hf("RobertaForSequenceClassification", "RobertaConfig", **_BERT)),
    _text("hf_distilbert", hf("DistilBertModel", "DistilBertConfig", **_DISTILBERT)),
    _text(
        "hf_distilbert_tuple",
        hf("DistilBertForSequenceClassification", "DistilBertConfig", **_DISTILBERT),
        _with(_masked, return_dict=False),
        notes="plain tuple output",
    ),
    _text("hf_albert", hf("AlbertModel", "AlbertConfig", **_ALBERT), notes="one layer called twice"),
    _text(
        "hf_deberta",
        hf("DebertaModel", "DebertaConfig", **_DEBERTA, pos_att_type="c2p|p2c"),
        notes="scripted functions",
    ),
    _text(
        "hf_deberta_v2",
        hf(
            "DebertaV2ForSequenceClassification",
            "DebertaV2Config",
            **_DEBERTA,
            pos_att_type=["c2p", "p2c"],
            position_buckets=8,
            norm_rel_ebd="layer_norm",
            share_att_key=True,
            conv_kernel_size=3,
        ),
        notes="scripted functions",
    ),
    _text("hf_electra", hf("ElectraModel", "ElectraConfig", **_BERT, embedding_size=16)),
    _text("hf_mpnet", hf("MPNetModel", "MPNetConfig", **_BERT), notes="relative position buckets"),
    _text(
        "hf_squeezebert",
        hf("SqueezeBertModel", "SqueezeBertConfig", **_BERT, embedding_size=32),
        notes="grouped Conv1d",
    ),
    _text(
        "hf_fnet",
        hf("FNetModel", "FNetConfig", **_BERT),
        _bare,
        notes="Fourier transform instead of attention",
    ),
    _text(
        "hf_xlnet",
        hf(
            "XLNetModel",
            "XLNetConfig",
            vocab_size=VOCABULARY,
            d_model=32,
            n_layer=2,
            n_head=4,
            d_inner=64,
            **SPREAD,
        ),
    ),
    _text("hf_t5", hf("T5ForConditionalGeneration", "T5Config", **_T5, decoder_start_token_id=0), _seq2seq),
    _text("hf_t5_gated_encoder", hf("T5EncoderModel", "T5Config", **_T5, feed_forward_proj="gated-gelu")),
    _text("hf_bart", hf("BartForConditionalGeneration", "BartConfig", **_BART), _seq2seq),
    _text("hf_bart_eager", hf("BartModel", "BartConfig", **_BART, attn_implementation="eager"), _seq2seq),
    _text(
        "hf_marian",
        hf("MarianMTModel", "MarianConfig", **_BART, pad_token_id=0, decoder_start_token_id=0),
        _seq2seq,
    ),
    _text(
        "transformer_encoder", EncoderClassifier, _padded_tokens, other_sizes=lambda: [_padded_tokens(2, 6)]
    ),
    _text(
        "transformer_encoder_prenorm",
        partial(EncoderClassifier, norm_first=True),
        _padded_tokens,
        other_sizes=list,
    ),
    _text("transformer_seq2seq", Seq2SeqTransformer, _two_texts, other_sizes=lambda: [_two_texts(2, 5, 9)]),
    _text(
        "sdpa_decoder",
        SdpaDecoder,
        lambda b, n=8: ((integers(50, b, n),), {}),
        other_sizes=lambda: [((integers(50, 2, 12),), {})],
    ),
    _text(
        "text_cnn",
        TextCNN,
        lambda b, n=9: ((integers(60, b, n),), {}),
        other_sizes=lambda: [((integers(60, 2, 14),), {})],
    ),
    _text("embedding_bag", BagClassifier, _bag, other_sizes=list),
]
