"""What runtimes can execute on integers: one object for each, under its name in ``BACKEND``."""

from sparsebit.targets.registered import TARGETS, register_target, unregister_target
from sparsebit.targets.target import Accepts, OpRule, Row, Target

__all__ = ["TARGETS", "Accepts", "OpRule", "Row", "Target", "register_target", "unregister_target"]
