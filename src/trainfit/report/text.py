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
    from trainfit._time_estimate import TimeEstimate, TimeShare

PLAIN_WIDTH = 120
"""Columns when the output is no terminal."""


def render(view: RenderableType) -> str:
    """The view as plain text, without trailing blanks."""
    console = Console(file=io.StringIO(), width=PLAIN_WIDTH, color_system=None, force_terminal=False)
    with console.capture() as capture:
        console.print(view)
    return "\n".join(line.rstrip() for line in capture.get().rstrip().splitlines())


def estimate_view(estimate: Estimate) -> RenderableType:
    """The verdict, the two peaks, what the peak is made of, how long the step takes, and what was left out."""
    return Group(
        _verdict(estimate),
        "",
        _facts(estimate),
        "",
        Text("allocated at the peak", style="bold"),
        Padding(_breakdown(estimate), (0, 0, 0, 2)),
        "",
        *(_time_parts(estimate.time) if estimate.time is not None else ()),
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
    if estimate.parallelism:
        table.add_row("parallelism", f"{estimate.parallelism}; all figures are of one of them")
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


def _time_parts(time: TimeEstimate) -> Iterable[RenderableType]:
    """How long the step takes, what bounds it, and what takes longest."""
    yield Text("time", style="bold")
    yield Padding(_time_facts(time), (0, 0, 0, 2))
    for title, shares in (("ops", time.top_ops), ("modules", time.top_modules)):
        if shares:
            yield ""
            yield Text(f"{title} that take longest", style="bold")
            yield Padding(_shares(shares, time.gpu_busy_ms), (0, 0, 0, 2))
    yield ""


def _time_facts(time: TimeEstimate) -> Table:
    low, high = time.range_ms
    sources = {"profile": "measured kernels of this GPU", "datasheet": "datasheet, less certain"}
    bounds = {
        "launches": f"launch-bound: the GPU waits {time.waiting_ms:.1f} ms for the CPU",
        "communication": "communication bounds it",
        "kernels": "the GPU's work bounds it",
    }
    table = Table.grid(padding=(0, 2))
    other = "on a faster host it is not" if time.launch_bound else "on a slower host it is launch-bound"
    near = "" if time.launch_bound_sure else f"; {other}"
    table.add_row("step", f"{time.step_ms:.1f} ms ({low:.1f} to {high:.1f}); {bounds[time.bound_by]}{near}")
    phases = ", ".join(f"{phase} {value:.1f} ms" for phase, value in time.phase_ms.items() if value >= 0.05)
    if phases:
        table.add_row("phases", phases)
    low, high = time.gpu_busy_range_ms
    table.add_row("GPU busy", f"{time.gpu_busy_ms:.1f} ms ({low:.1f} to {high:.1f}), MFU {100 * time.mfu:.1f}%")
    if time.communication_ms:
        exposed = f"{time.exposed_communication_ms:.1f} ms of them exposed"
        source = ", as the profile measured" if time.communication_source == "profile" else ""
        table.add_row("communication", f"{time.communication_ms:.1f} ms of collectives{source}, {exposed}")
    rates = ((time.tokens_per_second, "tokens/s"), (time.samples_per_second, "samples/s"))
    throughput = ", ".join(f"{rate:,.1f} {unit}" for rate, unit in rates if rate is not None)
    if throughput:
        table.add_row("throughput", throughput)
    roofline = f"; {100 * time.roofline_share:.1f}% of it by roofline" if time.roofline_share >= 0.001 else ""
    table.add_row("source", f"{time.source} ({sources[time.source]}){roofline}")
    return table


def _shares(shares: Iterable[TimeShare], busy_ms: float) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column()
    for _ in range(3):
        table.add_column(justify="right")
    for share in shares:
        portion = f"{100 * share.time_ms / busy_ms:.1f}%"
        table.add_row(share.name, f"{share.time_ms:.2f} ms", portion, f"{share.count} ops")
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
