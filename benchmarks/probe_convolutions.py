"""Asks cuDNN which plans it proposes for convolutions, and measures their workspaces where there is a GPU.

    python benchmarks/probe_convolutions.py --out FILE.gz --ask offline --seconds 600       # no GPU: it is described
    python benchmarks/probe_convolutions.py --out FILE.gz --ask handle --draw images        # a GPU's own plans
    python benchmarks/probe_convolutions.py --out FILE.gz --ask both                        # and what torch takes

Rows, per convolution and pass: its shapes; "plans" of the GPU's handle and "offline" of its description, the first one
of each (torch runs it: Conv_v8.cpp); with both "first" and "steady", the bytes that the first and the second call took
above their result. Shapes are drawn from a seed; with --shapes every second one is from public architectures
(public_convolutions.py), its batch, precision and layout drawn. On the H200 torch ran the first plan of the handle in
1,849 of 1,881 rows (the others are depthwise convolutions that torch computes itself, or shapes for which the
heuristics propose nothing), so plans alone say what is allocated.
"""

from __future__ import annotations

import argparse
import ctypes
import gzip
import json
import random
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import Any

from trainfit.gpus.catalogue import find_gpu
from trainfit.gpus.hidden import cudnn_library
from trainfit.gpus.hidden.cudnn_library import CudnnError, Pass, Target

KINDS: dict[str, Pass] = {
    "forward": "output",
    "input gradient": "input gradient",
    "weight gradient": "weight gradient",
}
DTYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}
CHANNELS = (1, 3, 4, 8, 16, 24, 32, 40, 48, 64, 64, 72, 80, 96, 128, 128, 160, 192, 256, 256, 320, 384, 512, 512, 576)
CHANNELS += (640, 768, 960, 1024, 1280, 1536, 2048)
BATCHES = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256)
SIZES = (7, 8, 14, 16, 20, 28, 32, 40, 56, 64, 80, 112, 128, 160, 224, 256)
LENGTHS = (49, 50, 100, 128, 200, 499, 512, 1000, 1024, 1500, 2048, 3000, 4096, 8000, 16384, 32000)
DEPTHS = (4, 8, 16, 32)
STEMS = ((3, 1), (3, 2), (4, 4), (7, 2), (8, 8), (14, 14), (16, 16), (10, 5), (15, 4))
STYLES = {"point": 0.28, "same": 0.4, "down": 0.17, "patch": 0.06, "valid": 0.04, "stem": 0.05}
SIDES = (7, 7, 8, 10, 12, 14, 14, 16, 20, 24, 28, 28, 32, 40, 48, 56, 56, 64, 80, 96, 112, 128)
IMAGE_STYLES = {"product": 0.4, "grouped": 0.2, "depthwise": 0.1, "strided": 0.15, "decoder": 0.15}
LEVELS_SHARE = 0.6
PUBLIC_SHARE = 0.5
MAX_TENSOR_BYTES = 2**30
MAX_MULTIPLICATIONS = 10**12
BYTES = {"f32": 4, "f16": 2, "bf16": 2}


@dataclass(frozen=True)
class Convolution:
    """Shapes as cuDNN sees them: at least two image dimensions, and all three tensors in one layout."""

    x: tuple[int, ...]
    w: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    dtype: str
    channels_last: bool

    @property
    def y(self) -> tuple[int, ...]:
        pixels = zip(self.x[2:], self.w[2:], self.stride, self.padding, self.dilation, strict=True)
        return (self.x[0], self.w[0], *((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in pixels))

    @property
    def is_product(self) -> bool:
        return prod(self.w[2:]) == prod(self.stride) == 1 and self.w[1] == self.x[1]

    @property
    def is_torchs_own(self) -> bool:
        """One filter per channel in the usual layout, save halves of fp16: torch does not ask cuDNN for those."""
        return self.x[1] > self.w[1] == 1 and not self.channels_last and self.dtype != "f16"

    def described(self) -> cudnn_library.Convolution:
        shapes, settings = (self.x, self.w, self.y), (self.stride, self.padding, self.dilation)
        return cudnn_library.Convolution(*shapes, *settings, DTYPES[self.dtype], self.channels_last)


def window(random_: random.Random, style: str) -> tuple[int, int, int]:
    """Kernel, stride and padding."""
    if style == "point":
        return 1, random_.choice((1, 1, 1, 2)), 0
    if style == "same":
        kernel = random_.choice((3, 3, 3, 3, 5, 7, 9))
        return kernel, 1, kernel // 2
    if style == "down":
        kernel, stride = random_.choice(((3, 2), (3, 2), (3, 2), (7, 2), (4, 2), (5, 2)))
        return kernel, stride, random_.choice(((kernel - 1) // 2, (kernel - 1) // 2, 0))
    if style == "stem":
        kernel, stride = random_.choice(STEMS)
        return kernel, stride, kernel // 2 if stride <= 2 else 0
    kernel = random_.choice((2, 2, 3, 4, 8) if style == "patch" else (2, 3, 4))
    return kernel, kernel if style == "patch" else 1, 0


def image(random_: random.Random, dims: int) -> tuple[int, ...]:
    if dims == 1:
        return 1, random_.randrange(20, 20000) if random_.random() < 0.25 else random_.choice(LENGTHS)
    size = random_.randrange(5, 260 // dims) if random_.random() < 0.15 else random_.choice(SIZES[: 24 - 5 * dims])
    return (size,) * 2 if dims == 2 else (random_.choice(DEPTHS), size, size)


def draw_level(random_: random.Random) -> Convolution:
    """A convolution between two levels of a network whose channels double where its sides halve."""
    dims = random_.choices((1, 2, 3), (0.25, 0.65, 0.1))[0]
    level = random_.randrange(5)
    channels = random_.choice((16, 32, 32, 48, 64, 64, 64, 80, 96, 128) if dims > 1 else (64, 128, 256, 512)) << level
    channels = min(channels, 2048)
    side = random_.choice((56, 56, 64, 112, 128, 256) if dims == 2 else (2048, 3000, 16000, 16384, 65536, 160000))
    side = max(7, (32 if dims == 3 else side) >> level)
    batch = 2 ** random_.randrange(9 if dims < 3 else 5)
    kernel, stride, padding = random_.choice(
        ((3, 1, 1), (3, 1, 1), (3, 1, 1), (3, 2, 1), (1, 2, 0), (1, 1, 0), (2, 2, 0), (5, 1, 2), (7, 1, 3), (9, 1, 4))
    )
    pair = random_.choice(((1, 1), (1, 1), (1, 1), (1, 2), (2, 1), (4, 1), (1, 4), (3, 1)))
    inputs, outputs = pair[0] * channels, pair[1] * channels
    if random_.random() < 0.1:
        inputs, kernel, stride, padding = random_.choice(
            ((3, 7, 2, 3), (3, 3, 1, 1), (3, 3, 2, 1), (3, 4, 4, 0), (3, 16, 16, 0), (1, 10, 5, 0), (1, 15, 4, 7))
        )
        side, outputs = (224 if dims == 2 else side), min(outputs, 1024)
    elif random_.random() < 0.05:
        outputs = random_.choice((1, 3, 4, 21, 150))
    flat = dims == 1
    return Convolution(
        x=(batch, inputs, *((1, side) if flat else (side,) * 2 if dims == 2 else (min(side, 16), side, side))),
        w=(outputs, inputs, *((1, kernel) if flat else (kernel,) * dims)),
        stride=(1, stride) if flat else (stride,) * dims,
        padding=(0, padding) if flat else (padding,) * dims,
        dilation=(1,) * max(dims, 2),
        dtype=random_.choices(("f32", "bf16", "f16"), (0.5, 0.45, 0.05))[0],
        channels_last=not flat and random_.random() < 0.35,
    )


def draw(random_: random.Random) -> Convolution:
    """One convolution as networks have them: mostly images, odd kernels with padding, powers of two and their sums."""
    if random_.random() < LEVELS_SHARE:
        return draw_level(random_)
    dims = random_.choices((1, 2, 3), (0.2, 0.7, 0.1))[0]
    dtype = random_.choices(("f32", "bf16", "f16"), (0.5, 0.4, 0.1))[0]
    batch = random_.choice(BATCHES)
    style = random_.choices(tuple(STYLES), tuple(STYLES.values()))[0]
    inputs, outputs = random_.choice(CHANNELS[:3] if style == "stem" else CHANNELS), random_.choice(CHANNELS)
    if style != "stem" and random_.random() < 0.4:
        outputs = inputs
    groups = 1
    if random_.random() < 0.15:
        groups = inputs if random_.random() < 0.6 else random_.choice((2, 4, 16, 32))
        groups = groups if inputs % groups == 0 and outputs % groups == 0 else 1
    kernel, stride, padding = window(random_, style)
    dilation = 2 if style == "same" and random_.random() < 0.05 else 1
    flat = dims == 1
    return Convolution(
        x=(batch, inputs, *image(random_, dims)),
        w=(outputs, inputs // groups, *((1, kernel) if flat else (kernel,) * dims)),
        stride=(1, stride) if flat else (stride,) * dims,
        padding=(0, padding * dilation) if flat else (padding * dilation,) * dims,
        dilation=(1, dilation) if flat else (dilation,) * dims,
        dtype=dtype,
        channels_last=not flat and random_.random() < 0.35,
    )


def width(random_: random.Random) -> int:
    return random_.choice((8, 8, 16, 32, 64)) * random_.randrange(1, 33)


def draw_of_image_net(random_: random.Random) -> Convolution:
    """What the trees err on most: kernels of one pixel, groups, one filter per channel, strides."""
    style = random_.choices(tuple(IMAGE_STYLES), tuple(IMAGE_STYLES.values()))[0]
    batch = 2 ** random_.randrange(3, 9) if random_.random() < 0.6 else 4 * random_.randrange(1, 65)
    side = random_.choice(SIDES) if random_.random() < 0.9 else random_.randrange(5, 130)
    inputs, groups, kernel, stride = width(random_), 1, 1, 1
    ratio = random_.choice((1, 1, 2, 4, 6, 1 / 2, 1 / 4, 1 / 6, None))
    outputs = width(random_) if ratio is None else max(8, int(inputs * ratio))
    if style == "grouped":
        groups, per_group = random_.choice((2, 4, 8, 16, 32, 32, 64)), 4 * random_.randrange(1, 33)
        if random_.random() < 0.5:  # a fixed width per group, as many groups as there are
            per_group = random_.choice((8, 16, 16, 24, 32, 40, 48, 56, 64, 72, 112, 120))
            groups = random_.randrange(2, 33)
        inputs = groups * per_group
        outputs = inputs * random_.choice((1, 1, 1, 2))
        kernel, stride = random_.choice(((3, 1), (3, 2), (3, 2), (5, 1), (1, 1)))
    elif style == "depthwise":
        outputs = groups = inputs
        kernel, stride = random_.choice((3, 3, 5, 7)), random_.choice((1, 1, 2))
    elif style == "strided":
        kernel, stride = random_.choice(((1, 2), (1, 2), (3, 2), (3, 2), (3, 2), (2, 2), (4, 4), (7, 2), (5, 2)))
    elif style == "decoder":  # of generators and autoencoders: its transposed ones are plain ones with a stride
        inputs, (kernel, stride) = (
            1 << random_.randrange(4, 11),
            random_.choice(((4, 2), (4, 2), (4, 2), (2, 2), (4, 1))),
        )
        outputs = min(2048, random_.choice((2 * inputs, 2 * inputs, inputs, width(random_))))
        inputs, side = random_.choice((inputs, inputs, inputs, 3, 1)), 1 << random_.randrange(2, 8)
    padding = 1 if style == "decoder" and (kernel, stride) == (4, 2) else kernel // 2 if kernel % 2 else 0
    return Convolution(
        x=(batch, inputs, side, side),
        w=(outputs, inputs // groups, kernel, kernel),
        stride=(stride,) * 2,
        padding=(padding,) * 2,
        dilation=(1, 1),
        dtype=random_.choices(("f32", "bf16", "f16"), (0.45, 0.45, 0.1))[0],
        channels_last=random_.random() < (0.8 if style == "depthwise" else 0.35),
    )


def is_moderate(convolution: Convolution) -> bool:
    x, w, y = convolution.x, convolution.w, convolution.y
    if min(y) < 1:
        return False
    largest = max(map(prod, (x, w, y))) * BYTES[convolution.dtype]
    return largest <= MAX_TENSOR_BYTES and prod(y) * prod(w[1:]) <= MAX_MULTIPLICATIONS


def draw_public(random_: random.Random, families: dict[str, list[Any]]) -> Convolution:
    x, w, stride, padding, dilation = random_.choice(families[random_.choice(sorted(families))])
    batch = 2 ** random_.randrange(9) if random_.random() < 0.7 else random_.randrange(1, 300)
    dtype = random_.choices(("f32", "bf16", "f16"), (0.5, 0.44, 0.06))[0]
    if flat := len(x) == 2:
        x, w = (x[0], 1, x[1]), (*w[:2], 1, w[2])
        stride, padding, dilation = (1, *stride), (0, *padding), (1, *dilation)
    settings = (tuple(stride), tuple(padding), tuple(dilation))
    return Convolution((batch, *x), tuple(w), *settings, dtype, not flat and random_.random() < 0.4)


def convolutions(seed: int, families: dict[str, list[Any]], drawn: str) -> Iterator[Convolution]:
    random_ = random.Random(seed)
    draw_one = draw if drawn == "any" else draw_of_image_net
    while True:
        is_public = families and random_.random() < PUBLIC_SHARE
        convolution = draw_public(random_, families) if is_public else draw_one(random_)
        is_wanted = convolution.is_product if drawn == "products" else not convolution.is_torchs_own
        if is_wanted and is_moderate(convolution):
            yield convolution


def families_of(path: Path | None) -> dict[str, list[Any]]:
    families: dict[str, list[Any]] = defaultdict(list)
    for line in path.read_text().splitlines() if path else ():
        family, *convolution = json.loads(line)
        families[family].append(convolution)
    return families


def measured_bytes(convolution: Convolution, kind: str) -> list[int]:
    """What two calls in a row took above their result, as requested of the allocator."""
    import torch

    dtype = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[convolution.dtype]
    dims = len(convolution.stride)
    layout = torch.contiguous_format
    if convolution.channels_last:
        layout = torch.channels_last if dims == 2 else torch.channels_last_3d
    x, w, y = (
        torch.empty(shape, dtype=dtype, device="cuda", memory_format=layout)
        for shape in (convolution.x, convolution.w, convolution.y)
    )
    groups = convolution.x[1] // convolution.w[1]
    settings = (
        list(convolution.stride),
        list(convolution.padding),
        list(convolution.dilation),
        False,
        [0] * dims,
        groups,
    )
    found = []
    for _ in range(2):
        before = torch.cuda.memory_stats()["requested_bytes.all.current"]
        torch.cuda.reset_peak_memory_stats()
        if kind == "forward":
            result = torch.ops.aten.convolution(x, w, None, *settings)
        else:
            mask = [kind == "input gradient", kind == "weight gradient", False]
            results = torch.ops.aten.convolution_backward(y, x, w, None, *settings, mask)
            result = results[mask.index(True)]
            del results
        peak = torch.cuda.memory_stats()["requested_bytes.all.peak"]
        found.append(peak - before - result.numel() * result.element_size())
        del result
    return found


def handle_target() -> Target:
    """The GPU of this process, once torch has loaded cuDNN and made the GPU's context."""
    import torch

    torch.nn.functional.conv2d(torch.ones(1, 1, 8, 8, device="cuda"), torch.ones(1, 1, 3, 3, device="cuda"))
    handle = ctypes.c_void_p()
    if cudnn_library.library().cudnnCreate(ctypes.byref(handle)):
        raise SystemExit("cuDNN gives no handle")
    owner = cudnn_library.HANDLE, [handle]
    return Target(graph=((800, *owner),), heuristics=(), plan=((400, *owner),))


def asked(convolution: Convolution, kind: str, target: Target) -> list[dict[str, Any]]:
    first = cudnn_library.proposed_plan(cudnn_library.library(), convolution.described(), KINDS[kind], target)
    if first is None:
        return []
    knobs = {str(number): value for number, value in first.knobs}
    return [{"engine": first.engine, "knobs": knobs, "workspace_bytes": first.workspace_bytes}]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--ask", choices=("offline", "handle", "both"), default="offline")
    parser.add_argument("--gpu", default="h200", help="the one that is described")
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--draw", choices=("any", "products", "images"), default="any", help="which convolutions")
    parser.add_argument("--shapes", type=Path, help="what public_convolutions.py wrote")
    args = parser.parse_args()
    if cudnn_library.library() is None:
        raise SystemExit("no cuDNN here: pip install 'trainfit[cudnn]'")
    handle = None if args.ask == "offline" else handle_target()
    offline = None if args.ask == "handle" else cudnn_library.described_target(find_gpu(args.gpu))
    begin_s, number = time.monotonic(), 0
    with gzip.open(args.out, "wt") as file:
        for convolution in convolutions(args.seed, families_of(args.shapes), args.draw):
            if time.monotonic() - begin_s > args.seconds:
                break
            for kind in KINDS:
                row: dict[str, Any] = {"kind": kind, **asdict(convolution)}
                try:
                    if offline:
                        row["offline"] = asked(convolution, kind, offline)
                    if handle:
                        row["plans"] = asked(convolution, kind, handle)
                    if handle and offline:
                        row["first"], row["steady"] = measured_bytes(convolution, kind)
                except (CudnnError, RuntimeError) as error:
                    row["error"] = f"{type(error).__name__}: {error}"[:200]
                file.write(json.dumps(row, separators=(",", ":")) + "\n")
            number += 1
    print(number, "convolutions in", round(time.monotonic() - begin_s), "s", flush=True)


if __name__ == "__main__":
    main()
