"""What runtimes can execute on integers: one table each, by the names that ``BACKEND`` takes."""

from sparsebit.registry import Registry
from sparsebit.targets.onnxruntime import ONNXRUNTIME
from sparsebit.targets.openvino import OPENVINO
from sparsebit.targets.target import OpRule, Target
from sparsebit.targets.tensorrt import TENSORRT
from sparsebit.targets.virtual import VIRTUAL

TARGETS: Registry[Target] = Registry("target")
for _target in (VIRTUAL, ONNXRUNTIME, OPENVINO, TENSORRT):
    TARGETS.register(_target.name)(_target)

__all__ = ["ONNXRUNTIME", "OPENVINO", "TARGETS", "TENSORRT", "VIRTUAL", "OpRule", "Target"]
