"""The GPUs that trainfit knows, as data, and `find_gpu`, which finds one by name.

Throughputs are the datasheet's, dense (no sparsity), with fp32 accumulation; GB are decimal, MiB binary. Memory is what
torch reports as `total_memory` on Linux with ECC on, read from device properties that people printed; it varies by some
MiB with the driver. Sources of a row: T torch's device_info.py, L llm-analysis, N NeuSight's configurations,
S published system pages, M the vendor's datasheet.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trainfit.errors import UnknownGpu, did_you_mean

_MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU as its datasheet describes it; None where the GPU lacks the thing."""

    name: str
    torch_names: tuple[str, ...]
    """What `torch.cuda.get_device_name()` may call it, the usual name first."""
    vendor: Literal["nvidia", "amd"]
    compute_capability: tuple[int, int]
    num_sms: int
    """Streaming multiprocessors, or AMD's compute units."""
    memory_bytes: int
    context_bytes: int
    """Assumed size of the driver's context and the loaded kernels, which torch's counters do not see."""
    bf16_tflops: float | None
    fp16_tflops: float
    tf32_tflops: float | None
    fp32_tflops: float
    fp8_tflops: float | None
    dram_gb_per_s: float
    l2_bytes: int
    nvlink_gb_per_s: float | None
    """All links to other GPUs together, both directions (AMD: Infinity Fabric)."""
    pcie_gb_per_s: float
    """Link to the host, one direction (GB200: NVLink-C2C)."""
    source: str


# CUDA contexts grow with the kernels that are loaded; about 0.3 to 0.7 GiB, larger on newer architectures.
_CONTEXT_MIB_BY_MAJOR = {7: 400, 8: 500, 9: 600, 10: 700, 12: 700}

_TABLE = """
name       sm   SMs  memMiB  bf16   fp16   tf32   fp32   fp8   GB/s  L2MiB  nvlink  pcie  source
v100-16gb  7.0   80   16160  -      125    -      15.7   -      900    6    300      16   L,N
v100-32gb  7.0   80   32494  -      125    -      15.7   -      900    6    300      16   L,N
t4         7.5   40   14930  -       65    -       8.1   -      320    4    -        16   N
a10g       8.6   80   22587  70      70    35     31.5   -      600    6    -        32   L
l4         8.9   58   22563  121    121    60     30.3   242    300   48    -        32   N
l40s       8.9  142   45589  362    362    183    91.6   733    864   96    -        32   M
rtx3090    8.6   82   24259  71      71    35.6   35.6   -      936    6    112.5    32   M
rtx4090    8.9  128   24217  165    165    82.6   82.6   330   1008   72    -        32   M
rtx5090   12.0  170   32102  209.5  209.5  104.8  104.8  419   1792   96    -        64   M
a100-40gb  8.0  108   40339  312    312    156    19.5   -     1555   40    600      32   N
a100-80gb  8.0  108   81153  312    312    156    19.5   -     2039   40    600      32   T,L,N
h100-80gb  9.0  132   81089  989    989    494    67     1979  3350   50    900      64   T,L,N
h100-pcie  9.0  114   81008  756    756    378    51     1513  2000   50    600      64   L
h200       9.0  132  143156  989    989    494    67     1979  4800   50    900      64   M
b200      10.0  148  182631  2250   2250   1125   75     4500  7700  126    1800     64   S
gb200     10.0  152  188733  2500   2500   1250   80     5000  8000  126    1800    450   S
mi300x     9.4  304  196592  1307   1307   654    163    2615  5300    4    896      64   T
"""

_TORCH_NAMES: dict[str, tuple[str, ...]] = {
    "v100-16gb": ("Tesla V100-SXM2-16GB", "Tesla V100-PCIE-16GB"),
    "v100-32gb": ("Tesla V100-SXM2-32GB", "Tesla V100-PCIE-32GB"),
    "t4": ("Tesla T4",),
    "a10g": ("NVIDIA A10G",),
    "l4": ("NVIDIA L4",),
    "l40s": ("NVIDIA L40S",),
    "rtx3090": ("NVIDIA GeForce RTX 3090",),
    "rtx4090": ("NVIDIA GeForce RTX 4090",),
    "rtx5090": ("NVIDIA GeForce RTX 5090",),
    "a100-40gb": ("NVIDIA A100-SXM4-40GB", "NVIDIA A100-PCIE-40GB"),
    "a100-80gb": ("NVIDIA A100-SXM4-80GB", "NVIDIA A100 80GB PCIe"),
    "h100-80gb": ("NVIDIA H100 80GB HBM3",),
    "h100-pcie": ("NVIDIA H100 PCIe",),
    "h200": ("NVIDIA H200",),
    "b200": ("NVIDIA B200",),
    "gb200": ("NVIDIA GB200",),
    "mi300x": ("AMD Instinct MI300X",),
}


def _optional(cell: str) -> float | None:
    return None if cell == "-" else float(cell)


def _gpu(row: str) -> Gpu:
    name, sm, num_sms, memory, bf16, fp16, tf32, fp32, fp8, dram, l2, nvlink, pcie, source = row.split()
    major, minor = (int(part) for part in sm.split("."))
    torch_names = _TORCH_NAMES[name]
    return Gpu(
        name=name,
        torch_names=torch_names,
        vendor="amd" if torch_names[0].startswith("AMD") else "nvidia",
        compute_capability=(major, minor),
        num_sms=int(num_sms),
        memory_bytes=int(memory) * _MIB,
        context_bytes=_CONTEXT_MIB_BY_MAJOR[major] * _MIB,
        bf16_tflops=_optional(bf16),
        fp16_tflops=float(fp16),
        tf32_tflops=_optional(tf32),
        fp32_tflops=float(fp32),
        fp8_tflops=_optional(fp8),
        dram_gb_per_s=float(dram),
        l2_bytes=int(l2) * _MIB,
        nvlink_gb_per_s=_optional(nvlink),
        pcie_gb_per_s=float(pcie),
        source=source,
    )


GPUS: tuple[Gpu, ...] = tuple(_gpu(row) for row in _TABLE.strip().splitlines()[1:])

_BY_NAME = {gpu.name: gpu for gpu in GPUS} | {name.lower(): gpu for gpu in GPUS for name in gpu.torch_names}


def find_gpu(name: str) -> Gpu:
    """The GPU called `name`: a name of the catalogue or a name that torch gives a device, in any case."""
    gpu = _BY_NAME.get(name.strip().lower())
    if gpu is None:
        raise UnknownGpu(
            f"no GPU is called {name!r}",
            hint=f"{did_you_mean(name, [gpu.name for gpu in GPUS])}run 'trainfit gpus' for the list",
        )
    return gpu
