"""Valid configs as plain data, in any of the ways they may be written."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from sparsebit.config.quantization.plugins import RULES, names_for
from sparsebit.targets.schemes import Side

WORDS = st.sampled_from(
    [
        "conv1",
        "layer1.*",
        "layer1_0_conv1",
        "op:conv2d",
        "*",
        "?[0-3]",
        "on",
        "no",
        "null",
        "~",
        "1",
        "1e3",
        "a: b",
    ]
) | st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), min_size=1, max_size=8)
PATTERNS = WORDS.filter(lambda text: text.strip() not in ("", "op:"))
FRACTIONS = st.floats(0, 1, exclude_max=True, allow_subnormal=False)


@st.composite
def quantizers(draw: st.DrawFn, side: Side) -> tuple[dict[str, Any], str]:
    """A QUANTIZER section and a scheme it works with."""
    name = draw(st.sampled_from(names_for("quantizer", side)))
    scheme = draw(st.sampled_from(RULES["quantizer"][name].schemes[side]))
    section: dict[str, Any] = {"TYPE": name, "DISABLE": draw(st.booleans())}
    if name == "uniform" and scheme.endswith("symmetric") and draw(st.booleans()):
        section[draw(st.sampled_from(["BIT", "DTYPE"]))] = draw(st.sampled_from(["fp8_e4m3", "fp8_e5m2"]))
    else:
        section["BIT"] = draw(st.sampled_from([0, *range(2, 17)]))
    if side == "A":
        section["PACT"] = {"ALPHA_VALUE": draw(st.floats(0.01, 1e6))}
    return section, scheme


@st.composite
def rules(draw: st.DrawFn, side: Side) -> dict[str, Any]:
    """Patterns with settings that are right whatever the rest says."""
    setting = (
        st.tuples(st.just("QUANTIZER.BIT"), st.sampled_from([0, 2, 4, 8, 16]))
        | st.tuples(st.just("QUANTIZER.DISABLE"), st.booleans())
        | st.tuples(st.just("OBSERVER.PERCENTILE.ALPHA"), FRACTIONS)
        | st.tuples(st.just("OBSERVER.ACIQ.DISTRIBUTION"), st.sampled_from(["gaus", "laplace"]))
    )
    if side == "W":
        setting |= st.tuples(st.just("GROUP_SIZE"), st.integers(2, 4096))
    else:
        setting |= st.tuples(st.just("OBSERVER.LAYOUT"), st.sampled_from(["NCHW", "NLC"]))
    found: dict[str, Any] = {}
    for pattern in draw(st.lists(PATTERNS, max_size=4, unique=True)):
        settings = dict(draw(st.lists(setting, max_size=3)))
        flat = [part for pair in settings.items() for part in pair]
        found[pattern] = flat if draw(st.booleans()) else settings
    return found


@st.composite
def sides(draw: st.DrawFn, side: Side) -> dict[str, Any]:
    quantizer, scheme = draw(quantizers(side))
    observers = [
        name for name in names_for("observer", side) if scheme in RULES["observer"][name].schemes[side]
    ]
    observer: dict[str, Any] = {
        "TYPE": draw(st.sampled_from(observers)),
        "PERCENTILE": {"ALPHA": draw(FRACTIONS)},
    }
    if observer["TYPE"] in ("percentile", "mse", "kl_histogram", "aciq") and draw(st.booleans()):
        observer["OPTIONS"] = {"bins": draw(st.sampled_from([64, 2048, 8192]))}
    section: dict[str, Any] = {"QSCHEME": scheme, "QUANTIZER": quantizer, "OBSERVER": observer}
    if side == "A":
        observer["MOVING_AVERAGE"] = {"EMA_RATIO": draw(FRACTIONS)}
        section["QADD"] = {"ENABLE_QUANT": draw(st.booleans())}
    else:
        section["GROUP_SIZE"] = draw(st.integers(2, 4096))
    groups = draw(st.lists(rules(side), max_size=3))
    section["SPECIFIC"] = groups[0] if len(groups) == 1 and draw(st.booleans()) else groups
    return section


@st.composite
def configs(draw: st.DrawFn) -> dict[str, Any]:
    """A whole config. The backend is virtual, which takes everything that is right in itself."""
    data: dict[str, Any] = {"W": draw(sides("W")), "A": draw(sides("A"))}
    if draw(st.booleans()):
        data["SCHEDULE"] = {"FUSE_BN": draw(st.booleans()), "DISABLE_UNNECESSARY_QUANT": draw(st.booleans())}
        data["SKIP_TRACE_MODULES"] = draw(st.lists(WORDS, max_size=3))
        data["DEVICE"] = draw(st.sampled_from(["cpu", "cuda", "cuda:1", "auto"]))
    if draw(st.booleans()):
        data["FIRST_LAST"] = draw(st.sampled_from(["float", 0, 2, 8, 16]))
    return data


def plain_config(**changes: Any) -> dict[str, Any]:
    """A small valid config with some sections replaced."""
    eight = {"QUANTIZER": {"BIT": 8}}
    return {
        "W": {"QSCHEME": "per-channel-symmetric", **eight},
        "A": {"QSCHEME": "per-tensor-affine", **eight},
        **changes,
    }


def weights(**changes: Any) -> dict[str, Any]:
    return {**plain_config()["W"], **changes}


def activations(**changes: Any) -> dict[str, Any]:
    return {**plain_config()["A"], **changes}
