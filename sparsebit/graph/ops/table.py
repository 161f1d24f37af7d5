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
    linalg,
    linear,
    loss,
    matmul,
    norm,
    pool,
    random,
    reduce,
    resample,
    rnn,
    shape,
    signal,
    size,
)
from sparsebit.graph.ops.spec import OpSpec

_FAMILIES = (
    *(conv, linear, matmul, attention, rnn, embedding, norm, activation, pool, resample, elementwise),
    *(compare, reduce, shape, cast, create, random, size, effects, signal, linalg, loss),
)
TABLE: tuple[OpSpec, ...] = tuple(spec for family in _FAMILIES for spec in family.OPS)
