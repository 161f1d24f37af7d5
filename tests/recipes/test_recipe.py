"""Recipes as files, goals in numbers, and batch norm measured again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from sparsebit.config import load_qconfig, load_sconfig
from sparsebit.config.engine.yaml_file import write_yaml
from sparsebit.errors import ConfigError
from sparsebit.recipes import Goals, Measured, Recipe, Trial
from sparsebit.recipes.compression import accuracy_on
from sparsebit.recipes.reestimate import reestimate_norms
from sparsebit.recipes.space import LEVELS, structures
from sparsebit.recipes.trial import front

PRUNE = load_sconfig(
    {"SPARSER": {"TYPE": "structured", "STRATEGY": "l2norm", "RATIO": 0.25, "TARGET": "macs"}}
)


@pytest.mark.parametrize("prune", [None, PRUNE])
def test_a_recipe_is_the_same_after_writing_and_reading(prune: object, tmp_path: Path) -> None:
    config = load_qconfig("w4a8", ["SCHEDULE.RECOVERY=[equalization, {brecq: {steps: 10}}]"])
    recipe = Recipe(quantize=config, prune=prune, reestimate=True, seed=3, name="a name")  # type: ignore[arg-type]
    (tmp_path / "recipe.yaml").write_text(recipe.to_yaml())
    assert Recipe.read(tmp_path / "recipe.yaml") == recipe
    assert recipe.to_yaml().startswith("# a name\n")


GOOD = Recipe(quantize=load_qconfig("w4a8")).to_dict()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("W: 4", "this is not a recipe"),
        ("- 1", "this is not a recipe"),
        ("QUANTIZE: 3", "this is not a recipe"),
        ("SEED: [", "recipe: line 1, column 8"),
        ("a: b: c", "recipe: line 1, column 5"),
        (write_yaml(GOOD | {"PRUNED": None}), "unknown key 'PRUNED'"),
        (write_yaml(GOOD | {"SEED": "abc"}), r"SEED: expected an integer(.|\n)*'abc'"),
        (write_yaml(GOOD | {"SEED": -1}), "SEED: expected an integer"),
        (write_yaml(GOOD | {"SEED": 2**70}), "SEED: expected an integer"),
        (write_yaml(GOOD | {"FINETUNE": "no"}), "FINETUNE: expected true or false"),
        (write_yaml(GOOD | {"PRUNE": [1]}), "PRUNE: expected a pruning config"),
    ],
)
def test_what_is_not_a_recipe_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Recipe.from_yaml(text)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    for name, reason in {
        "none": "No such file",
        "pipe": "not a file",
        "binary": "not UTF-8",
        ".": "folder",
    }.items():
        with pytest.raises(ConfigError, match=f"cannot be read: .*{reason}"):
            Recipe.read(tmp_path / name)


BASE = Measured(metric=0.9, bytes=1000, seconds=0.01)


@pytest.mark.parametrize(
    ("goals", "got", "missed"),
    [
        (Goals(max_drop=0.1), Measured(metric=0.8, bytes=1000), {}),
        (Goals(max_drop=0.09), Measured(metric=0.72, bytes=1), {"metric": 0.1}),
        (Goals(size=0.25), Measured(metric=0.9, bytes=250), {}),
        (Goals(size=0.25), Measured(metric=0.9, bytes=300), {"size": 0.2}),
        (Goals(size=300), Measured(metric=0.9, bytes=450), {"size": 0.5}),
        (Goals(speedup=2), Measured(metric=0.9, bytes=1, seconds=0.005), {}),
        (Goals(speedup=2), Measured(metric=0.9, bytes=1, seconds=0.00625), {"speedup": 0.2}),
        (Goals(speedup=2), Measured(metric=0.9, bytes=1), {"speedup": 0.5}),
    ],
)
def test_what_is_missed_and_by_how_much(goals: Goals, got: Measured, missed: dict[str, float]) -> None:
    assert goals.shortfalls(BASE, got) == pytest.approx(missed)


def test_goals_and_what_was_reached_in_words() -> None:
    said = Goals(size=0.25, speedup=2).say(BASE, Measured(metric=0.85, bytes=300, seconds=0.004))
    assert said == (
        "the metric is 0.85 (float 0.9, 0.05 lost, 0.01 allowed); the parameters take 300 B (30.0% of float, asked for"
        " 250 B); a call takes 4 ms (2.50 times as fast, asked for 2)"
    )


def trial(name: str, metric: float, size: float) -> Trial:
    measured = Measured(metric=metric, bytes=size)
    return Trial(name=name, structure="", recipe=None, measured=measured, seconds=1.0)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=12))
def test_the_front_beats_everything_else_and_nothing_on_it_beats_another(
    points: list[tuple[int, int]],
) -> None:
    trials = [trial(str(index), *map(float, point)) for index, point in enumerate(points)]
    kept = front(trials)

    def beats(a: Trial, b: Trial) -> bool:
        assert a.measured and b.measured
        return a.measured.metric >= b.measured.metric and a.measured.bytes <= b.measured.bytes

    assert all(any(beats(a, b) for a in kept) for b in trials)
    assert not any(beats(a, b) for a in kept for b in kept if a is not b)


def test_the_space_goes_from_mild_to_strong_and_cheap_to_dear() -> None:
    mild = [s.name for s in structures(Goals(size=0.2), (0.5, 0.0))]
    assert mild[:3] == ["8-bit weights", "mixed bits within the size", "4-bit weights"]
    assert mild[3] == "50% pruned, 8-bit weights"
    assert "mixed" not in "".join(s.name for s in structures(Goals(), (0.0,), mixed=False))
    assert [level.costs for level in LEVELS] == sorted(level.costs for level in LEVELS)
    for level in LEVELS:
        for variant in level.variants:
            assert variant.apply(load_qconfig("int8_onnxruntime")) != load_qconfig("int8_onnxruntime")


def test_learnt_rounding_goes_before_the_biases_are_corrected() -> None:
    start = load_qconfig("int8_onnxruntime", ["SCHEDULE.RECOVERY=[equalization, bias_correction]"])
    varied = LEVELS[-1].variants[0].apply(start)
    assert [step.name for step in varied.SCHEDULE.RECOVERY] == ["equalization", "adaround", "bias_correction"]


def test_batch_norm_gets_the_statistics_of_the_data_and_nothing_else_changes() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)).eval()
    data = [torch.randn(64, 3) + 2 for _ in range(3)]
    before = net[0].weight.clone()
    assert reestimate_norms(net, data, (data[0],)) == 1
    with torch.no_grad():
        means = torch.stack([net[0](x).mean(0) for x in data]).mean(0)
    assert torch.allclose(net[1].running_mean, means, atol=1e-5)  # type: ignore[arg-type]
    assert torch.equal(net[0].weight, before)  # type: ignore[arg-type]
    assert net[1].momentum == 0.1 and not any(m.training for m in net.modules())
    assert reestimate_norms(nn.Linear(2, 2), [torch.ones(1, 2)], torch.ones(1, 2)) == 0


def test_accuracy_is_the_part_that_is_right() -> None:
    data = [(torch.eye(4), torch.tensor([0, 1, 2, 0])), (torch.eye(4), torch.tensor([0, 1, 2, 3]))]
    metric = accuracy_on(data, ((torch.eye(4),), {}))
    assert metric(nn.Identity()) == 7 / 8
    with pytest.raises(Exception, match="one row of class scores"):
        metric(nn.Flatten(0))
