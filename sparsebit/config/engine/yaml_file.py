"""YAML text to plain data and back. Stricter than YAML: a duplicate key is an error."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml

from sparsebit.errors import ConfigError

_MOST_NODES = 50_000  # with every alias written out; a large config has a few hundred
_MOST_CHARACTERS = 2_000_000
_EXPONENT = re.compile(r"^[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$")
_FLOAT, _TEXT = "tag:yaml.org,2002:float", "tag:yaml.org,2002:str"
_BASE_60 = re.compile(r"^[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?$")


class _Loader(yaml.SafeLoader):
    """Refuses duplicate keys and aliases that multiply; reads ``1e-3`` and ``2:4`` as YAML 1.2 does.

    To YAML 1.1 the first is a text, and the second is 2 minutes and 4 seconds: the number 124.
    """

    def get_single_node(self) -> yaml.Node | None:
        node: yaml.Node | None = super().get_single_node()
        if node is not None and _expanded_size(node, {}) > _MOST_NODES:
            raise yaml.constructor.ConstructorError(
                None, None, f"more than {_MOST_NODES} values once aliases are written out", node.start_mark
            )
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, KeyError, IndexError, AttributeError, TypeError, OverflowError):
            kind = node.tag.rpartition(":")[2]
            raise yaml.constructor.ConstructorError(
                None, None, f"cannot be read as {kind}: {str(node.value)[:40]!r}", node.start_mark
            ) from None

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: dict[object, int] = {}
        for key_node, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if key_node.tag == "tag:yaml.org,2002:merge" or not isinstance(key_node, yaml.ScalarNode):
                continue
            key, line = key_node.value, key_node.start_mark.line + 1
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} is already on line {seen[key]}", key_node.start_mark
                )
            seen[key] = line
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Quotes texts such as ``1e3``, which the loader above would read as numbers."""


for _each in (_Loader, _Dumper):
    _each.add_implicit_resolver(_FLOAT, _EXPONENT, list("-+.0123456789"))
for _first in "-+0123456789":
    _Loader.yaml_implicit_resolvers[_first].insert(0, (_TEXT, _BASE_60))  # the first match decides


def read_yaml(text: str, source: str) -> object:
    """The data of the text; an error with line and column if it is not YAML."""
    if len(text) > _MOST_CHARACTERS:
        raise ConfigError(f"{source}: more than {_MOST_CHARACTERS} characters; is it a config?")
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


def write_yaml(data: Mapping[str, Any]) -> str:
    """The text of a file that ``read_yaml`` reads as this data."""
    text: str = yaml.dump(data, Dumper=_Dumper, sort_keys=False, default_flow_style=None, width=110)
    return text


def _expanded_size(node: yaml.Node, known: dict[int, int]) -> int:
    """The number of nodes after every alias is replaced by its value.

    A node that contains itself counts as one here; the config reader refuses it with a separate message.
    """
    if id(node) not in known:
        known[id(node)] = 1
        if isinstance(node, yaml.MappingNode):
            children = [child for pair in node.value for child in pair]
        else:
            children = node.value if isinstance(node, yaml.SequenceNode) else []
        known[id(node)] += sum(_expanded_size(child, known) for child in children)
    return known[id(node)]
