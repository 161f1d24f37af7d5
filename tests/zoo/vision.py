"""Vision and vision-language models: ``transformers`` from small configs, and our own ViT and mixer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

from .entry import Call, ZooEntry, floats, images, integers, padding_mask, zoo_entry
from .huggingface import SPREAD, TRANSFORMER, hf
from .nets.mixer import MLPMixer
from .nets.vit import ViT

_VIT = {**TRANSFORMER, "image_size": 32, "patch_size": 8}
_CLASSES = {"num_labels": 4}
_STAGES = {"embedding_size": 8, "hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1]}
_CONVNEXT = {"hidden_sizes": [8, 16, 16, 24], "depths": [1, 1, 2, 1], **SPREAD}
_SWIN = {
    "image_size": 32,
    "patch_size": 2,
    "embed_dim": 16,
    "depths": [2, 2],
    "num_heads": [2, 4],
    "window_size": 4,
    **SPREAD,
}
_DINO = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "patch_size": 8,
    "mlp_ratio": 2,
    **SPREAD,
}
_MOBILEVIT = {
    "image_size": 64,
    "hidden_sizes": [16, 24, 32],
    "neck_hidden_sizes": [8, 8, 16, 16, 24, 24, 32],
    "num_attention_heads": 4,
    "aspp_out_channels": 16,
    **SPREAD,
}
_SEGFORMER = {
    "depths": [1, 1, 1, 1],
    "hidden_sizes": [8, 8, 16, 16],
    "num_attention_heads": [1, 1, 2, 2],
    "sr_ratios": [4, 2, 1, 1],
    "decoder_hidden_size": 16,
    **SPREAD,
}
_DETR = {
    "use_timm_backbone": False,
    "use_pretrained_backbone": False,
    "backbone": None,
    "backbone_config": ("ResNetConfig", {**_STAGES, "out_features": ["stage4"]}),
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "num_queries": 5,
    "init_std": 0.2,
}
_CLIP_TEXT = {
    **TRANSFORMER,
    "vocab_size": 100,
    "max_position_embeddings": 16,
    "bos_token_id": 1,
    "eos_token_id": 99,
    "pad_token_id": 0,
}


def _pixels(batch: int, height: int = 32, width: int = 32) -> Call:
    return (), {"pixel_values": floats(batch, 3, height, width)}


def _pixels64(batch: int) -> Call:
    return _pixels(batch, 64, 64)


def _interpolated(batch: int, height: int = 48, width: int = 48) -> Call:
    args, kwargs = _pixels(batch, height, width)
    return args, {**kwargs, "interpolate_pos_encoding": True}


def _image_and_text(batch: int, length: int = 8) -> Call:
    tokens = integers(98, batch, length, low=3)
    tokens[:, length // 2] = 99  # the end-of-text token whose place CLIP looks up
    mask = padding_mask(batch, length)
    return (), {"pixel_values": floats(batch, 3, 32, 32), "input_ids": tokens, "attention_mask": mask}


def _vision(name: str, build: Callable[[], nn.Module], *others: tuple[int, int], **rest: Any) -> ZooEntry:
    rest.setdefault("inputs", _pixels)
    rest.setdefault("other_sizes", lambda: [_pixels(2, *size) for size in others])
    return zoo_entry(name, "vision", build, **rest)


ENTRIES = [
    _vision("hf_vit", hf("ViTModel", "ViTConfig", **_VIT)),
    _vision(
        "hf_vit_eager",
        hf("ViTForImageClassification", "ViTConfig", **_VIT, **_CLASSES, attn_implementation="eager"),
    ),
    _vision(
        "hf_vit_interpolated",
        hf("ViTForImageClassification", "ViTConfig", **_VIT, **_CLASSES),
        inputs=_interpolated,
        other_sizes=lambda: [_interpolated(2, 64, 40)],
        notes="position table resized to the image",
    ),
    _vision("hf_deit", hf("DeiTForImageClassificationWithTeacher", "DeiTConfig", **_VIT, **_CLASSES)),
    _vision(
        "hf_beit",
        hf("BeitForImageClassification", "BeitConfig", **_VIT, **_CLASSES, use_relative_position_bias=True),
    ),
    _vision("hf_dinov2", hf("Dinov2Model", "Dinov2Config", **_DINO, image_size=32)),
    _vision(
        "hf_dinov2_interpolated",
        hf("Dinov2ForImageClassification", "Dinov2Config", **_DINO, image_size=56),
        (48, 40),
    ),
    _vision("hf_swin", hf("SwinForImageClassification", "SwinConfig", **_SWIN, **_CLASSES), (48, 64)),
    _vision("hf_swin_v2", hf("Swinv2Model", "Swinv2Config", **_SWIN), (48, 64)),
    _vision(
        "hf_segformer",
        hf("SegformerForSemanticSegmentation", "SegformerConfig", **_SEGFORMER, **_CLASSES),
        (64, 48),
    ),
    _vision("hf_convnext", hf("ConvNextModel", "ConvNextConfig", **_CONVNEXT), (64, 48)),
    _vision(
        "hf_convnext_v2",
        hf("ConvNextV2ForImageClassification", "ConvNextV2Config", **_CONVNEXT, **_CLASSES),
        (64, 48),
    ),
    _vision(
        "hf_mobilevit",
        hf("MobileViTForImageClassification", "MobileViTConfig", **_MOBILEVIT, **_CLASSES),
        (96, 64),
        inputs=_pixels64,
    ),
    _vision(
        "hf_mobilevit_segmentation",
        hf("MobileViTForSemanticSegmentation", "MobileViTConfig", **_MOBILEVIT, **_CLASSES),
        (96, 64),
        inputs=_pixels64,
    ),
    _vision(
        "hf_mobilenet_v2",
        hf(
            "MobileNetV2ForImageClassification",
            "MobileNetV2Config",
            depth_multiplier=0.35,
            image_size=32,
            **_CLASSES,
        ),
        (48, 64),
        notes="TensorFlow padding from the size of the map",
    ),
    _vision("hf_resnet", hf("ResNetForImageClassification", "ResNetConfig", **_STAGES, **_CLASSES), (64, 48)),
    _vision(
        "hf_regnet",
        hf("RegNetForImageClassification", "RegNetConfig", **_STAGES, groups_width=4, **_CLASSES),
        (64, 48),
    ),
    _vision(
        "hf_poolformer",
        hf("PoolFormerModel", "PoolFormerConfig", depths=[1, 1, 1, 1], hidden_sizes=[8, 8, 16, 16]),
        (64, 48),
    ),
    _vision(
        "hf_pvt_v2",
        hf(
            "PvtV2Model",
            "PvtV2Config",
            **{k: v for k, v in _SEGFORMER.items() if k != "decoder_hidden_size"},
            mlp_ratios=[2] * 4,
        ),
        (64, 48),
    ),
    _vision("hf_vitdet", hf("VitDetModel", "VitDetConfig", **_VIT, window_size=2, window_block_indices=[0])),
    _vision(
        "hf_levit",
        hf(
            "LevitForImageClassification",
            "LevitConfig",
            image_size=64,
            hidden_sizes=[16, 24, 32],
            num_attention_heads=[2, 2, 2],
            depths=[1, 1, 1],
            key_dim=[8, 8, 8],
            down_ops=[["Subsample", 8, 2, 4, 2, 2], ["Subsample", 8, 2, 4, 2, 2]],
            **_CLASSES,
        ),
        inputs=_pixels64,
    ),
    _vision(
        "hf_yolos",
        hf(
            "YolosForObjectDetection",
            "YolosConfig",
            **{**_VIT, "image_size": [32, 32]},
            num_detection_tokens=4,
        ),
        (48, 40),
    ),
    _vision(
        "hf_detr",
        hf("DetrForObjectDetection", "DetrConfig", **_DETR, **_CLASSES),
        (64, 48),
        notes="frozen batch norm",
    ),
    _vision(
        "hf_upernet",
        hf(
            "UperNetForSemanticSegmentation",
            "UperNetConfig",
            backbone_config=(
                "ConvNextConfig",
                {**_CONVNEXT, "out_features": ["stage1", "stage2", "stage3", "stage4"]},
            ),
            hidden_size=16,
            auxiliary_in_channels=16,
            auxiliary_channels=8,
            **_CLASSES,
        ),
        (64, 48),
    ),
    _vision(
        "hf_depth_anything",
        hf(
            "DepthAnythingForDepthEstimation",
            "DepthAnythingConfig",
            backbone_config=(
                "Dinov2Config",
                {
                    **_DINO,
                    "num_hidden_layers": 4,
                    "image_size": 32,
                    "out_indices": [1, 2, 3, 4],
                    "reshape_hidden_states": False,
                },
            ),
            patch_size=8,
            reassemble_hidden_size=32,
            neck_hidden_sizes=[8, 8, 16, 16],
            fusion_hidden_size=8,
            head_hidden_size=8,
            initializer_range=0.2,
            depth_estimation_type="metric",
        ),
    ),
    _vision(
        "hf_clip",
        hf("CLIPModel", "CLIPConfig", text_config=_CLIP_TEXT, vision_config=_VIT, projection_dim=16),
        inputs=_image_and_text,
    ),
    _vision("hf_clip_vision", hf("CLIPVisionModel", "CLIPVisionConfig", **_VIT)),
    _vision(
        "hf_siglip",
        hf(
            "SiglipModel",
            "SiglipConfig",
            text_config={**_CLIP_TEXT, "projection_size": 32},
            vision_config=_VIT,
        ),
        inputs=_image_and_text,
    ),
    _vision(
        "vit_module",
        partial(ViT, size=32, patch=8, dim=32, depth=2, heads=4, classes=10, attention="module"),
        inputs=images(32),
    ),
    _vision(
        "vit_sdpa",
        partial(ViT, size=32, patch=8, dim=32, depth=2, heads=4, classes=10, dropout=0.1),
        inputs=images(32),
    ),
    _vision(
        "vit_matmul",
        partial(ViT, size=32, patch=8, dim=32, depth=2, heads=4, classes=10, attention="matmul"),
        inputs=images(32),
    ),
    _vision("mlp_mixer", MLPMixer, inputs=images(32)),
]
