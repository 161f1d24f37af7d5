"""Operators as data: one ``OpSpec`` per operator, found from any node of any front-end."""

from sparsebit.graph.ops.binding import bind
from sparsebit.graph.ops.lookup import OPS, find_op, op_name, register_op, unregister_op
from sparsebit.graph.ops.op_coverage import Coverage, coverage
from sparsebit.graph.ops.spec import OpCall, OpSpec

__all__ = [
    "OPS",
    "Coverage",
    "OpCall",
    "OpSpec",
    "bind",
    "coverage",
    "find_op",
    "op_name",
    "register_op",
    "unregister_op",
]
