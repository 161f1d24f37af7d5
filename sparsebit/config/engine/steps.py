"""A list of steps: each is the name of a plug-in, or a mapping from its name to its options.

In YAML: ``[equalization, {brecq: {steps: 2000}}]``. A single step may be written without the list.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sparsebit.config.engine.options import Options
from sparsebit.config.engine.plugins import PlugIns, wrong_options
from sparsebit.config.engine.problems import suggest
from sparsebit.config.engine.values import OPTIONS, Read, Refused


@dataclass(frozen=True)
class Step:
    """One plug-in and its options; ``spelled`` is its name as written in the config."""

    name: str
    options: Options
    spelled: str = field(default="", compare=False, repr=False)


def steps_reader(known: PlugIns[Any], example: str) -> Read:
    """Reads a list of steps; ``example`` is one step with options, for messages.

    Example:
        >>> from sparsebit.config.engine.plugins import PlugInRule
        >>> shapes = PlugIns("shape", PlugInRule)
        >>> shapes.add("circle", PlugInRule(options=("radius",)))
        >>> steps_reader(shapes, "{circle: {radius: 2}}").parse(["circle", {"circle": {"radius": 3}}])
        (Step(name='circle', options=Options()), Step(name='circle', options=Options(radius=3)))
    """

    def parse_step(item: Any) -> Step:
        if isinstance(item, Step):
            return item
        name, options = item, None
        if isinstance(item, Mapping) and len(item) == 1:
            name, options = next(iter(item.items()))
        if not isinstance(name, str) or not isinstance(options, Mapping | None):
            raise Refused(f"a name, or one name with its options, such as {example}")
        spelled, name = name, known.canonical(name)
        if name not in known:
            raise Refused(f"one of {', '.join(known)}", suggest(name, list(known)))
        read = OPTIONS.parse(options or {})
        assert isinstance(read, Options)
        for wrong in wrong_options(name, known[name], read):
            raise Refused(f"{wrong.expected}, not {wrong.got}", wrong.hint)
        return Step(name, read, spelled)

    def parse(value: object) -> tuple[Step, ...]:
        if isinstance(value, str | Mapping):
            value = [value]
        if not isinstance(value, list | tuple):
            raise Refused("a list of steps")
        return tuple(map(parse_step, value))

    def write(steps: Any) -> list[Any]:
        return [{step.name: dict(step.options)} if step.options else step.name for step in steps]

    one = {"anyOf": [{"type": "string", "minLength": 1}, {"type": "object"}]}
    return Read(parse, "a list of steps", {"anyOf": [{"type": "array", "items": one}, *one["anyOf"]]}, write)
