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

TABLE: tuple[OpSpec, ...] = (
    *conv.OPS,
    *linear.OPS,
    *matmul.OPS,
    *attention.OPS,
    *rnn.OPS,
    *embedding.OPS,
    *norm.OPS,
    *activation.OPS,
    *pool.OPS,
    *resample.OPS,
    *elementwise.OPS,
    *compare.OPS,
    *reduce.OPS,
    *shape.OPS,
    *cast.OPS,
    *create.OPS,
    *random.OPS,
    *size.OPS,
    *effects.OPS,
    *signal.OPS,
    *linalg.OPS,
    *loss.OPS,
)
