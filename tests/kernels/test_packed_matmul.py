"""Products with packed weights: against the unpacked weight on the GPU, and the dispatch on any machine."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from benchmarks.gpu.packed_matmul import Case, compare, draw_cases, kernel_arguments
from sparsebit.kernels import packed_matmul
from sparsebit.kernels.packed_matmul import covers, multiply_packed


@pytest.mark.gpu
@pytest.mark.parametrize("case", draw_cases(40, seed=2), ids=lambda case: f"{case.code}-{case.batch}")
def test_products_equal_those_with_the_unpacked_weight(case: Case) -> None:
    assert compare(case, "cuda") in (None, "not covered")


@pytest.mark.gpu
@pytest.mark.parametrize("batch", [65, 100, 130, 300, 1100])
@pytest.mark.parametrize("code", ["int4", "uint3", "int8"])
def test_many_vectors_are_multiplied_in_parts_or_with_the_unpacked_weight(code: str, batch: int) -> None:
    assert compare(Case(257, 1024, batch, code, group_size=64), "cuda") is None


@pytest.mark.parametrize(
    ("channels", "bits", "group_size", "dtype", "covered"),
    [
        (256, 4, 128, torch.bfloat16, True),
        (256, 8, None, torch.float16, True),
        (32, 4, 128, torch.bfloat16, True),  # one group that is not full
        (256, 3, 128, torch.bfloat16, True),
        (48, 3, 16, torch.bfloat16, False),  # values run across words of two groups
        (256, 5, 128, torch.bfloat16, False),
        (256, 4, 128, torch.float32, False),
        (200, 4, 128, torch.bfloat16, False),  # the last group is shorter
        (256, 4, 4, torch.bfloat16, False),  # a word would have two scales
        (40, 4, None, torch.bfloat16, False),  # not a multiple of 32 channels
    ],
)
def test_what_is_covered(
    monkeypatch: pytest.MonkeyPatch,
    channels: int,
    bits: int,
    group_size: int | None,
    dtype: torch.dtype,
    covered: bool,
) -> None:
    monkeypatch.setattr(packed_matmul, "AVAILABLE", True)
    groups = 1 if group_size is None else -(-channels // group_size)
    with FakeTensorMode():
        x = torch.empty(2, 3, channels, device="cuda", dtype=dtype)
        packed = torch.empty(5, channels * bits // 8, device="cuda", dtype=torch.uint8)
        scale = torch.empty(groups, 5, device="cuda")
        assert covers(x, packed, scale, bits) == covered
        if covered:
            y = multiply_packed(x, packed, scale, torch.empty_like(scale), bits, 0)
            assert y.shape == (2, 3, 5) and y.dtype == dtype


def test_the_cpu_is_left_to_the_reference() -> None:
    x, packed, grid = Case(4, 128, 2).make("cpu")
    assert not covers(x, packed, grid.scale.reshape(1, -1), 4)


@pytest.mark.parametrize(
    ("vectors", "bits", "group_size", "way"),
    [
        (1, 4, 128, "_multiply_singly"),
        (2, 4, 128, "_multiply"),
        (3, 4, 32, "_multiply_singly"),
        (3, 3, 128, "_multiply_singly"),
        (4, 3, 128, "_multiply"),
        (1, 4, 16, "_multiply"),  # a thread would need two scales
        (128, 4, 128, "_multiply"),
        (129, 4, 128, "_multiply_unpacked"),
        (65, 8, 128, "_multiply_unpacked"),
    ],
)
def test_the_number_of_vectors_decides_how_they_are_multiplied(
    monkeypatch: pytest.MonkeyPatch, vectors: int, bits: int, group_size: int, way: str
) -> None:
    taken = []
    for name in ("_multiply_singly", "_multiply", "_multiply_unpacked"):

        def multiply(x: torch.Tensor, packed: torch.Tensor, *_: object, name: str = name) -> torch.Tensor:
            taken.append(name)
            return x.new_zeros(len(x), len(packed))

        monkeypatch.setattr(packed_matmul, name, multiply)
    x, packed, grid = Case(4, 256, vectors, f"int{bits}", group_size).make("cpu")
    multiply_packed(x, *kernel_arguments(packed, grid))
    assert taken == [way]


@pytest.mark.parametrize("fits", [2, 0])
def test_fewer_stages_are_used_where_shared_memory_is_too_small_and_then_the_unpacked_weight(
    monkeypatch: pytest.MonkeyPatch, fits: int
) -> None:
    pytest.importorskip("triton")
    from triton.runtime.errors import OutOfResources

    tried: list[int] = []

    def start(
        kernel: object, programs: int, tensors: object, floats: object, settings: tuple[int, ...], **_: object
    ) -> None:
        if "multiply" in str(kernel):
            tried.append(settings[-1])
            if settings[-1] > fits:
                raise OutOfResources(2**20, 2**16, "shared memory")

    def unpacked(x: torch.Tensor, packed: torch.Tensor, *_: object) -> torch.Tensor:
        tried.append(-1)
        return x.new_zeros(len(x), len(packed))

    monkeypatch.setattr(packed_matmul, "launch", start)
    monkeypatch.setattr(packed_matmul, "_multiply_unpacked", unpacked)
    monkeypatch.setattr(packed_matmul, "_stages", {})
    x, packed, grid = Case(16, 256, 16, "int4", 128).make("cpu")
    for _ in range(2):
        multiply_packed(x, *kernel_arguments(packed, grid))
    assert tried == ([4, 3, 2, 2] if fits else [4, 3, 2, 1, -1, -1])
