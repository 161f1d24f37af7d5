"""At least one call of every operator: the test matrix of the table."""

from __future__ import annotations

from tests.graph.ops.samples import contract, movement, other, pointwise
from tests.graph.ops.sampling import Sample

SAMPLES: dict[str, tuple[Sample, ...]] = {
    **contract.SAMPLES,
    **pointwise.SAMPLES,
    **movement.SAMPLES,
    **other.SAMPLES,
}
