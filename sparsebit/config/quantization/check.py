"""Read a whole config from plain data, and find everything that is wrong with it in one go."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, get_args

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from sparsebit.config.engine.nested import merge, plain
from sparsebit.config.engine.problems import Problem, nearest, raise_problems, show, suggest
from sparsebit.config.quantization.rules import config_problems
from sparsebit.config.quantization.sections import EXAMPLE, QConfigKeys, Section

# What stands in for a required value that is wrong, so that the rest can still be checked.
_STAND_IN: Mapping[str, Mapping[str, Any]] = {"W": EXAMPLE, "A": EXAMPLE}
_NOT_IN_RULES = ("SPECIFIC", "QADD")


def check(data: Mapping[str, Any], source: str, origins: Mapping[str, str] | None = None) -> None:
    """Raise one ``ConfigError`` with every problem in ``data``; return when there is none.

    ``origins`` says which keys came from somewhere else than ``source``: key path to a description of it.
    """
    try:
        found = config_problems(QConfigKeys.model_validate(data))
    except ValidationError as error:
        found, misspelt = read_errors(error.errors(include_url=False), QConfigKeys)
        found += _rule_problems_despite(data, {problem.path for problem in found} | misspelt)
    raise_problems(source, [_place(problem, origins or {}) for problem in found])


def _place(problem: Problem, origins: Mapping[str, str]) -> Problem:
    """The problem with the source its key came from."""
    for key, origin in origins.items():
        if problem.path == key or problem.path.startswith((f"{key}.", f"{key}[")):
            return replace(problem, source=origin)
    return problem


def read_errors(errors: Iterable[ErrorDetails], root: type[Section]) -> tuple[list[Problem], set[str]]:
    """Problems from pydantic's errors about ``root``, and the keys that are probably meant by unknown ones.

    A required key that is merely misspelt is told once.
    """
    problems, misspelt = [], set()
    for error in errors:
        location = tuple(map(str, error["loc"]))
        if error["type"] == "extra_forbidden":
            problem, meant = _unknown_key(location, root)
            misspelt.add(meant)
        else:
            problem = _wrong_value(location, error, root)
        problems.append(problem)
    told = [one for one in problems if not (one.message == "required" and one.path in misspelt)]
    return told, misspelt


def _path(location: Iterable[str]) -> str:
    """``W.SPECIFIC['conv1'].QUANTIZER.BIT``: parts in brackets follow without a dot."""
    return "".join(part if part.startswith("[") else f".{part}" for part in location).removeprefix(".")


def _wrong_value(location: tuple[str, ...], error: ErrorDetails, root: type[Section]) -> Problem:
    path = _path(location)
    if error["type"] == "missing":
        return Problem(path=path, message="required", expected=_wish(location, root))
    if error["type"] == "expected":
        context = error["ctx"]
        return Problem(
            path=path, expected=context["expected"], got=show(error["input"]), hint=context["hint"]
        )
    if error["type"] in ("model_type", "model_attributes_type", "dict_type"):
        return Problem(path=path, expected="keys with values", got=show(error["input"]))
    if error["type"] == "invalid_key":
        return Problem(path=path, expected="a key in words", got=show(error["loc"][-1]))
    return Problem(path=path, message=error["msg"], got=show(error["input"]))


def _wish(location: tuple[str, ...], root: type[Section]) -> str:
    """What a missing key should hold, asked of the key itself by giving it nothing."""
    section = _section_at(location[:-1], root)
    try:
        section.model_validate({location[-1]: object()})
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            if detail["loc"] == location[-1:] and detail["type"] == "expected":
                return str(detail["ctx"]["expected"])
    return ""


def _unknown_key(location: tuple[str, ...], root: type[Section]) -> tuple[Problem, str]:
    """The problem, and the path of the key that was probably meant."""
    *above, key = location
    outside = _NOT_IN_RULES if "SPECIFIC" in above else ()
    keys = [name for name in _section_at(above, root).model_fields if name not in outside]
    near = nearest(key, keys)
    if near is None and key == "QADD" and outside:
        hint = "it counts for the whole model: set A.QADD.ENABLE_QUANT"
    elif near is None and key not in outside and _is_on_other_side(location, root):
        hint = f"only {'activations have' if above[0] == 'W' else 'weights have'} it"
    else:
        hint = suggest(key, keys)
    return Problem(path=_path(location), message="unknown key", hint=hint), _path([*above, near or ""])


def _is_on_other_side(location: tuple[str, ...], root: type[Section]) -> bool:
    other = {"W": "A", "A": "W"}.get(location[0])
    return other is not None and location[-1] in _section_at([other, *location[1:-1]], root).model_fields


def _section_at(location: Iterable[str], root: type[Section]) -> type[Section]:
    """The section that a place is in; rules under SPECIFIC have the sections of their side."""
    section = root
    for part in location:
        field = section.model_fields.get(part)
        if field is None or part == "SPECIFIC" or part.startswith("["):
            continue
        kinds = [field.annotation, *get_args(field.annotation)]
        section = next(
            (kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Section)), section
        )
    return section


def _rule_problems_despite(data: Mapping[str, Any], wrong: set[str]) -> list[Problem]:
    """What the rules say about the parts that could be read, with stand-ins for those that could not."""
    try:
        config = QConfigKeys.model_validate(merge(_STAND_IN, _without(data, wrong)))
    except ValidationError:
        return []
    return [problem for problem in config_problems(config) if not _depends(problem, wrong)]


def _depends(problem: Problem, wrong: Iterable[str]) -> bool:
    """Whether a problem may only be due to a stand-in."""
    return any(key == path or key.startswith(f"{path}.") for path in wrong for key in problem.keys)


def _without(data: Mapping[str, Any], wrong: set[str]) -> dict[str, Any]:
    """A copy of ``data`` without the values at these paths. A side with a wrong rule loses all its rules."""
    kept: dict[str, Any] = plain(data)
    for path in wrong:
        *above, last = path.partition("[")[0].split(".")
        section: Any = kept
        for part in above:
            section = section.get(part) if isinstance(section, dict) else None
        if isinstance(section, dict):
            section.pop(last, None)
    return kept
