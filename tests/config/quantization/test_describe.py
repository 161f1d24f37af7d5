"""A config in words."""

from __future__ import annotations

from sparsebit.config.quantization.qconfig import load_qconfig
from tests.config.strategies import activations, plain_config, weights


def test_everything_that_was_asked_for() -> None:
    config = load_qconfig(
        plain_config(
            BACKEND="virtual",
            DEVICE="cuda",
            FIRST_LAST=8,
            SKIP_TRACE_MODULES=["head.*"],
            SCHEDULE={"FUSE_BN": True},
            W=weights(
                QSCHEME="per-group-symmetric", GROUP_SIZE=64, SPECIFIC={"fc": ["QUANTIZER.BIT", 8], "x": []}
            ),
            A=activations(OBSERVER={"TYPE": "percentile", "LAYOUT": "NLC"}, QADD={"ENABLE_QUANT": True}),
        )
    )
    assert config.describe() == (
        "qconfig: for virtual, on cuda\n"
        "  weights      int8 per-group-symmetric of 64, uniform, minmax\n"
        "  activations  uint8 per-tensor-affine, uniform, percentile(alpha=0.001), NLC\n"
        "  first, last  8 bits\n"
        "  schedule     fold batch norm, no quantizers inside fused operators, "
        "quantize the inputs of additions\n"
        "  not traced   head.*\n"
        "  W fc: QUANTIZER.BIT=8\n"
        "  W x: as the rest"
    )


def test_what_is_off_is_left_out() -> None:
    config = load_qconfig(
        plain_config(SCHEDULE={"DISABLE_UNNECESSARY_QUANT": False}, A=activations(QUANTIZER={"BIT": 0}))
    )
    assert config.describe() == (
        "qconfig: for virtual, on auto\n"
        "  weights      int8 per-channel-symmetric, uniform, minmax\n"
        "  activations  float"
    )


def test_batch_norm_that_is_kept_and_layers_in_float() -> None:
    text = load_qconfig(
        plain_config(SCHEDULE={"BN_TUNING": True, "FUSE_BN": True}, FIRST_LAST="float")
    ).describe()
    assert "  first, last  float\n" in text
    assert "keep batch norm for tuning" in text and "fold batch norm" not in text


def test_it_stays_on_one_screen() -> None:
    rules = {f"layer{index}": ["QUANTIZER.BIT", 4] for index in range(200)}
    text = load_qconfig(plain_config(W=weights(SPECIFIC=rules), A=activations(SPECIFIC=rules))).describe()
    assert len(text.splitlines()) < 40
    assert "W and 188 more rules" in text and "A and 188 more rules" in text
