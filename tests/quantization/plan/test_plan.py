"""A plan as data: printed, compared, saved."""

from __future__ import annotations

import json

import pytest

from sparsebit.errors import SparsebitError
from sparsebit.quantization import QuantModel, QuantPlan
from tests.quantization.nets import CONFIGS, config, images, residual


def plan(target: str = "virtual") -> QuantPlan:
    return QuantModel(residual(), CONFIGS[target], images()).plan


@pytest.mark.parametrize("target", sorted(CONFIGS))
def test_json_gives_it_back(target: str) -> None:
    made = plan(target)
    assert QuantPlan.from_dict(json.loads(json.dumps(made.to_dict()))) == made


def test_print_has_a_line_and_a_reason_for_every_tensor_and_every_float_edge() -> None:
    made = plan("onnxruntime")
    lines = str(made).splitlines()
    assert (
        lines[0]
        == f"plan for onnxruntime: {len(made.weights())} weights and {len(made.activations())} activations"
    )
    for tensor in made.tensors:
        assert any(tensor.name in line and line.endswith(tensor.reason) for line in lines)
    for edge in made.edges:
        if edge.tensor is None:
            assert f"  {edge.consumer} <- {edge.source}: {edge.reason}" in lines


def test_values_inside_fused_operators_are_not_listed_as_float() -> None:
    made = plan("onnxruntime")
    before, _, fused = str(made).partition(f"no quantizer needed ({len(made.fused())} inputs of operators)")
    assert "computed inside" not in before
    assert made.fused() and fused.count("computed inside") == len(made.fused())
    assert {*made.left_float(), *made.fused()} == {edge for edge in made.edges if edge.tensor is None}


def test_difference_names_what_is_gone_new_and_changed() -> None:
    ours = plan()
    assert ours.difference(ours) == [] == ours.difference(plan())
    other = QuantModel(
        residual(),
        config(
            A__QADD__ENABLE_QUANT=True, W__QUANTIZER__BIT=4, A__SPECIFIC={"fc": ["QUANTIZER.DISABLE", True]}
        ),
        images(),
    ).plan
    lines = ours.difference(other)
    assert [line[0] for line in lines].count("-") == 1 and any(
        line.startswith("- adaptive") for line in lines
    )
    assert any(line.startswith("+ conv2: uint8") for line in lines)
    assert sum("int8" in line and "int4" in line for line in lines) == 3


def test_other_specs_in_the_same_places() -> None:
    made = plan()
    spec = made.tensors[0].spec
    changed = made.with_specs({"fc.weight": spec})
    assert changed.edges == made.edges and {t.name for t in changed.tensors} == {t.name for t in made.tensors}


@pytest.mark.parametrize(
    "data", [{}, {"tensors": [{}]}, {"tensors": [], "edges": [{"a": 1}], "target": "", "notes": []}]
)
def test_what_is_no_plan_is_refused(data: dict[str, object]) -> None:
    with pytest.raises(SparsebitError, match="not a saved plan"):
        QuantPlan.from_dict(data)
