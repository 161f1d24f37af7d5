"""Every built-in operator: the family tables, in reading order."""

from __future__ import annotations

from sparsebit.graph.ops import (
    activation,
    attention,
    cast,
    compare,
    conv,
    create,
    effects,
    elementwise,
    embedding,
    float_only,
    matmul,
    norm,
    pool,
    random,
    reduce,
    rnn,
    shape,
    size,
)
from sparsebit.graph.ops.spec import OpSpec

_FAMILIES = (
    *(conv, matmul, attention, rnn, embedding, norm, activation, pool, elementwise),
    *(compare, reduce, shape, cast, create, random, size, effects, float_only),
)
TABLE: tuple[OpSpec, ...] = tuple(spec for family in _FAMILIES for spec in family.OPS)
