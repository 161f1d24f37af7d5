"""How much of the zoo the operator table knows."""

from __future__ import annotations

from collections import Counter

from sparsebit.graph.capture import capture
from sparsebit.graph.ops import coverage
from tests.graph.capture.zoo_checks import fresh, third_party_warnings_ignored
from tests.zoo import ZOO


def test_the_table_knows_the_zoo() -> None:
    nodes = known_nodes = macs = known_macs = 0
    unknown: Counter[str] = Counter()
    for entry in ZOO.values():
        if entry.refuses:
            continue
        with third_party_warnings_ignored():
            found = coverage(capture(fresh(entry), *entry.inputs(entry.batches[0]), frontend="record"))
        nodes, known_nodes = nodes + found.nodes, known_nodes + found.known
        macs, known_macs = macs + (found.macs or 0), known_macs + (found.known_macs or 0)
        unknown.update({op.name: op.count for op in found.unknown})
    assert known_macs >= 0.99 * macs and known_nodes >= 0.97 * nodes, unknown.most_common(20)
    assert nodes > 20_000 and macs > 10**8, "the zoo is not what it was"
