"""What is particular to OpenVINO."""

from __future__ import annotations

from sparsebit.targets.onnxruntime import CONVOLUTIONS, TRANSPOSED
from sparsebit.targets.openvino import OPENVINO


def test_every_convolution_hands_integers_on_and_products_do_not() -> None:
    assert all(OPENVINO.rules[op].output for op in CONVOLUTIONS + TRANSPOSED)
    assert not OPENVINO.rules["linear"].output and OPENVINO.runtime == "openvino"


def test_activations_may_have_a_scale_per_channel_but_none_per_token() -> None:
    schemes = {scheme for row in OPENVINO.accepts["A"].rows for scheme in row.schemes}
    assert "per-channel-symmetric" in schemes and not any("token" in scheme for scheme in schemes)
