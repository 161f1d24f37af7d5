"""How a notebook shows this library's objects."""

from __future__ import annotations

from sparsebit.display import in_notebook
from tests.quantization.nets import quantized


def test_an_object_is_drawn_by_the_notebook_integration() -> None:
    qmodel = quantized()
    assert qmodel._repr_html_() == in_notebook(qmodel) and "<" in in_notebook(qmodel)
