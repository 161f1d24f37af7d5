"""What runtimes can execute on integers: one object each, under the name that ``BACKEND`` takes."""

from sparsebit.targets.registered import TARGETS, register_target, unregister_target
from sparsebit.targets.target import Accepts, OpRule, Row, Target

__all__ = ["TARGETS", "Accepts", "OpRule", "Row", "Target", "register_target", "unregister_target"]
