"""How labels pass through operators: one rule per family of operators; data movement is run on the labels."""

from sparsebit.sparse.channels.rules import contract, conv, elementwise, index, move, norm, pool, reduce, rnn
from sparsebit.sparse.channels.rules.base import RULES, Rule, Stop, Visit

_FAMILIES = (contract, conv, elementwise, index, move, norm, pool, reduce, rnn)  # importing one registers it
__all__ = ["RULES", "Rule", "Stop", "Visit"]
