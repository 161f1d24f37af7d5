"""``SCHEDULE.RECOVERY``: which algorithms win accuracy back, in order, each with its options.

A step is a name, or a mapping from the name to options: ``RECOVERY: [equalization, {brecq: {steps: 2000}}]``.
The algorithms live in ``sparsebit.quantization``, which makes their names known through ``register_step``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

from sparsebit.config.engine.problems import suggest
from sparsebit.config.engine.values import Read, refuse
from sparsebit.config.quantization.tensor_spec import Options

_RECONSTRUCTION = (
    *("steps", "batch", "lr", "scale_lr", "drop", "regularization", "warmup", "seed", "largest"),
)
_OPTIONS: dict[str, tuple[str, ...]] = {
    "equalization": ("rounds",),
    "smoothquant": ("alpha",),
    "weight_correction": (),
    "bias_correction": ("method",),
    "adaround": _RECONSTRUCTION,
    "brecq": _RECONSTRUCTION,
}


class Step(NamedTuple):
    """One algorithm and its options."""

    name: str
    options: Options


def register_step(name: str, options: tuple[str, ...]) -> None:
    """Let configs name a step, with these options."""
    _OPTIONS[name.lower()] = options


def step_names() -> list[str]:
    """Every step a config may name."""
    return sorted(_OPTIONS)


def parse_recovery(value: object) -> tuple[Step, ...]:
    """The steps a value spells.

    Example:
        >>> parse_recovery(["equalization", {"brecq": {"steps": 10}}])
        (Step(name='equalization', options=Options()), Step(name='brecq', options=Options(steps=10)))
    """
    if isinstance(value, (str, Mapping)):
        value = [value]
    if not isinstance(value, (list, tuple)):
        raise refuse("a list of steps")
    return tuple(_parse_step(item) for item in value)


def _parse_step(item: Any) -> Step:
    if isinstance(item, Step):
        return item
    name, options = item, dict[str, Any]()
    if isinstance(item, Mapping) and len(item) == 1:
        name, options = next(iter(item.items()))
    if not isinstance(name, str) or not isinstance(options or {}, Mapping):
        raise refuse("a name, or one name with its options, such as {brecq: {steps: 2000}}")
    name = name.strip().lower()
    if name not in _OPTIONS:
        raise refuse(f"one of {', '.join(step_names())}", hint=suggest(name, step_names()))
    for key in options or {}:
        if key not in _OPTIONS[name]:
            raise refuse(
                f"options of {name}: {', '.join(_OPTIONS[name]) or 'it has none'}",
                hint=suggest(str(key), _OPTIONS[name]),
            )
    return Step(name, Options({str(key): value for key, value in (options or {}).items()}))


def write_recovery(steps: tuple[Step, ...]) -> list[Any]:
    """Plain data that ``parse_recovery`` turns into the same steps."""
    return [{step.name: dict(step.options)} if step.options else step.name for step in steps]


Recovery = Annotated[
    tuple[Step, ...],
    Read(
        parse_recovery,
        {
            "type": "array",
            "items": {"anyOf": [{"type": "string", "minLength": 1}, {"type": "object"}]},
        },
    ),
]
