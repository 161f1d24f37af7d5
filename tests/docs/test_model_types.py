"""The counts of the sweep over all model types, where pages quote them, are those of its results."""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "robustness" / "results" / "model_types.json"


def test_pages_quote_the_results() -> None:
    told = json.loads(RESULTS.read_text(encoding="utf-8"))
    counts = told["counts"]
    ok = {stage: counts[stage]["ok"] for stage in counts if "ok" in counts[stage]}
    hidden, heads, blocks = (ok[f"prune {part}"] for part in ("hidden", "heads", "blocks"))
    assert not told["failing"] and told["environment"]["commit"] != "unknown"
    readme = (
        f"| {told['types'] + len(told['not built'])} model types of transformers that predict tokens, small and with "
        f"random weights | {told['types']} can be built; {ok['quantize']} are quantized, saved, loaded and "
        f"equal; {ok['export compressed-tensors']} compressed-tensors folders are loaded by transformers and equal; "
        f"hidden channels of {hidden}, heads of {heads} and blocks of {blocks} are pruned; all else is refused with "
        "a reason |"
    )
    assert readme in (ROOT / "README.md").read_text(encoding="utf-8")
    page = ROOT / "docs" / "decisions" / "061-heads-and-hidden-channels-by-graph.md"
    pruned = f"of {told['types']} model types, hidden channels of {hidden} and heads of {heads} are pruned"
    assert pruned in page.read_text(encoding="utf-8")
