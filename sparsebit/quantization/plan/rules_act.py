"""A rule of the config that cannot change anything is an error, with the reason."""

from __future__ import annotations

from collections.abc import Sequence

from torch.fx import Node

from sparsebit.config import Layer, Problem, QConfig, Side
from sparsebit.config.engine.problems import raise_problems
from sparsebit.quantization.plan.layers import SKIPPED, Layers, is_skipped
from sparsebit.quantization.plan.requests import Requests
from sparsebit.targets.schemes import SIDES

_OFF = (("QUANTIZER.BIT", 0), ("QUANTIZER.DISABLE", True))  # settings that leave a tensor in float


def require_rules_act(
    layers: Layers, config: QConfig, requests: Requests, owned: frozenset[str], known: Sequence[Layer]
) -> None:
    """Raise one ``ConfigError`` for all rules in SPECIFIC that only match layers they cannot change.

    A rule that leaves its layers in float is always satisfied. Layers in ``known`` were folded into others.
    """
    calls = [node for node in layers.nodes if node.op.startswith("call_")]
    there = {name for node in layers.nodes for name in layers.names(node)}
    folded = [layer for layer in known if not there.intersection(layer.names)]
    problems = []
    for side in SIDES:
        for rule in config.rules(side):
            matched = [node for node in calls if rule.matches(layers.names(node), layers.op(node))]
            reasons = [_why_idle(layers, requests, side, node, owned) for node in matched]
            switches_off = all(setting in _OFF for setting in rule.settings)
            if matched and all(reasons) and not switches_off:
                if any(rule.matches(layer.names, layer.op) for layer in folded):
                    continue
                problems.append(
                    Problem(
                        path=f"{side}.SPECIFIC[{rule.pattern!r}]",
                        message="changes nothing",
                        got=f"{matched[0].name}: {reasons[0]}",
                        hint="remove the rule, or name a layer that is quantized",
                    )
                )
    raise_problems(config.source, problems)


def _why_idle(
    layers: Layers, requests: Requests, side: Side, node: Node, owned: frozenset[str]
) -> str | None:
    if node.name in owned:
        return None
    if is_skipped(node, requests.config):
        return SKIPPED
    if node not in layers.calls:
        return "an unknown operator stays in float"
    if side == "A":
        return requests.beyond_config.get(node)
    rule = layers.target.rule(layers.op(node))
    if rule is not None and rule.weight:
        return None
    return f"{layers.op(node)} has no integer weights on {layers.target.name}"
