"""The interface of a pruning criterion, its inputs, and its registration."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, TypeVar, overload

from torch import Tensor

from sparsebit.config.engine.plugins import PlugInClasses, name_to_register
from sparsebit.config.pruning.criteria import SPARSER_RULES, TYPES, SparserRule, SparsityType
from sparsebit.errors import RegistryError
from sparsebit.sparse.channels.group import Role
from sparsebit.sparse.evidence.statistic import STATISTICS, Statistic


@dataclass(frozen=True, eq=False, kw_only=True)
class Rows:
    """The input of a criterion for one tensor: one row for everything that is kept or removed together.

    A row is a channel with all its weights, a block, or a single weight ([R, 1]); the criterion does not need to know
    which. ``evidence`` has the statistics named in ``needs``: [R, E] with a number for each weight or input channel,
    [R] for each output channel, and the result itself for a statistic of the layer.
    """

    name: str
    weight: Tensor  # [R, E]
    evidence: Mapping[str, Tensor] = field(default_factory=dict)

    def need(self, name: str) -> Tensor:
        """One of the statistics that the criterion named in ``needs``."""
        if name not in self.evidence:
            raise RegistryError(
                f"the criterion reads {name!r} without naming it in needs",
                expected=", ".join(sorted(self.evidence)) or "no statistic",
            )
        return self.evidence[name]


class Sparser(ABC):
    """Scores rows: the lowest are removed first. Subclasses are frozen dataclasses of settings.

    Class attributes: needs: names of statistics it uses besides the weights; see ``register_statistic``.
        roles: which slices of a channel group it reads.
        comparable: whether scores of different layers are on one scale, so that a global choice may compare them.
        joint: whether one score of everything that a channel owns is better than the mean of one per layer.
    """

    needs: ClassVar[frozenset[str]] = frozenset()
    roles: ClassVar[tuple[Role, ...]] = ("output",)
    comparable: ClassVar[bool] = False
    joint: ClassVar[bool] = False

    @abstractmethod
    def score(self, rows: Rows) -> Tensor:
        """How much each row matters: [R]."""

    def statistic(self, name: str) -> Statistic:
        """The statistic for one of its ``needs``; a criterion with settings for it overrides this method."""
        return STATISTICS[name]

    def penalty(self, tensors: Sequence[Tensor]) -> Tensor | None:
        """A training term that makes removable values small; None if there is none."""
        return None


Kind = TypeVar("Kind", bound="type[Sparser]")
SPARSERS: PlugInClasses[type[Sparser], SparserRule] = PlugInClasses(SPARSER_RULES, Sparser)


@overload
def register_sparser(name: Kind) -> Kind: ...
@overload
def register_sparser(
    name: str | None = None,
    *,
    types: Sequence[SparsityType] | None = None,
    because: str = "",
    replace: bool = False,
) -> Callable[[Kind], Kind]: ...
def register_sparser(
    name: Kind | str | None = None,
    *,
    types: Sequence[SparsityType] | None = None,
    because: str = "",
    replace: bool = False,
) -> Kind | Callable[[Kind], Kind]:
    """Class decorator that makes a criterion available under ``name`` as SPARSER.STRATEGY in configs.

    On a class with an attribute ``TYPE`` it needs no name and no parentheses. SPARSER.OPTIONS may set the dataclass
    fields of the class. ``types`` are the kinds of sparsity it can score, by default all; ``because`` says why the
    others are excluded.
    """
    if isinstance(name, type):
        return register_sparser()(name)

    def add(kind: Kind) -> Kind:
        called = name_to_register(kind, name, "register_sparser")
        if types is not None and (isinstance(types, str) or not types or not set(types) <= set(TYPES)):
            raise RegistryError(
                f"{types!r:.80} are not kinds of sparsity", expected=f"some of {', '.join(TYPES)}"
            )
        rule = SparserRule(types=tuple(types or TYPES), because=because)
        if types is None and called in SPARSER_RULES and not replace:
            rule = SPARSER_RULES[called]
        rule = dataclasses.replace(rule, options=kind if dataclasses.is_dataclass(kind) else ())
        return SPARSERS.register(called, replace=replace, rule=rule)(kind)

    return add


def make_sparser(name: str, options: Mapping[str, object] | None = None) -> Sparser:
    """The criterion of that name with its settings.

    Example:
        >>> make_sparser("l1norm").needs
        frozenset()
    """
    made: Sparser = SPARSERS.make(name, **(options or {}))
    return made
