"""From the settings of one side to the spec of one tensor: defaults, then FIRST_LAST, then matching rules in order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from sparsebit.config.engine.options import Options, Scalar
from sparsebit.config.engine.section import flatten, keys_of
from sparsebit.config.quantization.sections import ActivationSettings, WeightSettings
from sparsebit.config.quantization.tensor_spec import Granularity, Layout, TensorSpec
from sparsebit.targets.schemes import NumberFormat, Side

Flat = dict[str, Scalar]  # dotted keys to values: {"QSCHEME": ..., "QUANTIZER.BIT": ...}
BIT, DTYPE = "QUANTIZER.BIT", "QUANTIZER.DTYPE"

# Settings with dedicated keys, from before OPTIONS existed.
OPTION_KEYS: Mapping[tuple[str, str], Mapping[str, str]] = {
    ("QUANTIZER", "pact"): {"alpha_value": "QUANTIZER.PACT.ALPHA_VALUE"},
    ("OBSERVER", "percentile"): {"alpha": "OBSERVER.PERCENTILE.ALPHA"},
    ("OBSERVER", "aciq"): {"distribution": "OBSERVER.ACIQ.DISTRIBUTION"},
    ("OBSERVER", "moving_average"): {"ema_ratio": "OBSERVER.MOVING_AVERAGE.EMA_RATIO"},
}


def flatten_side(section: WeightSettings | ActivationSettings) -> Flat:
    """Every setting of a side that a rule can change."""
    settings = WeightSettings if isinstance(section, WeightSettings) else ActivationSettings
    return flatten(section, keys_of(settings))


def apply_settings(flat: Flat, settings: Mapping[str, Scalar]) -> Flat:
    """``flat`` with one rule applied.

    BIT and DTYPE name one thing together, the number format: a rule that gives one of them replaces both. The options
    of a plug-in go with it: a rule that names another one starts from none.
    """
    changed = dict(settings)
    if BIT in changed:
        changed.setdefault(DTYPE, "int")
    elif changed.get(DTYPE, "int") != "int":
        changed[BIT] = 8
    kept = dict(flat)
    for section in ("QUANTIZER", "OBSERVER"):
        if changed.get(f"{section}.TYPE", flat[f"{section}.TYPE"]) != flat[f"{section}.TYPE"]:
            kept = {key: value for key, value in kept.items() if not key.startswith(f"{section}.OPTIONS.")}
    return {**kept, **changed}


def apply_first_last(flat: Flat, asked: int | str) -> Flat:
    """``flat`` for the first or last layer. A tensor in float stays in float."""
    if asked == "float" or flat[BIT] == 0:
        return {**flat, BIT: 0}
    return apply_settings(flat, {BIT: asked} if isinstance(asked, int) else {DTYPE: asked})


def options_of(flat: Flat, section: str) -> Options:
    """The settings of the chosen quantizer or observer, from its own keys and from OPTIONS."""
    own = OPTION_KEYS.get((section, str(flat[f"{section}.TYPE"])), {})
    named = {name: flat[key] for name, key in own.items() if key in flat}
    prefix = f"{section}.OPTIONS."
    free = {key.removeprefix(prefix): value for key, value in flat.items() if key.startswith(prefix)}
    return Options({**named, **free})


def make_spec(flat: Flat, side: Side) -> TensorSpec:
    """The spec that flat settings describe."""
    _, granularity, symmetry = str(flat["QSCHEME"]).split("-")
    bits, dtype = cast(int, flat[BIT]), cast(NumberFormat, flat[DTYPE])
    return TensorSpec(
        enabled=bool(bits) and not flat["QUANTIZER.DISABLE"],
        bits=bits or 8,
        dtype=dtype,
        symmetric=symmetry == "symmetric",
        granularity=cast(Granularity, granularity),
        group_size=cast(int, flat["GROUP_SIZE"]) if granularity == "group" else None,
        quantizer=str(flat["QUANTIZER.TYPE"]),
        quantizer_options=options_of(flat, "QUANTIZER"),
        observer=str(flat["OBSERVER.TYPE"]),
        observer_options=options_of(flat, "OBSERVER"),
        layout=cast(Layout, flat["OBSERVER.LAYOUT"]) if side == "A" else "NCHW",
    )
