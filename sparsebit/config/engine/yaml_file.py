"""YAML text to plain data. Stricter than YAML: a key given twice is a mistake, not a second opinion."""

from __future__ import annotations

import re
from typing import Any

import yaml

from sparsebit.errors import ConfigError


class _Loader(yaml.SafeLoader):
    """Refuses duplicate keys, and reads ``1e-3`` as the number it is in every newer YAML."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: dict[object, int] = {}
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge" or not isinstance(key_node, yaml.ScalarNode):
                continue
            key, line = key_node.value, key_node.start_mark.line + 1
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} is already on line {seen[key]}", key_node.start_mark
                )
            seen[key] = line
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$"),
    list("-+.0123456789"),
)


def read_yaml(text: str, source: str) -> object:
    """What the text says; an error with its line and column when it is not YAML."""
    try:
        return yaml.load(text, _Loader)  # a SafeLoader: builds plain data and nothing else
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f": line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ConfigError(f"{source}{place}: {error.problem or error.context or 'not valid YAML'}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{source}: not valid YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise ConfigError(f"{source}: nested too deeply to be a config") from None
