"""Results as rich renderables, for the terminal and for `print`. In: records. Out: renderables, or plain text."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from trainfit.gpus.catalogue import Gpu, find_gpu
from trainfit.units import format_bytes, format_count

if TYPE_CHECKING:
    from trainfit._estimate import Estimate

PLAIN_WIDTH = 120
"""Columns when the output is no terminal."""


def render(view: RenderableType) -> str:
    """The view as plain text, without trailing blanks."""
    console = Console(file=io.StringIO(), width=PLAIN_WIDTH, color_system=None, force_terminal=False)
    with console.capture() as capture:
        console.print(view)
    return "\n".join(line.rstrip() for line in capture.get().rstrip().splitlines())


def estimate_view(estimate: Estimate) -> RenderableType:
    """The verdict, the two peaks, when the peak is, what it is made of, and what was left out."""
    return Group(
        _verdict(estimate),
        "",
        _facts(estimate),
        "",
        Text("allocated at the peak", style="bold"),
        Padding(_breakdown(estimate), (0, 0, 0, 2)),
        "",
        Text("not modelled", style="bold"),
        *(Text(f"  {line}") for line in estimate.not_modelled),
    )


def _verdict(estimate: Estimate) -> Text:
    peak, budget = format_bytes(estimate.peak_reserved_bytes), format_bytes(estimate.budget_bytes)
    share = f"{100 * estimate.peak_reserved_bytes / estimate.budget_bytes:.1f}%"
    if estimate.fits():
        return Text.assemble(("fits", "bold green"), f" {estimate.gpu}: {peak} of {budget} ({share})")
    return Text.assemble(("does not fit", "bold red"), f" {estimate.gpu}: {peak} of {budget} ({share})")


def _facts(estimate: Estimate) -> Table:
    gpu = find_gpu(estimate.gpu)
    moment = estimate.peak_at
    table = Table.grid(padding=(0, 2))
    table.add_row("peak allocated", format_bytes(estimate.peak_allocated_bytes))
    table.add_row("peak reserved", f"{format_bytes(estimate.peak_reserved_bytes)} ({estimate.allocator} allocator)")
    table.add_row("peak at", f"{moment.phase.value}: {moment.op}")
    if moment.module:
        table.add_row("", f"in {moment.module}")
    table.add_row("budget", f"{format_bytes(estimate.budget_bytes)} of the GPU's {format_bytes(gpu.memory_bytes)}")
    table.add_row("parameters", format_count(estimate.num_parameters))
    table.add_row("torch", estimate.torch)
    return table


def _breakdown(estimate: Estimate) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column()
    table.add_column(justify="right")
    table.add_column(justify="right")
    for category, nbytes in estimate.breakdown_bytes.items():
        share = 100 * nbytes / estimate.peak_allocated_bytes
        table.add_row(category, format_bytes(nbytes), f"{share:.1f}%")
    return table


def gpus_view(gpus: Iterable[Gpu]) -> RenderableType:
    """The catalogue: what fits on each GPU and how fast it is by its datasheet."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("gpu")
    for heading in ("capability", "SMs", "memory", "bf16", "fp16", "tf32", "fp32", "fp8", "DRAM", "NVLink"):
        table.add_column(heading, justify="right")
    for gpu in gpus:
        major, minor = gpu.compute_capability
        table.add_row(
            gpu.name,
            f"{major}.{minor}",
            str(gpu.num_sms),
            format_bytes(gpu.memory_bytes),
            *(_number(value) for value in (gpu.bf16_tflops, gpu.fp16_tflops, gpu.tf32_tflops)),
            *(_number(value) for value in (gpu.fp32_tflops, gpu.fp8_tflops, gpu.dram_gb_per_s, gpu.nvlink_gb_per_s)),
        )
    return Group(table, "", "bf16 to fp8: dense TFLOP/s by the datasheet; DRAM and NVLink: GB/s")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"
