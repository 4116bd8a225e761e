"""`trainfit doctor`: versions, the GPU, the extras, and what works on this machine; exit 1 if estimates do not."""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import platform
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from trainfit import __version__
from trainfit.errors import UnknownGpu
from trainfit.gpus.catalogue import find_gpu
from trainfit.gpus.hidden import cudnn_library
from trainfit.units import format_bytes

OLDEST_TORCH, NEWEST_TORCH = (2, 11), (2, 15)
EXTRAS = {
    "transformers": ("hf: targets and trainfit.huggingface", "pip install 'trainfit[hf]'"),
    "accelerate": ("transformers' Trainer", "pip install 'trainfit[hf]'"),
    "torchtitan": ("trainfit.torchtitan", "pip install torchtitan"),
    "ray": ("sweeps on a cluster", "pip install 'trainfit[ray]'"),
}
"""What is not required: what it is for, and how to get it."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: a thing, whether it is fine, what there is, and what to do if something is wanted."""

    ok: bool
    what: str
    says: str
    hint: str = ""
    needed: bool = False  # for the commands that need no GPU

    def __str__(self) -> str:
        mark = "ok" if self.ok else "NO" if self.needed else "--"
        hint = f"; hint: {self.hint}" if self.hint else ""
        return f"{mark}  {self.what:<13} {self.says}{hint}"


def add_parser(verbs: Any) -> None:
    """Add the verb; it has no options."""
    parser = verbs.add_parser(
        "doctor",
        help="say what works on this machine",
        description="Say what works on this machine: versions, the GPU, the extras, one line each.",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print a line per thing, as it is found, and what works in the end."""
    findings = []
    for finding in examine():
        findings.append(finding)
        print(finding, flush=True)
    print(verdict(findings))
    return 1 if any(finding.needed and not finding.ok for finding in findings) else 0


def examine() -> Iterator[Finding]:
    """Everything that is looked at, in the order in which it is printed."""
    system = f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    yield Finding(True, "trainfit", f"{__version__}, {system}")
    yield _module("torch", _torch)
    yield _module("solver", _solver)
    yield _module("ghost GPU", _ghost)
    yield from _gpus()
    yield _driver()
    yield cudnn_finding(cudnn_library.version())
    for name, (use, how) in EXTRAS.items():
        yield _extra(name, use, how)


def verdict(findings: list[Finding]) -> str:
    """The last line: which commands work here."""
    broken = [finding.what for finding in findings if finding.needed and not finding.ok]
    if broken:
        return f"estimate and plan do not work here: see {', '.join(broken)}"
    if any(finding.what.startswith("GPU") and finding.ok for finding in findings):
        return "every command works here"
    return "every command works here but verify and calibrate, which need a GPU"


def supports(torch_version: str) -> bool:
    """Whether it is one of the versions that trainfit was written for, whatever the build."""
    match = re.match(r"(\d+)\.(\d+)", torch_version)
    return match is not None and OLDEST_TORCH <= (int(match[1]), int(match[2])) <= NEWEST_TORCH


def _module(what: str, look: Any) -> Finding:
    """What `look` finds; an error on the way is a finding too."""
    try:
        found = look()
    except Exception as error:
        first_line = next(iter(str(error).splitlines()), "")
        return Finding(
            False, what, f"{type(error).__name__}: {first_line}", "install trainfit again with pip", needed=True
        )
    assert isinstance(found, Finding)
    return found


def _torch() -> Finding:
    import torch

    version = str(torch.__version__)
    oldest, newest = (".".join(map(str, each)) for each in (OLDEST_TORCH, NEWEST_TORCH))
    if not supports(version):
        return Finding(False, "torch", version, f"trainfit supports {oldest} to {newest}", needed=True)
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "ROCm" if torch.version.hip else "CPU-only build"
    return Finding(True, "torch", f"{version} ({build}); supported are {oldest} to {newest}", needed=True)


def _solver() -> Finding:
    importlib.import_module("highspy")
    return Finding(True, "solver", f"highspy {importlib.metadata.version('highspy')}", needed=True)


def _ghost() -> Finding:
    """Estimates one small step, from building to the allocator's model."""
    import torch
    from torch import nn

    import trainfit

    step = trainfit.Step(model=lambda: nn.Linear(64, 64), batch=(torch.empty(8, 64, device="meta"),), loss=torch.sum)
    start_s = time.perf_counter()
    trainfit.estimate(step)
    return Finding(True, "ghost GPU", f"a step was estimated in {time.perf_counter() - start_s:.1f} s", needed=True)


def _gpus() -> Iterator[Finding]:
    try:
        import torch
    except Exception:  # said on torch's own line
        return
    if not torch.cuda.is_available():
        has_cuda = torch.version.cuda or torch.version.hip
        hint = "look at the driver" if has_cuda else "install a CUDA build of torch where there is one"
        yield Finding(False, "GPU", "torch sees none; estimate and plan need none", f"for verify and calibrate, {hint}")
        return
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        yield gpu_finding(index, properties.name, properties.total_memory)


def gpu_finding(index: int, name: str, memory_bytes: int) -> Finding:
    """A GPU of this machine, and what the catalogue calls it."""
    seen = f"{name}, {format_bytes(memory_bytes)}"
    try:
        return Finding(True, f"GPU {index}", f"{seen}: --gpu {find_gpu(name).name}")
    except UnknownGpu:
        return Finding(True, f"GPU {index}", f"{seen}, not in the catalogue", "pass --gpu with the nearest of its kind")


def _driver() -> Finding:
    command = shutil.which("nvidia-smi")
    if command is None:
        return Finding(False, "driver", "no nvidia-smi here")
    query = [command, "--query-gpu=driver_version", "--format=csv,noheader"]
    answer = subprocess.run(query, capture_output=True, text=True, timeout=30, check=False)
    if answer.returncode != 0:
        said = (answer.stderr or answer.stdout).strip().splitlines()
        return Finding(False, "driver", f"nvidia-smi failed: {said[0] if said else answer.returncode}")
    return Finding(True, "driver", f"NVIDIA {answer.stdout.splitlines()[0].strip()}")


def cudnn_finding(version: int) -> Finding:
    """A cuDNN that can be asked (as in 92000, 0 for none) makes the memory of convolutions exact."""
    if version:
        number = f"{version // 10000}.{version // 100 % 100}.{version % 100}"
        return Finding(True, "cuDNN", f"{number}, asked which kernels convolutions use")
    hint = "for exact workspaces, pip install 'trainfit[cudnn]' (Linux, 1.2 GB)"
    return Finding(False, "cuDNN", "none to ask: its choice of convolution kernels is imitated", hint)


def _extra(name: str, use: str, how: str) -> Finding:
    try:
        return Finding(True, name, f"{importlib.metadata.version(name)}, for {use}")
    except importlib.metadata.PackageNotFoundError:
        return Finding(False, name, f"not installed; it is for {use}", how)
