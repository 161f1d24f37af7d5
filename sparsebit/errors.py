"""The errors a user can see. Each says where it happened, what was expected, what it got, and what to do next."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sparsebit.display import printable


class SparsebitError(Exception):
    """Base class of all errors that this library raises.

    The parts are attributes, so that a report or the command line can format them differently.

    Example:
        >>> print(SparsebitError("cannot fold", where="net.py:12", hint="call eval() first"))
        cannot fold
          where: net.py:12
          next:  call eval() first
    """

    def __init__(
        self,
        message: str,
        *,
        where: str | None = None,
        expected: str | None = None,
        got: str | None = None,
        hint: str | None = None,
    ) -> None:
        self.message, self.where, self.expected, self.got, self.hint = message, where, expected, got, hint
        labelled = (
            ("where:    ", where),
            ("expected: ", expected),
            ("got:      ", got),
            ("next:     ", hint),
        )
        present = [(label.rstrip(), text) for label, text in labelled if text]
        width = max((len(label) for label, _ in present), default=0)
        text = "\n".join([message, *(f"  {label:<{width}} {text}" for label, text in present)])
        super().__init__(printable(text))  # names may come from a file


class CaptureError(SparsebitError):
    """A model could not be turned into a graph, or a captured graph was called in a way it does not support."""


class GraphError(SparsebitError):
    """A pass, a match or a run over a captured graph failed."""


class ConfigError(SparsebitError, ValueError):
    """A mistake in a config, with the path to it."""


class RegistryError(SparsebitError, LookupError):
    """A plug-in name that is unknown or already in use."""


class PlugInError(SparsebitError):
    """A plug-in raised an exception, or did something that no plug-in of its kind may do."""


class ExportError(SparsebitError):
    """A model could not be written, or the file does not compute what the model computes."""


class ArtifactError(SparsebitError):
    """A file or folder that cannot be written, or that is damaged."""


def damaged(where: object, what: str, **parts: str | None) -> ArtifactError:
    """The error for a damaged file or folder."""
    return ArtifactError(f"{where} is damaged: {what}", hint="save the model again", **parts)


@contextmanager
def advised(hint: str) -> Iterator[None]:
    """For reading files that are not saved models: errors inside the block get this hint."""
    try:
        yield
    except ArtifactError as error:
        parts = {"where": error.where, "expected": error.expected, "got": error.got}
        raise ArtifactError(error.message, hint=hint, **parts) from None


@contextmanager
def located(where: str) -> Iterator[None]:
    """Errors inside the block that do not say where they happened get this place.

    Example:
        >>> with located("layer 3"):
        ...     raise SparsebitError("no inverse")
        Traceback (most recent call last):
            ...
        sparsebit.errors.SparsebitError: no inverse
          where: layer 3
    """
    try:
        yield
    except SparsebitError as error:
        if type(error) not in (SparsebitError, PlugInError) or error.where is not None:
            raise
        parts = {"expected": error.expected, "got": error.got, "hint": error.hint}
        raise type(error)(error.message, where=where, **parts) from None


def is_plug_in(one: object) -> bool:
    """Whether a class, or an object of one, is the user's.

    Example:
        >>> is_plug_in(SparsebitError), is_plug_in(Exception())
        (False, True)
    """
    return not _module(one).startswith("sparsebit.")


def _module(one: object) -> str:
    return (one if isinstance(one, type) else type(one)).__module__


@contextmanager
def running_plug_in(doing: str, *plug_ins: object) -> Iterator[None]:
    """Exceptions of a user's plug-in inside the block become an error of ours, with its line.

    Otherwise a ``TypeError`` of an observer would be reported as one of the model that is running. ``plug_ins`` are
    classes or their objects; exceptions of the library's own are unchanged.

    Example:
        >>> class Mine:
        ...     __module__ = "mine"
        >>> with running_plug_in("the observer 'mine' cannot measure 'conv1'", Mine()):
        ...     [][3]
        Traceback (most recent call last):
            ...
        sparsebit.errors.PlugInError: the observer 'mine' cannot measure 'conv1': IndexError: list index out of range
          where: line 2 of <doctest sparsebit.errors.running_plug_in[1]>
          next:  correct the plug-in
    """
    try:
        yield
    except (SparsebitError, MemoryError):
        raise
    except Exception as error:
        if not any(map(is_plug_in, plug_ins)) or _is_out_of_memory(error):
            raise
        frames = list(traceback.walk_tb(error.__traceback__))
        packages = {_module(one).partition(".")[0] for one in plug_ins if is_plug_in(one)}
        own = [one for one in frames if str(one[0].f_globals.get("__name__")).partition(".")[0] in packages]
        frame, line = (own or frames)[-1]  # there is none of its own if it cannot be called in this way
        raise PlugInError(
            f"{doing}: {type(error).__name__}: {str(error).partition(chr(10))[0][:300]}",
            where=f"line {line} of {frame.f_code.co_filename}",
            hint="correct the plug-in",
        ) from error


def _is_out_of_memory(error: Exception) -> bool:
    return type(error).__name__ == "OutOfMemoryError"  # torch's, which this module does not import


class SpecializationWarning(UserWarning):
    """Capture fixed a value that depends on the example inputs; the message says which value, and where."""


def with_article(word: str) -> str:
    """The word with "a" or "an" before it.

    Example:
        >>> with_article("int"), with_article("list")
        ('an int', 'a list')
    """
    return f"{'an' if word[:1].lower() in 'aeiou' else 'a'} {word}"


def missing_package(
    package: str, what: str, *, extra: str, error: ImportError | None = None
) -> SparsebitError:
    """The error for an optional package that is not installed, or cannot be imported.

    Example:
        >>> print(missing_package("jinja2", "a report", extra="report"))
        a report needs the package 'jinja2', which is not installed
          next: in Sparsebit's source folder: pip install -e ".[report]"
    """
    missing = error is None or isinstance(error, ModuleNotFoundError)
    why = "is not installed" if missing else f"cannot be imported: {error}"
    return SparsebitError(
        f"{what} needs the package {package!r}, which {why}",
        hint=f'in Sparsebit\'s source folder: pip install -e ".[{extra}]"',
    )


def refuse_pickle(model: Any) -> Any:
    """``__reduce__`` of a model with ``save`` and ``load``: a pickle would run code when it is loaded."""
    kind = type(model).__name__
    name = f"{kind[0].lower()}model"
    raise SparsebitError(
        f"a {kind} cannot be pickled (torch.save)",
        hint=f"{name}.save(folder) and {kind}.load(folder, model), or torch.save({name}.state_dict(), file)",
    )
