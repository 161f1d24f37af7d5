"""The registered targets, and the registration of new ones."""

from __future__ import annotations

from sparsebit.errors import RegistryError
from sparsebit.registry import Registry
from sparsebit.targets.onnxruntime import ONNXRUNTIME
from sparsebit.targets.openvino import OPENVINO
from sparsebit.targets.target import Target
from sparsebit.targets.tensorrt import TENSORRT
from sparsebit.targets.virtual import VIRTUAL

TARGETS: Registry[Target] = Registry("target")


def register_target(target: Target, *, replace: bool = False) -> Target:
    """Add a target under its own name, for config, command line, plan, export and check.

    Example:
        >>> from dataclasses import replace
        >>> mine = register_target(replace(TARGETS["onnxruntime"], name="my_accelerator"))
        >>> "my_accelerator" in TARGETS
        True
        >>> unregister_target("my_accelerator")
    """
    if not isinstance(target, Target):
        raise RegistryError(
            "a target is a sparsebit.targets.Target",
            got=repr(target)[:80],
            hint='build one from another: dataclasses.replace(TARGETS["onnxruntime"], name="mine")',
        )
    return TARGETS.register(target.name, replace=replace)(target)


def unregister_target(name: str) -> None:
    """Remove a target that was registered; one of the library's that it had replaced is used again."""
    own = next((target for target in _OWN if target.name == TARGETS[name].name), None)
    if TARGETS[name] is own:
        raise RegistryError(f"target {name!r} is part of the library and cannot be removed")
    TARGETS.remove(name)
    if own is not None:
        register_target(own)


_OWN = (VIRTUAL, ONNXRUNTIME, OPENVINO, TENSORRT)
for _target in _OWN:
    register_target(_target)
