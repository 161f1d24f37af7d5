"""Recipes as files, goals in numbers, and batch norm measured again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sparsebit.config import load_qconfig, load_sconfig
from sparsebit.config.engine.yaml_file import write_yaml
from sparsebit.errors import ConfigError
from sparsebit.recipes import Recipe

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
