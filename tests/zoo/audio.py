"""Speech and audio models: ``transformers`` from small configs, and our own waveform nets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from .entry import Call, ZooEntry, floats, integers, zoo_entry
from .huggingface import TRANSFORMER, hf
from .nets.waveform import AudioCNN, SpectrogramNet, WaveNet

# Without random masking of the input (drawn by numpy) and random skipping of layers (a branch in Python).
_WAV2VEC = {
    **TRANSFORMER,
    "conv_dim": [16, 16, 16],
    "conv_stride": [5, 2, 2],
    "conv_kernel": [10, 3, 3],
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 4,
    "vocab_size": 20,
    "apply_spec_augment": False,
    "layerdrop": 0.0,
}
_STABLE = {"feat_extract_norm": "layer", "do_stable_layer_norm": True, "conv_bias": True}
_WHISPER = {
    "vocab_size": 100,
    "num_mel_bins": 16,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_source_positions": 20,
    "max_target_positions": 20,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
    "init_std": 0.2,
}


def _wave(batch: int, samples: int = 400) -> Call:
    return (), {"input_values": floats(batch, samples)}


def _padded_wave(batch: int, samples: int = 400) -> Call:
    lengths = torch.tensor([samples - 60 * row for row in range(batch)])
    mask = (torch.arange(samples)[None] < lengths[:, None]).long()
    return (), {"input_values": floats(batch, samples) * mask, "attention_mask": mask}


def _mel(batch: int) -> Call:
    return (floats(batch, 16, 40),), {}


def _mel_and_text(batch: int, length: int = 6) -> Call:
    tokens = integers(100, batch, length, low=3)
    return (), {"input_features": floats(batch, 16, 40), "decoder_input_ids": tokens, "use_cache": False}


def _whisper_encoder() -> nn.Module:
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    return WhisperEncoder(WhisperConfig(**_WHISPER))


def _channel(batch: int, samples: int = 400) -> Call:
    return (floats(batch, 1, samples),), {}


def _mono(batch: int, samples: int = 512) -> Call:
    return (floats(batch, samples),), {}


def _audio(
    name: str, build: Callable[[], nn.Module], inputs: Callable[..., Call], *samples: int, **rest: Any
) -> ZooEntry:
    rest.setdefault("other_sizes", lambda: [inputs(2, count) for count in samples])
    return zoo_entry(name, "audio", build, inputs, **rest)


ENTRIES = [
    _audio("hf_whisper_encoder", _whisper_encoder, _mel),
    _audio("hf_whisper", hf("WhisperModel", "WhisperConfig", **_WHISPER), _mel_and_text, 9),
    _audio("hf_wav2vec2", hf("Wav2Vec2Model", "Wav2Vec2Config", **_WAV2VEC), _wave, 330),
    _audio(
        "hf_wav2vec2_ctc", hf("Wav2Vec2ForCTC", "Wav2Vec2Config", **_WAV2VEC, **_STABLE), _padded_wave, 330
    ),
    _audio("hf_hubert", hf("HubertModel", "HubertConfig", **_WAV2VEC), _wave, 330),
    _audio("hf_wavlm", hf("WavLMModel", "WavLMConfig", **_WAV2VEC), _wave, 330),
    _audio("hf_data2vec", hf("Data2VecAudioModel", "Data2VecAudioConfig", **_WAV2VEC), _wave, 330),
    _audio(
        "hf_ast",
        hf(
            "ASTForAudioClassification",
            "ASTConfig",
            **TRANSFORMER,
            patch_size=8,
            frequency_stride=4,
            time_stride=4,
            max_length=24,
            num_mel_bins=16,
            num_labels=4,
        ),
        lambda batch: ((), {"input_values": floats(batch, 24, 16)}),
    ),
    _audio("audio_cnn", AudioCNN, _channel, 560),
    _audio("wavenet", WaveNet, _channel, 130),
    _audio("spectrogram_net", SpectrogramNet, _mono, 640),
]
