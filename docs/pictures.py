"""Make the pictures of the README anew: the export report as SVG, and the page of ``make demo`` as PNG.

Run from the repository root: ``python docs/pictures.py`` (the PNG needs Chromium).
"""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

import sparsebit
from sparsebit.demo import held_out_data, net, training_data

ASSETS = Path(__file__).parent / "assets"
COLUMNS = 122


def export_report() -> str:
    """What ``print(sparsebit.export_onnx(...))`` shows in the first example of the README."""
    qmodel = sparsebit.quantize(net(), training_data()[:4], "int8_onnxruntime", progress=False)
    with tempfile.TemporaryDirectory() as folder:
        report = sparsebit.export_onnx(qmodel, Path(folder) / "digits.onnx", held_out_data()[0][0])
        return str(report).replace(f"{folder}/", "")


def draw(report: str) -> str:
    """The report as a terminal shows it, as SVG that loads no font."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    console.print(Text(report))
    style = (
        '<svg class="rich-terminal" viewBox="0 0 {terminal_width} {height}" xmlns="http://www.w3.org/2000/svg">'
        "<style>.{unique_id}-matrix {{font-family: ui-monospace, Menlo, Consolas, monospace; "
        "font-size: {char_height}px; line-height: {line_height}px}} {styles}</style>"
        '<defs><clipPath id="{unique_id}-clip-terminal"><rect x="0" y="0" width="{terminal_width}" '
        'height="{terminal_height}"/></clipPath>{lines}</defs>'
        '<rect fill="#292929" width="{terminal_width}" height="{height}" rx="8"/>'
        '<g transform="translate(9, 9)" clip-path="url(#{unique_id}-clip-terminal)">{backgrounds}'
        '<g class="{unique_id}-matrix">{matrix}</g></g></svg>\n'
    )
    return console.export_svg(code_format=style, font_aspect_ratio=0.61)


def photograph(page: Path, picture: Path) -> None:
    """The top of an HTML page."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("docs/pictures.py: Chromium is needed for report.png, and was not found")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1100,1180"]
    command = [browser, *options, f"--screenshot={picture}", page.resolve().as_uri()]
    subprocess.run(command, check=True, capture_output=True, timeout=120)


def main() -> None:
    """Write both pictures."""
    (ASSETS / "export_report.svg").write_text(draw(export_report()), encoding="utf-8")
    subprocess.run([sys.executable, "-m", "sparsebit", "demo"], check=True)
    photograph(Path("outputs/demo/report.html"), ASSETS / "report.png")


if __name__ == "__main__":
    main()
