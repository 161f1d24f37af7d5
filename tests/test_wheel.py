"""The wheel and the source archive hold everything, and what they install works away from the source."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

SMOKE = """
import sys, torch, sparsebit
from sparsebit.__main__ import main
assert sparsebit.__file__.startswith(sys.prefix), sparsebit.__file__
net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Conv2d(4, 2, 3)).eval()
x = torch.randn(4, 3, 8, 8)
qmodel = sparsebit.quantize(net, [x], "int8_onnxruntime", progress=False)
assert (qmodel(x) - net(x)).norm() < 0.1 * net(x).norm()
from sparsebit.config.quantization.presets import preset_names
assert "w4a8" in preset_names()
from importlib import resources
assert resources.files("sparsebit.report").joinpath("assets").is_dir()
assert resources.files("sparsebit.demo").joinpath("digits.safetensors").is_file()
sys.exit(main(["schema", "w4a8"]))
"""


def build(kind: str, source: Path, out: Path) -> Path:
    """Run the build backend as a build tool would, in a process of its own."""
    program = f"from setuptools import build_meta; build_meta.build_{kind}({str(out)!r})"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        cwd=source,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (made,) = out.iterdir()
    return made


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The source archive, made from a copy of the tree, and the wheel, made from what the archive holds."""
    folder = tmp_path_factory.mktemp("build")
    source = folder / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "sparsebit", source / "sparsebit", ignore=shutil.ignore_patterns("__pycache__"))
    archive = build("sdist", source, folder / "sdist")
    with tarfile.open(archive) as packed:
        packed.extractall(folder / "unpacked")  # our own archive; filters need a later 3.11
    (unpacked,) = (folder / "unpacked").iterdir()
    return archive, build("wheel", unpacked, folder / "wheel")


def test_the_wheel_holds_every_file_of_the_package(built: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(built[1]) as wheel:
        packed = {name for name in wheel.namelist() if name.startswith("sparsebit/")}
    source = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "sparsebit").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert packed == source


def test_it_works_in_an_environment_of_its_own(built: tuple[Path, Path], tmp_path: Path) -> None:
    """What it depends on is borrowed from here, so that no network is needed; the package itself is not."""
    if not shutil.which("pip", path=str(Path(sys.executable).parent)):
        pytest.skip("there is no pip to install the wheel with")
    venv.create(tmp_path / "env", with_pip=False)
    python = tmp_path / "env" / "bin" / "python"
    install = [
        "-m",
        "pip",
        "--python",
        str(python),
        "install",
        "-q",
        "--no-index",
        "--no-deps",
        str(built[1]),
    ]
    subprocess.run([sys.executable, *install], check=True, capture_output=True)
    own = next((tmp_path / "env" / "lib").glob("python3*/site-packages"))
    (own / "borrowed.pth").write_text(sysconfig.get_paths()["purelib"])
    done = subprocess.run(
        [str(python), "-I", "-c", SMOKE], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
