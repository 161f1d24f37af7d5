"""The schema for editors: up to date, and it accepts and refuses what the loader does, as far as a schema can."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from sparsebit.config.engine.nested import plain
from sparsebit.config.engine.schema import schema_text
from sparsebit.config.engine.yaml_file import read_yaml
from sparsebit.config.llm import LlmConfig
from sparsebit.config.pruning.sconfig import SConfig, load_sconfig
from sparsebit.config.quantization.presets import preset_names, preset_text
from sparsebit.config.quantization.qconfig import QConfig, load_qconfig
from tests.config.strategies import activations, configs, plain_config, weights

ROOT = Path(__file__).parents[3]
FILES: dict[Any, Path] = {
    QConfig: ROOT / "docs/qconfig.schema.json",
    SConfig: ROOT / "docs/sconfig.schema.json",
    LlmConfig: ROOT / "docs/llmconfig.schema.json",
}
COMMANDS: dict[Any, str] = {QConfig: "quantization", SConfig: "pruning", LlmConfig: "llm"}
SCHEMAS: dict[Any, dict[str, Any]] = {kind: json.loads(schema_text(kind)) for kind in FILES}
DEFINITIONS = {name: one for kind in (QConfig, SConfig) for name, one in SCHEMAS[kind]["$defs"].items()}
SCHEMA = SCHEMAS[QConfig]
SPARSER = {"TYPE": "structured", "STRATEGY": "l1norm", "RATIO": 0.5}
TYPES: dict[str, Any] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "null": type(None),
    "integer": int,
    "number": (int, float),
}
NOTES = {"$schema", "$defs", "title", "description", "default"}


def errors(schema: dict[str, Any], value: Any, path: str = "") -> Iterator[str]:
    """A validator of its own, for the keywords the schema uses; any other keyword is a failure of the test."""
    for keyword, rule in schema.items():
        if keyword == "$ref":
            yield from errors(DEFINITIONS[rule.removeprefix("#/$defs/")], value, path)
        elif keyword == "type":
            if not any(is_a(value, kind) for kind in ([rule] if isinstance(rule, str) else rule)):
                yield f"{path}: not {rule}"
        elif keyword == "enum":
            if not any(type(value) is type(one) and value == one for one in rule):
                yield f"{path}: not one of {rule}"
        elif keyword == "anyOf":
            if all(any(errors(one, value, path)) for one in rule):
                yield f"{path}: none of the alternatives"
        elif keyword == "required":
            yield from (
                f"{path}.{key}: missing" for key in rule if isinstance(value, dict) and key not in value
            )
        elif keyword == "properties":
            for key, inner in rule.items():
                if isinstance(value, dict) and key in value:
                    yield from errors(inner, value[key], f"{path}.{key}")
        elif keyword == "additionalProperties":
            for key in (value if isinstance(value, dict) else {}).keys() - schema.get(
                "properties", {}
            ).keys():
                yield from (
                    [f"{path}.{key}: unknown"] if rule is False else errors(rule, value[key], f"{path}.{key}")
                )
        elif keyword == "items":
            for index, item in enumerate(value if isinstance(value, list) else ()):
                yield from errors(rule, item, f"{path}[{index}]")
        elif keyword == "pattern":
            if isinstance(value, str) and not re.search(rule, value):
                yield f"{path}: does not match"
        elif keyword == "minLength":
            if isinstance(value, str) and len(value) < rule:
                yield f"{path}: too short"
        elif keyword in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
            if is_a(value, "number") and not inside(keyword, value, rule):
                yield f"{path}: {keyword} {rule}"
        else:
            assert keyword in NOTES, f"the schema uses {keyword}, which this test cannot check"


def is_a(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    return isinstance(value, TYPES[kind]) or (
        kind == "integer" and isinstance(value, float) and value.is_integer()
    )


def inside(keyword: str, value: float, limit: float) -> bool:
    return {
        "minimum": value >= limit,
        "maximum": value <= limit,
        "exclusiveMinimum": value > limit,
        "exclusiveMaximum": value < limit,
    }[keyword]


@pytest.mark.parametrize("kind", FILES)
def test_the_file_is_up_to_date(kind: Any) -> None:
    command = f"sparsebit schema {COMMANDS[kind]} --output {FILES[kind].relative_to(ROOT)}"
    assert FILES[kind].read_text(encoding="utf-8") == schema_text(kind), f"run: {command}"


@pytest.mark.parametrize("kind", FILES)
def test_every_reference_leads_somewhere(kind: Any) -> None:
    assert set(re.findall(r'"#/\$defs/(\w+)"', schema_text(kind))) <= set(SCHEMAS[kind]["$defs"])


def test_no_definition_has_two_meanings() -> None:
    assert len(DEFINITIONS) == sum(len(schema["$defs"]) for schema in (SCHEMAS[QConfig], SCHEMAS[SConfig]))


@pytest.mark.parametrize("name", preset_names())
def test_presets_are_valid(name: str) -> None:
    assert list(errors(SCHEMA, read_yaml(preset_text(name), name))) == []


def without_nulls(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: without_nulls(value) for key, value in data.items() if value is not None}
    return data


@pytest.mark.parametrize(
    "path", sorted((ROOT / "tests/config/quantization/old").glob("*.yaml")), ids=lambda path: path.stem
)
def test_old_files_are_valid(path: Path) -> None:
    data = without_nulls(read_yaml(path.read_text(), path.name))
    if path.stem == "imagenet_bn_tuning":
        # Text there, which editors may mark.
        data["W"]["QUANTIZER"]["BIT"] = int(data["W"]["QUANTIZER"]["BIT"])
    assert list(errors(SCHEMA, data)) == []


@given(configs())
def test_what_loads_and_what_is_written_is_valid(data: dict[str, Any]) -> None:
    assert list(errors(SCHEMA, plain(data))) == []
    assert list(errors(SCHEMA, load_qconfig(data).to_dict())) == []


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"W": plain_config()["W"]},
        plain_config(B=1),
        plain_config(BACKEND="onnx"),
        plain_config(W=weights(QUANTIZER={})),
        plain_config(W=weights(QUANTIZER={"BITT": 8})),
        plain_config(W=weights(QUANTIZER={"BIT": 1})),
        plain_config(W=weights(QUANTIZER={"BIT": 17})),
        plain_config(W=weights(QSCHEME="per-token-affine")),
        plain_config(A=activations(QSCHEME="per-group-affine")),
        plain_config(A=activations(GROUP_SIZE=8)),
        plain_config(W=weights(GROUP_SIZE=1)),
        plain_config(A=activations(OBSERVER={"PERCENTILE": {"ALPHA": 1}})),
        plain_config(A=activations(OBSERVER={"LAYOUT": "NHWC"})),
        plain_config(A=activations(QUANTIZER={"BIT": 8, "PACT": {"ALPHA_VALUE": 0}})),
        plain_config(SCHEDULE={"FUSE_BN": "maybe"}),
        plain_config(FIRST_LAST="half"),
        plain_config(W=weights(SPECIFIC=[3])),
        plain_config(SKIP_TRACE_MODULES=[""]),
        plain_config(A=activations(OBSERVER={"OPTIONS": {"a": [1]}})),
    ],
)
def test_what_is_wrong_is_marked(data: dict[str, Any]) -> None:
    assert list(errors(SCHEMA, data))


@pytest.mark.parametrize("word", ["PER-TENSOR-AFFINE", "per_tensor_affine", "Per-Tensor-Affine"])
def test_words_in_any_capitals_are_not_marked(word: str) -> None:
    assert list(errors(SCHEMA, plain_config(A=activations(QSCHEME=word)))) == []


@pytest.mark.parametrize(
    "changes",
    [{}, {"TYPE": "Structed"}, {"NM": "2:4"}, {"BLOCK": [4, 4]}, {"SPECIFIC": [{"fc": {"RATIO": 0.1}}]}],
)
def test_a_pruning_config_that_loads_is_not_marked(changes: dict[str, Any]) -> None:
    data = {"SPARSER": {**SPARSER, **changes}, "IGNORE": ["fc"]}
    assert list(errors(SCHEMAS[SConfig], data)) == []
    assert list(errors(SCHEMAS[SConfig], load_sconfig(data).to_dict())) == []


@pytest.mark.parametrize(
    "changes", [{"RATIO": 1}, {"TYPO": 1}, {"SCOPE": "model"}, {"ROUND_TO": 0}, {"OPTIONS": [1]}, {"TYPE": 3}]
)
def test_what_is_wrong_with_a_pruning_config_is_marked(changes: dict[str, Any]) -> None:
    assert list(errors(SCHEMAS[SConfig], {"SPARSER": {**SPARSER, **changes}}))
