"""How labels pass through operators: one rule for a family, data movement run as it is."""

from sparsebit.sparse.channels.rules import (
    contract,
    conv,
    elementwise,
    embedding,
    index,
    move,
    norm,
    pool,
    reduce,
    rnn,
)
from sparsebit.sparse.channels.rules.base import RULES, Rule, Stop, rule

__all__ = ["RULES", "Rule", "Stop", "contract", "conv", "elementwise", "embedding", "index", "move", "norm"]
__all__ += ["pool", "reduce", "rnn", "rule"]
