"""What every config is: read and checked once when it is made, unchangeable, written back, moved to a device."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from sparsebit.config.engine.problems import Problem, raise_problems
from sparsebit.config.engine.section import Findings, Section, build_fields, key, read_keys, write_section
from sparsebit.config.engine.source import Kind, apply_overrides, check_top, read_file
from sparsebit.config.engine.values import DEVICE
from sparsebit.config.engine.yaml_file import read_yaml, write_yaml
from sparsebit.errors import ConfigError

C = TypeVar("C", bound="Config")
Source = str | os.PathLike[str] | Mapping[str, Any]


class Config(Section, init=False):
    """A valid config. Subclasses, with ``init=False``, add their keys, ``KIND`` and ``conflicts``.

    It cannot be changed; ``load_config(type, config, ["KEY=VALUE"])`` makes another one.
    """

    KIND: ClassVar[Kind]
    DEVICE: str = key(DEVICE, "Where to work; auto takes a GPU when there is one.", default="auto")

    def __init__(self, **data: Any) -> None:
        self._fill(data, self.KIND.name, {})

    def _fill(self, data: Mapping[str, Any], source: str, origins: Mapping[str, str]) -> None:
        """Read all keys and check what goes together; raise one ``ConfigError`` with everything that is wrong.

        ``origins`` says which keys came from somewhere else than ``source``: key path to a description of it.
        """
        found = Findings()
        for name, value in build_fields(type(self), read_keys(type(self), data, "", found)).items():
            object.__setattr__(self, name, value)
        found.problems += [problem for problem in self.conflicts() if not found.depends(problem)]
        raise_problems(source, found.placed(origins))
        object.__setattr__(self, "_source", source)

    @classmethod
    def read(cls: type[C], data: Mapping[str, Any], source: str, origins: Mapping[str, str]) -> C:
        """The config that plain data describes; ``source`` is what messages call it."""
        made = cls.__new__(cls)
        made._fill(data, source, origins)
        return made

    def conflicts(self) -> Iterable[Problem]:
        """Everything wrong beyond single values: settings that cannot be used together."""
        return ()

    @property
    def source(self) -> str:
        """Where it was read from, for messages; plays no part in equality."""
        found: str = self.__dict__["_source"]
        return found

    def settle_device(self: C, count_gpus: Callable[[], int]) -> C:
        """The same config on a device this machine has: ``auto`` is the first GPU if there is one, else the CPU."""
        device, index = self.DEVICE, self.DEVICE.partition(":")[2]
        if device == "auto":
            device = "cuda" if count_gpus() else "cpu"
        elif device.startswith("cuda") and int(index or 0) >= (gpus := count_gpus()):
            has = f"{gpus} GPU{'s' if gpus > 1 else ''}" if gpus else "no GPU that torch can use"
            problem = Problem(
                path="DEVICE",
                expected="auto, cpu or a GPU of this machine",
                got=repr(device),
                hint=f"it has {has}",
            )
            raise_problems(self.source, [problem])
        moved = copy.copy(self)
        object.__setattr__(moved, "DEVICE", device)
        return moved

    def to_dict(self) -> dict[str, Any]:
        """Plain dicts, lists and scalars that load as an equal config."""
        return write_section(self)

    def to_yaml(self) -> str:
        """The text of a file that loads as an equal config."""
        return write_yaml(self.to_dict())


def load_config(kind: type[C], source: Source | C, overrides: Sequence[str] = ()) -> C:
    """Read a config of this kind from a file, a preset's name, a mapping or another config, and check all of it."""
    if isinstance(source, kind) and not overrides:
        return source
    data, label = _read(kind, source)
    origins = apply_overrides(data, overrides, kind.KIND)
    return kind.read(data, label, origins)


def _read(kind: type[Config], source: object) -> tuple[dict[str, Any], str]:
    """Plain data, and what to call it in messages."""
    about = kind.KIND
    if isinstance(source, kind):
        return source.to_dict(), source.source
    if isinstance(source, Mapping):
        return check_top(source, about.name, about), about.name
    if isinstance(source, str) and source in about.presets():
        return check_top(read_yaml(about.preset_text(source), source), source, about), source
    if isinstance(source, str | os.PathLike):
        return read_file(source, about), os.fsdecode(source)
    preset = "the name of a preset, " if about.presets() else ""
    raise ConfigError(
        f"{about.name}: expected a path, {preset}a mapping or a config, got {type(source).__name__}"
    )
