"""The config tree of the old toolkit: nested, changed in place, frozen and defrosted; accepted wherever a dict is."""

from __future__ import annotations

import copy
import json
import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sparsebit.config import QConfig, SConfig, load_qconfig, load_sconfig
from sparsebit.config.engine.yaml_file import read_yaml, write_yaml
from sparsebit.errors import ConfigError


class CfgNode(dict[str, Any]):
    """A dict whose keys are also attributes, and which can be frozen.

    Nothing is checked here: ``QuantModel`` and ``SparseModel`` check the complete config and report every problem.

    Example:
        >>> cfg = QUANTIZATION.clone()
        >>> cfg.merge_from_list(["W.QSCHEME", "per-channel-symmetric", "W.QUANTIZER.BIT", 4])
        >>> cfg.W.QUANTIZER.BIT
        4
        >>> cfg.freeze()
        >>> cfg.W.QUANTIZER.BIT = 8
        Traceback (most recent call last):
        ...
        sparsebit.errors.ConfigError: this config is frozen
          where: BIT
          next:  call defrost() on it first
    """

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self.__dict__["frozen"] = False
        for key, value in (values or {}).items():
            self[key] = value

    def __setitem__(self, key: str, value: Any) -> None:
        if self.__dict__.get("frozen"):
            raise ConfigError("this config is frozen", where=key, hint="call defrost() on it first")
        super().__setitem__(
            key, CfgNode(value) if isinstance(value, Mapping) and not isinstance(value, CfgNode) else value
        )

    def __getattr__(self, key: str) -> Any:
        if key in self:
            return self[key]
        raise AttributeError(f"this config has no key {key!r}; it has: {', '.join(self)}")

    __setattr__ = __setitem__

    def freeze(self) -> None:
        """Refuse further changes."""
        self._set_frozen(True)

    def defrost(self) -> None:
        """Allow changes again."""
        self._set_frozen(False)

    def is_frozen(self) -> bool:
        """Whether changes are refused."""
        return bool(self.__dict__["frozen"])

    def _set_frozen(self, frozen: bool) -> None:
        self.__dict__["frozen"] = frozen
        for value in self.values():
            if isinstance(value, CfgNode):
                value._set_frozen(frozen)

    def clone(self) -> CfgNode:
        """A copy that can be changed without changing this one; frozen if this one is."""
        return copy.deepcopy(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> CfgNode:
        twin = CfgNode({key: copy.deepcopy(value, memo) for key, value in self.items()})
        twin.__dict__["frozen"] = self.is_frozen()
        return twin

    def merge_from_list(self, pairs: Sequence[Any]) -> None:
        """Set ``["W.QUANTIZER.BIT", 4, ...]``: keys and values in turn."""
        if len(pairs) % 2:
            raise ConfigError(
                "keys and values do not come in pairs", expected="an even number", got=str(len(pairs))
            )
        for path, value in zip(pairs[::2], pairs[1::2], strict=True):
            self.set_path(path, value)

    def merge_from_other_cfg(self, other: Mapping[str, Any]) -> None:
        """Set everything that another config sets."""
        for key, value in other.items():
            if isinstance(value, Mapping) and isinstance(self.get(key), CfgNode):
                self[key].merge_from_other_cfg(value)
            else:
                self[key] = value

    def merge_from_file(self, path: str | os.PathLike[str]) -> None:
        """Set everything that a YAML file sets."""
        found = read_yaml(Path(path).read_text(encoding="utf-8"), os.fspath(path)) or {}
        if not isinstance(found, Mapping):
            raise ConfigError("the file is not a config", where=os.fspath(path), expected="keys with values")
        self.merge_from_other_cfg(found)

    def set_path(self, path: str, value: Any) -> None:
        """Set the value of a dotted path."""
        *sections, last = path.split(".")
        node = self
        for section in sections:
            if not isinstance(node.get(section), CfgNode):
                raise ConfigError("unknown section", where=path, got=section, expected=", ".join(node))
            node = node[section]
        node[last] = value

    def dump(self) -> str:
        """As YAML."""
        return write_yaml(_plain(self))


def _plain(value: Any) -> Any:
    return {key: _plain(item) for key, item in value.items()} if isinstance(value, CfgNode) else value


def _side(**more: Any) -> dict[str, Any]:
    observer = {"TYPE": "MINMAX", "PERCENTILE": {"ALPHA": 0.001}, "ACIQ": {"DISTRIBUTION": "GAUS"}}
    quantizer = {"TYPE": "uniform", "DISABLE": False, "BIT": None}
    return {
        "QSCHEME": None,
        "QUANTIZER": quantizer | more.pop("QUANTIZER", {}),
        "OBSERVER": observer | more.pop("OBSERVER", {}),
        "SPECIFIC": [],
        **more,
    }


# As in the old `quant_config._C`; the user must set values that are None.
QUANTIZATION = CfgNode(
    {
        "DEVICE": None,
        "BACKEND": "virtual",
        "SKIP_TRACE_MODULES": [],
        "SCHEDULE": {"FUSE_BN": False, "BN_TUNING": False, "DISABLE_UNNECESSARY_QUANT": True},
        "W": _side(),
        "A": _side(
            QUANTIZER={"PACT": {"ALPHA_VALUE": 10}},
            OBSERVER={"MOVING_AVERAGE": {"EMA_RATIO": 0.9}, "LAYOUT": "NCHW"},
            QADD={"ENABLE_QUANT": False},
        ),
    }
)
# As in the old `sparse_config._C`.
PRUNING = CfgNode({"DEVICE": None, "SPARSER": {"TYPE": None, "STRATEGY": None, "RATIO": 0.0}})


def update_config(cfg: Any, key: str, value: Any) -> Any:
    """The config with one key changed; a ``CfgNode`` is changed in place, frozen or not.

    What ``parse_qconfig`` returns cannot change. For that a new config is returned, and a warning says so: write
    ``cfg = update_config(cfg, key, value)``.

    Example:
        >>> update_config(QUANTIZATION.clone(), "w.quantizer.bit", 4).W.QUANTIZER.BIT
        4
    """
    path = key.upper()
    if isinstance(cfg, QConfig | SConfig):
        warnings.warn(
            f"update_config returns a new config with {path} changed; the one you passed stays as it is",
            stacklevel=2,
        )
        setting = [f"{path}={json.dumps(value)}"]  # JSON is YAML, on one line
        return load_qconfig(cfg, setting) if isinstance(cfg, QConfig) else load_sconfig(cfg, setting)
    frozen = cfg.is_frozen()
    cfg.defrost()
    cfg.set_path(path, value)
    if frozen:
        cfg.freeze()
    return cfg
