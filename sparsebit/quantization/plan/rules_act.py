"""A rule of the config that cannot change anything is an error, with the reason."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch.fx import Node

from sparsebit.config import Layer, Problem, QConfig, Rule, Side
from sparsebit.config.engine.problems import raise_problems
from sparsebit.quantization.plan.layers import Layers
from sparsebit.quantization.plan.requests import Requests


def require_rules_act(
    layers: Layers, config: QConfig, requests: Requests, owned: frozenset[str], known: Sequence[Layer]
) -> None:
    """Raise one ``ConfigError`` for all rules in SPECIFIC that only match layers they cannot change.

    A rule that leaves its layers in float has what it asks for. Layers in ``known`` were folded into others.
    """
    raise_problems(config.source, list(_problems(layers, config, requests, owned, known)))


def _problems(
    layers: Layers, config: QConfig, requests: Requests, owned: frozenset[str], known: Sequence[Layer]
) -> Iterator[Problem]:
    calls = [node for node in layers.nodes if node.op.startswith("call_")]
    sides: tuple[Side, ...] = ("W", "A")
    for side in sides:
        for rule in config.rules(side):
            matched = [node for node in calls if rule.matches(layers.names(node), layers.op(node))]
            reasons = [_why_idle(layers, requests, side, node, owned) for node in matched]
            if (
                not matched
                or not all(reasons)
                or _only_switches_off(rule)
                or _matches_folded(rule, layers, known)
            ):
                continue
            yield Problem(
                path=f"{side}.SPECIFIC[{rule.pattern!r}]",
                message="changes nothing",
                got=f"{matched[0].name}: {reasons[0]}",
                hint="remove the rule, or name a layer that is quantized",
            )


def _why_idle(
    layers: Layers, requests: Requests, side: Side, node: Node, owned: frozenset[str]
) -> str | None:
    if node.name in owned:
        return None
    if node not in layers.calls:
        return "an unknown operator stays in float"
    if side == "A":
        return requests.beyond_config.get(node)
    rule = layers.target.rule(layers.op(node))
    if rule is not None and rule.weight:
        return None
    return f"{layers.op(node)} has no integer weights on {layers.target.name}"


def _only_switches_off(rule: Rule) -> bool:
    return all(
        (key, value) in (("QUANTIZER.BIT", 0), ("QUANTIZER.DISABLE", True)) for key, value in rule.settings
    )


def _matches_folded(rule: Rule, layers: Layers, known: Sequence[Layer]) -> bool:
    there = {name for node in layers.nodes for name in layers.names(node)}
    return any(rule.matches(layer.names, layer.op) for layer in known if not there.intersection(layer.names))
