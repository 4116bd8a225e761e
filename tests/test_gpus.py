"""The catalogue and how a GPU is found in it."""

import pytest

from trainfit.errors import UnknownGpu
from trainfit.gpus.catalogue import GPUS, find_gpu

NAMES = [
    "v100-16gb",
    "v100-32gb",
    "t4",
    "a10g",
    "l4",
    "l40s",
    "rtx3090",
    "rtx4090",
    "rtx5090",
    "a100-40gb",
    "a100-80gb",
    "h100-80gb",
    "h100-pcie",
    "h200",
    "b200",
    "gb200",
    "mi300x",
]


def test_the_catalogue_has_the_promised_gpus_in_order() -> None:
    assert [gpu.name for gpu in GPUS] == NAMES


def test_the_row_of_the_h200_is_read_into_the_right_fields() -> None:
    gpu = find_gpu("h200")
    assert gpu.vendor == "nvidia"
    assert gpu.compute_capability == (9, 0)
    assert gpu.num_sms == 132
    assert gpu.memory_bytes == 143_156 * 2**20
    assert gpu.context_bytes == 600 * 2**20
    assert (gpu.bf16_tflops, gpu.fp16_tflops, gpu.tf32_tflops) == (989.0, 989.0, 494.0)
    assert (gpu.fp32_tflops, gpu.fp8_tflops) == (67.0, 1979.0)
    assert (gpu.dram_gb_per_s, gpu.nvlink_gb_per_s, gpu.pcie_gb_per_s) == (4800.0, 900.0, 64.0)
    assert gpu.l2_bytes == 50 * 2**20
    assert gpu.source == "M"


def test_what_a_gpu_lacks_is_none() -> None:
    v100, t4 = find_gpu("v100-16gb"), find_gpu("t4")
    assert (v100.bf16_tflops, v100.tf32_tflops, v100.fp8_tflops) == (None, None, None)
    assert t4.nvlink_gb_per_s is None


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_every_row_is_plausible(gpu) -> None:
    assert 14 * 2**30 < gpu.memory_bytes < 200 * 2**30
    assert gpu.context_bytes < 2**30
    # Half precision halves the bits and at least doubles the rate; fp8 doubles it again.
    assert gpu.fp16_tflops >= 1.9 * gpu.fp32_tflops
    assert gpu.tf32_tflops is None or 1.9 <= gpu.fp16_tflops / gpu.tf32_tflops <= 2.1
    assert gpu.fp8_tflops is None or 1.9 <= gpu.fp8_tflops / gpu.fp16_tflops <= 2.1
    assert (gpu.vendor == "amd") == (gpu.name == "mi300x")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("H200", "h200"),
        (" h200 ", "h200"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA H100 80GB HBM3", "h100-80gb"),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
        ("Tesla T4", "t4"),
        ("AMD Instinct MI300X", "mi300x"),
    ],
)
def test_a_gpu_is_found_by_either_name_in_any_case(name: str, expected: str) -> None:
    assert find_gpu(name).name == expected


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [("h100", "did you mean h100-80gb or h100-pcie?"), ("a100_80gb", "a100-80gb"), ("rtx4900", "rtx4090")],
)
def test_an_unknown_gpu_brings_the_nearest_names(name: str, suggestion: str) -> None:
    with pytest.raises(UnknownGpu, match=f"no GPU is called '{name}'") as caught:
        find_gpu(name)
    assert suggestion in caught.value.hint
    assert caught.value.exit_code == 2


def test_a_name_near_nothing_brings_no_guess() -> None:
    with pytest.raises(UnknownGpu) as caught:
        find_gpu("quadro")
    assert caught.value.hint == "run 'trainfit gpus' for the list"
