"""Mutated configs: each one loads and comes back as the same, or ends in one short error of ours.

    python benchmarks/robustness/config_fuzz.py --count 5000 --seed 0 --output result.json

A case starts from a preset, an old file or a pruning config and is changed at random: values, keys, nesting, the bytes
of the YAML text, or overrides. What goes wrong is listed with the seed of its case, which reproduces it:
``--count 1 --seed <that seed>``.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sparsebit.config import QConfig, SConfig, load_qconfig, load_sconfig, preset_names, preset_text
from sparsebit.config.engine.yaml_file import read_yaml, write_yaml
from sparsebit.errors import ConfigError

OLD = sorted((Path(__file__).parents[2] / "tests/config/quantization/old").glob("*.yaml"))
PRUNING = {
    "SPARSER": {
        "TYPE": "structured",
        "STRATEGY": "l1norm",
        "RATIO": 0.5,
        "NM": "2:4",
        "BLOCK": [4, 4],
        "SPECIFIC": [{"layer1.*": {"RATIO": 0.25}}, {"op:linear": ["ROUND_TO", 4]}],
    },
    "SCHEDULE": {"TYPE": "one-shot"},
    "IGNORE": ["fc"],
}
WORDS = (
    *(
        "W",
        "A",
        "QUANTIZER",
        "OBSERVER",
        "BIT",
        "DTYPE",
        "TYPE",
        "QSCHEME",
        "SPECIFIC",
        "OPTIONS",
        "RECOVERY",
    ),
    *(
        "SCHEDULE",
        "FUSE_BN",
        "DEVICE",
        "BACKEND",
        "GROUP_SIZE",
        "LAYOUT",
        "SPARSER",
        "RATIO",
        "NM",
        "",
        "x.y",
    ),
)
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, 2, 4, 8, 16, 17, -1, 124, 10**30, 0.5, 1.0, 1e-3, float("nan"), float("inf")),
    *(
        "",
        "8",
        "8.0",
        "1e3",
        "fp8_e4m3",
        "fp8-e5m2",
        "float",
        "auto",
        "cuda:1",
        "2:4",
        "4x4",
        "null",
        "on",
        "~",
    ),
    *(
        "per-tensor-affine",
        "per-group-symmetric",
        "per-token-affine",
        "lsq+",
        "mse",
        "percentile",
        "brecq",
        "hrank",
    ),
    *("é", "\u2028", "a: b", "#", "{", "[", "*", "&a", "!!python/object:os.system", "x" * 3000),
    *([], [1], ["QUANTIZER.BIT", 4], ["QUANTIZER.BIT"], {}, {"steps": 3}, {"": 1}, {3: 4}, [{"conv1": None}]),
    *(
        {"bins": 64},
        {"bins": 63},
        {"alpha": "x"},
        [{"brecq": {"steps": 0}}],
        {"op:conv2d": {"QUANTIZER": {"BIT": 3}}},
    ),
)
MOST_CHARACTERS, MOST_SECONDS = 10_000, 2.0


def start(chance: random.Random) -> tuple[Callable[..., Any], dict[str, Any]]:
    """A loader, and the plain data of a valid config for it."""
    if chance.random() < 0.3:
        return load_sconfig, json.loads(json.dumps(PRUNING))
    if chance.random() < 0.5:
        text = preset_text(chance.choice(preset_names()))
    else:
        text = chance.choice(OLD).read_text(encoding="utf-8")
    data = read_yaml(text, "start")
    assert isinstance(data, dict)
    return load_qconfig, data


def mutate(data: Any, chance: random.Random) -> None:
    """Change one thing somewhere in nested data."""
    while isinstance(data, dict) and data:
        key = chance.choice(list(data))
        if isinstance(data[key], dict | list) and chance.random() < 0.7:
            data = data[key]
            continue
        action = chance.random()
        if action < 0.4:
            data[key] = chance.choice(VALUES)
        elif action < 0.6:
            data[chance.choice([*WORDS, *VALUES[:3], 3, str(key).lower(), f"{key}X"])] = data.pop(key)
        elif action < 0.7:
            del data[key]
        elif action < 0.9:
            data[chance.choice(WORDS)] = chance.choice(VALUES)
        else:
            data[key] = {chance.choice(WORDS): data[key]}
        return
    if isinstance(data, list):
        data.insert(chance.randrange(len(data) + 1), chance.choice(VALUES))


def mutate_text(text: str, chance: random.Random) -> str:
    """Change some characters of a YAML text."""
    for _ in range(chance.randrange(1, 4)):
        place = chance.randrange(len(text) + 1)
        piece = chance.choice(
            ["", ":", "\n", "  ", "{", "]", "&a", "*a", "<<: *a", "!!int x", "- ", "\t", "0x_", "2020-99-99"]
        )
        text = text[:place] + piece + text[place + chance.randrange(3) :]
    return text


def check(seed: int) -> str:
    """What became of one case: "loaded", "refused", or what is wrong about it."""
    chance = random.Random(seed)
    load, data = start(chance)
    overrides: list[str] = []
    began = time.perf_counter()
    try:
        for _ in range(chance.choice((0, 1, 1, 1, 2, 3))):
            mutate(data, chance)
        if chance.random() < 0.2:
            overrides = [f"{chance.choice(WORDS)}.{chance.choice(WORDS)}={chance.choice(VALUES)}"]
        if chance.random() < 0.3:
            text = mutate_text(write_yaml(data), chance)
            parsed = read_yaml(text, "text")
            config = load(parsed if isinstance(parsed, dict) else {"text": parsed}, overrides)
        else:
            config = load(data, overrides)
    except ConfigError as error:
        if len(str(error)) > MOST_CHARACTERS:
            return f"a message of {len(str(error))} characters"
        return "refused"
    except Exception as error:
        return f"foreign: {type(error).__name__}: {error}"[:200]
    assert isinstance(config, QConfig | SConfig)
    if load(config.to_dict()) != config:
        return "another config after a trip through plain data"
    if load(read_yaml(config.to_yaml(), "written")) != config:
        return "another config after a trip through YAML"
    if time.perf_counter() - began > MOST_SECONDS:
        return "slow"
    return "loaded"


def run(count: int, seed: int) -> dict[str, Any]:
    """All cases, and what is wrong with any of them by its seed."""
    outcomes: Counter[str] = Counter()
    wrong: dict[int, str] = {}
    for case in range(seed, seed + count):
        outcome = check(case)
        outcomes[outcome if outcome in ("loaded", "refused") else "wrong"] += 1
        if outcome not in ("loaded", "refused"):
            wrong[case] = outcome
    return {"count": count, "seed": seed, "outcomes": dict(outcomes), "wrong": wrong}


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    from benchmarks.environment import describe

    result = {"environment": describe(arguments.seed), **run(arguments.count, arguments.seed)}
    text = json.dumps(result, indent=2)
    if arguments.output:
        arguments.output.write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
