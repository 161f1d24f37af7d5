"""For code written for the 2022 Sparsebit: ``import sparsebit.compat`` once, and its import paths work.

Most of that code needs nothing from here: ``QuantModel``, ``parse_qconfig``, ``SparseModel``, ``QTracer`` and their
methods kept their names and places. This part adds the rest: the mutable config tree ``_C``, the classes of operators,
and the helpers around them. A name that cannot be kept raises ``OldNameError``, which says what replaces it.
"""

from sparsebit.compat.checkpoint import convert_checkpoint
from sparsebit.compat.config_tree import CfgNode, update_config
from sparsebit.compat.extra_info import add_extra_info_to_onnx
from sparsebit.compat.names import OldNameError
from sparsebit.compat.paths import add_old_paths

__all__ = ["CfgNode", "OldNameError", "add_extra_info_to_onnx", "convert_checkpoint", "update_config"]

add_old_paths()
