"""Tensors made from sizes: what their arguments mean, and that no numbers flow in."""

from __future__ import annotations

import pytest
import torch

from sparsebit.graph.ops.create import OPS
from tests.graph.ops.sampling import one_node, real, sample


@pytest.mark.parametrize(
    ("args", "expected"), [((5,), (0, 5, 1)), ((2, 5), (2, 5, 1)), ((2, 9, 3), (2, 9, 3))]
)
def test_a_lone_number_is_where_a_range_ends(args: tuple[int, ...], expected: tuple[int, ...]) -> None:
    call = one_node(sample(torch.arange, *args)).call
    assert tuple(call.arguments[name] for name in ("start", "end", "step")) == expected


@pytest.mark.parametrize("sizes", [(2, 3), ((2, 3),)])
def test_sizes_come_one_by_one_or_together(sizes: tuple[object, ...]) -> None:
    assert one_node(sample(torch.zeros, *sizes)).call.arguments["size"] == (2, 3)


def test_only_what_holds_given_numbers_has_activations() -> None:
    assert {spec.name for spec in OPS if spec.activations} == {
        "tensor",
        "typed_tensor",
        "as_tensor",
        "new_tensor",
    }


@pytest.mark.parametrize(
    "spec", [spec for spec in OPS if spec.name.endswith("_like")], ids=lambda spec: spec.name
)
def test_what_is_like_a_tensor_takes_its_size_and_not_its_numbers(spec: object) -> None:
    arguments = (real(2, 3), 7.0) if spec.name == "full_like" else (real(2, 3),)  # type: ignore[attr-defined]
    call = one_node(sample(getattr(torch, spec.name), *arguments)).call  # type: ignore[attr-defined]
    assert call.activations == () and call.output_shape == (2, 3) and call.spec.channels == "same_size"
