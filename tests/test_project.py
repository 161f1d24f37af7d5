"""The files around the code agree with each other: commands, pins, documents, and what may be committed."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
DOCUMENTS = ("README.md", "README.zh-CN.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")


def project_files() -> list[Path]:
    """Files that are or would be in the repository; without git, all but hidden and generated ones."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    if (ROOT / ".git").exists():
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return [ROOT / name for name in done.stdout.split("\0") if name and (ROOT / name).is_file()]
    found = []
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [
            name
            for name in folders
            if (not name.startswith(".") or name == ".ci")
            and name not in {"__pycache__", "outputs", "build", "dist"}
            and not name.endswith(".egg-info")
        ]
        found += [Path(folder, name) for name in names if not name.endswith((".pyc", ".lock"))]
    return found


def pins() -> dict[str, Version]:
    lines = [line.split("#")[0].strip() for line in (ROOT / "constraints.txt").read_text().splitlines()]
    return {canonicalize_name(line.split("==")[0]): Version(line.split("==")[1]) for line in lines if line}


def declared() -> list[Requirement]:
    """Every requirement that pyproject.toml names, for running, for each extra and for building."""
    project = PROJECT["project"]
    extras = [line for lines in project["optional-dependencies"].values() for line in lines]
    return [
        Requirement(line)
        for line in [*project["dependencies"], *extras, *PROJECT["build-system"]["requires"]]
    ]


def installed_closure() -> dict[str, Version]:
    """Every distribution that the declared requirements bring, at the version installed here."""
    found: dict[str, Version] = {}
    waiting = [
        (requirement, "") for requirement in declared() if requirement.name != PROJECT["project"]["name"]
    ]
    seen = set()
    while waiting:
        requirement, extra = waiting.pop()
        environment = {**default_environment(), "extra": extra}
        if requirement.marker and not requirement.marker.evaluate(environment):
            continue
        name = canonicalize_name(requirement.name)
        try:
            found[name] = Version(metadata.version(name))
        except metadata.PackageNotFoundError:  # the environment is older than pyproject.toml
            pytest.skip(f"{name} is declared and not installed here; `make lint` installs it")
        for wanted in ("", *requirement.extras):
            if (name, wanted) not in seen:
                seen.add((name, wanted))
                waiting += [(Requirement(line), wanted) for line in metadata.requires(name) or []]
    return found


def test_every_constraint_is_one_exact_public_version() -> None:
    lines = [
        line
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    wrong = [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][0-9a-z.]*", line)]
    assert not wrong
    assert len(pins()) == len(lines), "a package is pinned twice"
    assert lines == sorted(lines, key=str.lower)


def test_every_declared_dependency_is_pinned_inside_its_range() -> None:
    for requirement in declared():
        if requirement.name != PROJECT["project"]["name"]:
            pin = pins().get(canonicalize_name(requirement.name))
            assert pin is not None, f"{requirement.name} is in pyproject.toml and not in constraints.txt"
            assert pin in requirement.specifier, f"{requirement} excludes its own pin {pin}"
    assert {"pip", "setuptools", "wheel"} <= pins().keys()


# The CUDA build of torch brings these; which ones and at what version is torch's own business.
BROUGHT_BY_CUDA = re.compile(r"nvidia-.*|cuda-.*|triton")


def test_every_installed_dependency_is_pinned() -> None:
    missing = [
        name for name in installed_closure() if name not in pins() and not BROUGHT_BY_CUDA.fullmatch(name)
    ]
    assert not missing, f"add to constraints.txt: {', '.join(sorted(missing))}"


def test_nothing_is_pinned_without_need() -> None:
    spare = pins().keys() - installed_closure().keys() - {"pip", "setuptools", "wheel"}
    # triton is for some machines only.
    spare = {name for name in spare if not BROUGHT_BY_CUDA.fullmatch(name)}
    assert not spare, (
        f"no dependency brings these; remove them from constraints.txt: {', '.join(sorted(spare))}"
    )


def test_torch_is_pinned_to_one_version_everywhere() -> None:
    assert str(pins()["torch"]) == "2.13.0"
    assert 'TORCH = "torch==2.13.0"' in (ROOT / "tools" / "install.py").read_text()


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z][a-z-]*):(?!=)", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.mark.parametrize("document", DOCUMENTS)
def test_commands_in_the_documents_exist(document: str) -> None:
    text = (ROOT / document).read_text()
    code = re.findall(r"```.*?```|`[^`\n]+`", text, re.DOTALL)
    named = {target for piece in code for target in re.findall(r"\bmake ([a-z][a-z-]*)\b", piece)}
    assert named <= make_targets()
    if document == "README.md":
        assert {"demo", "test"} <= named


def test_help_lists_every_command() -> None:
    done = subprocess.run(
        ["make", "--no-print-directory", "help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert set(re.findall(r"^ +make ([a-z-]+)\t", done.stdout, re.MULTILINE)) == make_targets()


@pytest.mark.parametrize("document", [*DOCUMENTS, "docs/decisions/README.md"])
def test_links_between_files_lead_somewhere(document: str) -> None:
    path = ROOT / document
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text())
    assert [link for link in links if not (path.parent / link).exists()] == []


def test_names_in_the_architecture_tree_exist() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    tree = re.search(r"```tree\n(.*?)```", text, re.DOTALL)
    assert tree, "ARCHITECTURE.md has no ```tree block"
    folders: list[str] = []
    missing, count = [], 0
    for line in tree.group(1).splitlines():
        depth, name = (len(line) - len(line.lstrip())) // 2, line.split()[0]
        folders[depth:] = [name]
        path = ROOT.joinpath(*folders)
        count += 1
        if not (path.is_dir() if name.endswith("/") else path.is_file()):
            missing.append(str(path.relative_to(ROOT)))
    assert count > 5
    assert not missing


def test_every_part_of_the_library_is_in_the_architecture_tree() -> None:
    tree = (ROOT / "ARCHITECTURE.md").read_text().partition("```tree\n")[2].partition("```")[0]
    parts = {path.name + "/" for path in (ROOT / "sparsebit").iterdir() if (path / "__init__.py").exists()}
    assert parts <= {line.split()[0] for line in tree.splitlines()}


def readme_example(document: str) -> tuple[str, str, str]:
    """The code of a README, what it says that prints, and the code that continues from there."""
    text = (ROOT / document).read_text(encoding="utf-8")
    (code, continued), (printed,) = (
        re.findall(rf"```{kind}\n(.*?)```", text, re.DOTALL) for kind in ("python", "text")
    )
    return code, printed, continued


def test_the_readme_examples_run_and_print_what_they_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, printed, continued = readme_example("README.md")
    assert len([line for line in code.splitlines() if line]) <= 12
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "readme"}
    exec(compile(code, "README.md", "exec"), names)
    assert capsys.readouterr().out == printed
    exec(compile(continued, "README.md", "exec"), names)
    assert {path.name for path in tmp_path.iterdir()} == {"digits.onnx", "float.onnx", "report.html"}


def test_both_readmes_have_the_same_examples() -> None:
    (code, printed, continued), (chinese, same, more) = map(readme_example, ("README.md", "README.zh-CN.md"))
    for english, translated in ((code, chinese), (continued, more)):
        assert re.sub(r" +#.*", "", english) == re.sub(r" +#.*", "", translated)
    assert printed == same


def test_both_readmes_have_the_same_sections_links_and_figures() -> None:
    number = re.compile(r"(?<![\w.])\d[\d,.]*\d|(?<![\w.])\d")
    found = []
    for document in ("README.md", "README.zh-CN.md"):
        lines = (ROOT / document).read_text(encoding="utf-8").splitlines()
        links = {link for line in lines for link in re.findall(r"\]\((.*?)\)", line)}
        rows = [sorted(number.findall(line)) for line in lines if line.startswith("|")]
        levels = [line.partition(" ")[0] for line in lines if line.startswith("#")]
        found.append((levels, links - {"README.md", "README.zh-CN.md"}, rows))
    assert found[0] == found[1]


# Written in pieces, so that this file does not contain what it looks for.
REGISTRY_ADDRESSES = tuple(
    "".join(pieces)
    for pieces in [
        ("pypi", ".org"), ("python", "hosted.org"), ("download.py", "torch.org"), ("anaconda", ".org"),
        ("index", "-url"), ("find", "-links"), ("PIP_", "INDEX"),
    ]
)  # fmt: skip


def test_no_file_names_a_package_registry() -> None:
    """Where packages come from is the machine's own setting, which a written address would override."""
    found = []
    for path in project_files():
        text = path.read_bytes().decode("utf-8", "ignore").lower()
        found += [
            f"{path.relative_to(ROOT)}: {address}"
            for address in REGISTRY_ADDRESSES
            if address.lower() in text
        ]
    assert not found


def test_no_text_installs_the_other_project_of_this_name() -> None:
    """The name on the public index is not ours: from the clone or from a wheel is how it is installed."""
    wrong = re.compile(r"pip3? install (-\S+ )*['\"]?sparsebit")
    texts = (path for path in project_files() if path.suffix in {".py", ".md", ".toml", ".yml", ".ipynb"})
    found = [str(path.relative_to(ROOT)) for path in texts if wrong.search(path.read_text(encoding="utf-8"))]
    assert found == []


def test_no_file_is_larger_than_a_megabyte() -> None:
    large = [path for path in project_files() if path.stat().st_size > 1_000_000]
    assert not large


def test_ci_runs_make_test() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert "make --no-print-directory test" in script.read_text()
    assert "SPARSEBIT_DATA" in script.read_text()


def test_the_package_is_typed_and_licensed() -> None:
    assert (ROOT / "sparsebit" / "py.typed").is_file()
    assert PROJECT["project"]["license"] == "Apache-2.0"
    assert "Apache License" in (ROOT / "LICENSE").read_text()
    assert Requirement(f"python{PROJECT['project']['requires-python']}").specifier.contains("3.11")
