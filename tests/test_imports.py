"""The import rule: which part of the library may know about which, read from the source of every file."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "sparsebit"

# From the ground up. A part may import its own layer and those before it.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("errors", "registry", "progress", "storage", "display"),
    ("targets",),
    ("config",),
    ("kernels",),  # on plain tensors, so that numerics can hand them its work
    ("numerics",),
    ("graph", "batches", "processes"),
    ("runtime",),
    ("quantization", "sparse"),
    ("llm", "export", "analysis"),
    ("recipes",),
    ("report",),
    ("integrations", "compat"),
    ("cli",),
    ("__init__", "__main__", "demo"),  # the roof: what a user starts from
)
LAYER_OF = {part: index for index, layer in enumerate(LAYERS) for part in layer}
STRANGERS = {frozenset({"quantization", "sparse"})}  # same layer, never each other
ROOF = LAYERS[-1]
# Verbs that a user looks for on an object of a lower layer: the file, and what it imports when the verb is called.
DOORS = {
    ("sparsebit/display.py", "sparsebit.integrations.notebook.to_html"),
    ("sparsebit/quantization/quant_model.py", "sparsebit.export.export_onnx"),
    ("sparsebit/quantization/quant_model.py", "sparsebit.export.OnnxExport"),
    ("sparsebit/sparse/sparse_model.py", "sparsebit.export.export_onnx"),
    ("sparsebit/sparse/choose/from_config.py", "sparsebit.analysis.latency.RuntimeClock"),
}
IMPORTERS_OF_CLI = {"cli", "__main__"}
WITHOUT_TORCH = {"errors", "registry", "targets", "config"}


class Import(NamedTuple):
    """One imported module, as far as a file names it."""

    line: int
    module: str


def imports_of(path: Path, root: Path) -> Iterator[Import]:
    """Everything a file imports: also in functions, under TYPE_CHECKING, relative, or by a literal name."""
    package = path.relative_to(root).parent.parts
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            yield from (Import(node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from (Import(node.lineno, f"{base}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and node.args:
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            first = node.args[0]
            if name in {"import_module", "__import__"} and isinstance(first, ast.Constant):
                yield Import(node.lineno, str(first.value))


def part_of_file(path: Path, root: Path) -> str:
    """``sparsebit/graph/run.py`` is ``graph``, ``sparsebit/errors.py`` is ``errors``."""
    inside = path.relative_to(root / PACKAGE).parts
    return inside[0].removesuffix(".py")


def part_of_module(module: str, parts: Mapping[str, int]) -> str | None:
    """The part an imported module belongs to; None when it is not ours."""
    names = module.split(".")
    if names[0] != PACKAGE:
        return None
    # `from sparsebit import capture` is a name of the package itself, which is part of the roof.
    return names[1] if len(names) > 1 and names[1] in parts else "__init__"


def reason_against(importer: str, imported: str) -> str | None:
    """Why one part may not import another, or None."""
    if importer == imported:
        return None
    if imported == "cli" and importer not in IMPORTERS_OF_CLI:
        return "nothing imports cli"
    if frozenset({importer, imported}) in STRANGERS:
        return "these two never import each other"
    if imported in ROOF and importer not in ROOF:
        return "the package itself sits above its parts; import from the part that defines the name"
    if LAYER_OF[imported] > LAYER_OF[importer]:
        return f"{imported} is built on top of {importer}, not under it"
    return None


def violations(root: Path) -> list[str]:
    """Every broken import under ``root/sparsebit``, as ``file:line: why``."""
    found = []
    files = sorted((root / PACKAGE).rglob("*.py"))
    parts = LAYER_OF | {part_of_file(path, root): -1 for path in files}
    for path in files:
        importer, place = part_of_file(path, root), path.relative_to(root).as_posix()
        if importer not in LAYER_OF:
            found.append(f"{place}:1: {importer} has no layer; give it one in tests/test_imports.py")
            continue
        for line, module in imports_of(path, root):
            imported = part_of_module(module, parts)
            if importer in WITHOUT_TORCH and module.split(".")[0] == "torch":
                found.append(f"{place}:{line}: {importer} imports torch, and must be usable without it")
            elif imported is None or imported not in LAYER_OF or (place, module) in DOORS:
                continue
            elif reason := reason_against(importer, imported):
                found.append(f"{place}:{line}: {importer} imports {module}: {reason}")
    return found


def test_the_library_obeys_the_import_rule() -> None:
    assert (ROOT / PACKAGE / "errors.py").is_file()
    assert not violations(ROOT), "\n".join(["the import rule is broken:", *violations(ROOT)])


def test_every_door_is_used_and_opened_only_when_called() -> None:
    for place, module in DOORS:
        tree = ast.parse((ROOT / place).read_text(encoding="utf-8"))
        top = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
        assert not any(f"{node.module}.{alias.name}" == module for node in top for alias in node.names), (
            module
        )
        assert any(found.module == module for found in imports_of(ROOT / place, ROOT)), (
            f"{place} has no {module}"
        )


def test_no_function_hides_a_module() -> None:
    hidden = set()
    for path in (ROOT / PACKAGE).rglob("__init__.py"):
        siblings = {
            p.stem for p in path.parent.iterdir() if p.suffix == ".py" or (p / "__init__.py").is_file()
        }
        package = ".".join(path.relative_to(ROOT).parent.parts)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module != package:
                names = {alias.asname or alias.name for alias in node.names}
                hidden |= {f"{package}.{name}" for name in names & siblings}
    assert not hidden, f"rename the files, or do not re-export the functions: {sorted(hidden)}"


def write_tree(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        path = root / PACKAGE / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


ALLOWED = {
    "registry.py": "from sparsebit.errors import RegistryError",
    "graph/run.py": "from sparsebit.graph.ops import OPS\nfrom . import show\nfrom ..errors import Error",
    "graph/show.py": "import torch\nfrom sparsebit.config import spec",
    "sparse/shrink.py": "from sparsebit.targets import virtual\nfrom sparsebit import graph",
    "report/page.py": "import sparsebit.analysis.node_cost, sparsebit.llm",
    "cli/prune.py": "from sparsebit.report import page\nfrom sparsebit.quantization import plan",
    "demo.py": "import sparsebit\nfrom sparsebit import capture",
    "__main__.py": "from sparsebit.cli import main",
    "__init__.py": "from sparsebit.graph import capture",
}


def test_the_checker_lets_the_rule_through(tmp_path: Path) -> None:
    assert violations(write_tree(tmp_path, ALLOWED)) == []


@pytest.mark.parametrize(
    ("file", "text", "complaint"),
    [
        (
            "graph/run.py",
            "from sparsebit.quantization import plan",
            "run.py:1: graph imports sparsebit.quantization.plan",
        ),
        ("config/spec.py", "import sparsebit.graph", "graph is built on top of config"),
        ("errors.py", "from .graph import Node", "errors imports sparsebit.graph.Node"),
        ("sparse/shrink.py", "from ..quantization.plan import QuantPlan", "never import each other"),
        ("quantization/plan.py", "from sparsebit import sparse", "never import each other"),
        ("targets/virtual.py", "from ..graph import ops", "graph is built on top of targets"),
        ("export/onnx_qdq.py", "from sparsebit.report import page", "report is built on top of export"),
        ("report/page.py", "from sparsebit.cli import main", "nothing imports cli"),
        ("demo.py", "import sparsebit.cli.main", "nothing imports cli"),
        ("__init__.py", "from .cli import main", "nothing imports cli"),
        ("graph/run.py", "from sparsebit import capture", "import from the part that defines the name"),
        ("graph/run.py", "import sparsebit", "import from the part that defines the name"),
        ("graph/run.py", "from sparsebit.demo import main", "import from the part that defines the name"),
        (
            "graph/run.py",
            "def f():\n    from sparsebit.sparse import masks",
            "run.py:2: graph imports sparsebit.sparse.masks",
        ),
        (
            "graph/run.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from sparsebit.llm import gptq",
            "run.py:3: graph imports sparsebit.llm.gptq",
        ),
        (
            "graph/run.py",
            "import importlib\nimportlib.import_module('sparsebit.export')",
            "graph imports sparsebit.export",
        ),
        ("config/spec.py", "def f():\n    import torch.nn", "config imports torch"),
        ("config/spec.py", "from torch import Tensor", "config imports torch"),
        ("leftovers/things.py", "", "leftovers has no layer"),
        ("utils.py", "", "utils has no layer"),
    ],
)
def test_the_checker_catches(tmp_path: Path, file: str, text: str, complaint: str) -> None:
    found = violations(write_tree(tmp_path, {**ALLOWED, file: text}))
    assert len(found) == 1, found
    assert complaint in found[0]


OPTIONAL = (
    "transformers",
    "onnx",
    "onnxruntime",
    "onnxscript",
    "openvino",
    "pandas",
    "scipy",
    "sklearn",
    "jinja2",
)


def test_public_names_load_when_asked_for_and_are_those_listed() -> None:
    import sparsebit

    for name in sparsebit.__all__:
        assert getattr(sparsebit, name) is not None
    assert set(sparsebit.__all__) <= set(dir(sparsebit))
    with pytest.raises(AttributeError, match="has no attribute 'quantise'"):
        sparsebit.quantise  # noqa: B018
    done = subprocess.run(
        [sys.executable, "-c", "import sparsebit, sys; sys.exit('torch' in sys.modules)"],
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, "importing the package loads torch"


def test_importing_the_package_leaves_optional_packages_alone() -> None:
    """What torch itself pulls in is not ours to answer for, so only the difference counts."""
    program = (
        "import sys, torch; before = set(sys.modules); import sparsebit; "
        "[getattr(sparsebit, name) for name in sparsebit.__all__]; "
        f"print(*sorted({set(OPTIONAL)!r} & (set(sys.modules) - before)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []
