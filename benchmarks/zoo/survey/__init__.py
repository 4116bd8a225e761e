"""The survey's nets in plain torch: 41 of them, some to develop with, the others predicted before they are measured.

In: whether they are to be small (a CPU then trains them in seconds). Out: cases by name. Nobody chose precision,
optimizer, batch, clipping and accumulation, nor which half a net is in: a generator with a fixed seed draws them.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from zoo.case import Case, Precision
from zoo.survey import images, others, sequences, speech

SEED = 20261116
NUM_DEVELOPMENT = 20
ANY: tuple[Precision, ...] = ("bf16", "amp", "fp16amp", "fp32", "tf32")
WITH_FP32_WEIGHTS: tuple[Precision, ...] = ("amp", "fp16amp", "fp32", "tf32")
OPTIMIZERS: tuple[Callable[..., torch.optim.Optimizer], ...] = (
    torch.optim.AdamW,
    partial(torch.optim.AdamW, fused=True),
    torch.optim.Adam,
    partial(torch.optim.SGD, lr=1e-3, momentum=0.9, nesterov=True),
    torch.optim.RMSprop,
    torch.optim.Adagrad,
    torch.optim.NAdam,
    others.Lion,
    others.Averaged,
)
Field = Callable[[int, str, torch.dtype], Tensor]


@dataclass(frozen=True)
class Net:
    """What is fixed about a net; the rest is drawn."""

    name: str
    build: Callable[[], nn.Module]
    rows: int
    fields: dict[str, Field]
    precisions: tuple[Precision, ...] = ANY
    may_be_channels_last: bool = False


def floats(*shape: int) -> Field:
    return lambda rows, device, dtype: torch.randn(rows, *shape, device=device, dtype=dtype)


def below(limit: int, *shape: int) -> Field:
    return lambda rows, device, dtype: torch.randint(0, limit, (rows, *shape), device=device)


def padding(length: int) -> Field:
    """Every other row ends with a quarter of padding."""

    def field(rows: int, device: str, dtype: torch.dtype) -> Tensor:
        odd = torch.arange(rows, device=device)[:, None] % 2 == 1
        return odd & (torch.arange(length, device=device) >= length * 3 // 4)

    return field


def edges(nodes_per_row: int, links_per_row: int) -> Field:
    return lambda rows, device, dtype: torch.randint(0, nodes_per_row * rows, (2, links_per_row * rows), device=device)


def nodes(per_row: int, *shape: int, limit: int | None = None) -> Field:
    def field(rows: int, device: str, dtype: torch.dtype) -> Tensor:
        full = (per_row * rows, *shape)
        if limit is not None:
            return torch.randint(0, limit, full, device=device)
        return torch.randn(full, device=device, dtype=dtype)

    return field


def image_nets(tiny: bool) -> list[Net]:
    def pick(small: int, full: int) -> int:
        return small if tiny else full

    side, large = pick(32, 224), pick(64, 256)
    labels, depth = below(100), pick(1, 2)
    widths = (32, 32, 16) if tiny else (512, 512, 512, 256, 128, 64)
    flow = pick(64, 256)
    style = images.StyleGenerator
    return [
        Net("style_generator", lambda: style(pick(32, 512), widths), 24, {"codes": floats(pick(32, 512))}),
        Net("penalised_critic", lambda: images.PenalisedCritic(pick(8, 96)), 160,
            {name: floats(3, pick(32, 128), pick(32, 128)) for name in ("real", "fake")}, ("bf16", "fp32", "tf32")),
        Net("high_resolution", lambda: images.HighResolution(pick(8, 48), pick(1, 6)), 24,
            {"images": floats(3, large, large), "maps": floats(17, large // 4, large // 4)}, ANY, True),
        Net("super_resolution", lambda: images.SuperResolution(pick(16, 64), pick(2, 24)), 24,
            {"small": floats(3, pick(16, 96), pick(16, 96)), "large": floats(3, pick(64, 384), pick(64, 384))},
            ANY, True),
        Net("optical_flow", lambda: images.OpticalFlow(pick(32, 128), pick(2, 8), pick(1, 4)), 8,
            {"first": floats(3, flow, flow), "second": floats(3, flow, flow), "flow": floats(2, flow, flow)},
            ("fp32", "tf32")),
        Net("gated_unet", lambda: images.GatedUNet(pick(8, 64), pick(3, 5), 9), 16,
            {"images": floats(3, large, large), "classes": below(9, large, large)}, ANY, True),
        Net("vq_autoencoder", lambda: images.VectorQuantised(pick(16, 256), pick(32, 1024), pick(8, 64)), 256,
            {"images": floats(3, pick(32, 128), pick(32, 128))}, ANY, True),
        Net("mixer", lambda: images.Mixer(pick(32, 768), pick(2, 12), side, 16), 96,
            {"images": floats(3, side, side), "labels": below(1000)}),
        Net("conv_mixer", lambda: images.ConvMixer(pick(16, 512), pick(2, 12), pick(5, 9), 7 if not tiny else 4), 64,
            {"images": floats(3, side, side), "labels": below(1000)}, WITH_FP32_WEIGHTS, True),
        Net("distilled", lambda: images.Distilled(pick(16, 96), pick(8, 48), depth), 256,
            {"images": floats(3, pick(32, 160), pick(32, 160)), "labels": labels}, ANY, True),
        Net("cellular_automaton", lambda: images.CellularAutomaton(16, pick(16, 128), pick(4, 24)), 48,
            {"seeds": floats(16, pick(16, 72), pick(16, 72)), "pictures": floats(4, pick(16, 72), pick(16, 72))},
            WITH_FP32_WEIGHTS),
        Net("straightened", lambda: images.Straightened(pick(16, 64), pick(2, 5)), 48,
            {"images": floats(3, pick(48, 160), pick(48, 160)), "labels": labels}, WITH_FP32_WEIGHTS, True),
        Net("pixel_cnn", lambda: images.PixelCnn(pick(16, 128), pick(2, 12)), 48,
            {"images": floats(3, pick(16, 64), pick(16, 64)), "values": below(256, pick(16, 64), pick(16, 64))}),
    ]  # fmt: skip


def sequence_nets(tiny: bool) -> list[Net]:
    def pick(small: int, full: int) -> int:
        return small if tiny else full

    vocab, width, depth = pick(100, 24000), pick(32, 768), pick(2, 10)
    wave, text, long = pick(200, 16000), pick(32, 512), pick(64, 4096)
    tokens = {"tokens": below(vocab, text)}
    bands, frames = pick(8, 80), pick(64, 800)
    experts, capacity = pick(4, 16), pick(12, 48)
    return [
        Net("wavenet", lambda: sequences.WaveNet(pick(16, 128), pick(16, 256), pick(1, 3), pick(4, 10)), 6,
            {"samples": below(256, wave)}),
        Net("temporal_net", lambda: sequences.TemporalNet(pick(8, 88), (pick(16, 256),) * pick(2, 7), 5), 192,
            {"series": floats(pick(8, 88), pick(64, 2048))}),
        Net("fourier_mixer", lambda: sequences.FourierMixer(vocab, width, depth), 48, tokens, WITH_FP32_WEIGHTS),
        Net("long_convolution", lambda: sequences.LongConvolutionLM(vocab, width, pick(8, 32), pick(2, 6)), 6,
            {"tokens": below(vocab, pick(64, 2048))}),
        Net("scanned_gru", lambda: sequences.ScannedGru(vocab, width, pick(2, 8)), 48, tokens),
        Net("performer", lambda: sequences.Performer(vocab, pick(32, 512), 8, pick(16, 256), pick(2, 6), long), 8,
            {"tokens": below(vocab, long), "labels": below(20)}),
        Net("gated_perceptron", lambda: sequences.GatedPerceptron(vocab, pick(32, 512), depth, text), 48, tokens),
        Net("perceiver", lambda: sequences.Perceiver(pick(16, 261), pick(32, 512), pick(8, 256), 8, pick(1, 4),
            pick(1, 4)), 10, {"pixels": floats(pick(64, 12544), pick(16, 261)), "labels": below(1000)}),
        Net("sloped_lm", lambda: sequences.SlopedLM(vocab, pick(32, 768), pick(4, 12), pick(2, 8)), 6,
            {"tokens": below(vocab, pick(32, 1024))}, ("bf16", "amp", "fp32", "tf32")),
        Net("encoder_decoder", lambda: sequences.EncoderDecoder(vocab, pick(32, 512), 8, pick(2, 6), 512), 64,
            {"tokens": below(vocab, pick(24, 192)), "targets": below(vocab, pick(16, 160)),
             "padding": padding(pick(24, 192))}),
        Net("tacotron", lambda: speech.Tacotron(60, pick(32, 512), bands), 64,
            {"symbols": below(60, pick(20, 120)), "frames": floats(pick(12, 40), bands)}, WITH_FP32_WEIGHTS),
        Net("recogniser", lambda: speech.Recogniser(bands, pick(32, 640), pick(1, 3), 29), 24,
            {"frames": floats(frames, bands), "symbols": below(28, pick(10, 100))}, WITH_FP32_WEIGHTS),
        Net("transducer", lambda: speech.Transducer(bands, pick(32, 512), pick(2, 10), pick(30, 512)), 40,
            {"frames": floats(pick(40, 400), bands), "symbols": below(pick(30, 512), pick(8, 60))}),
        Net("convolutional_lstm", lambda: speech.ConvolutionalLstm(3, pick(8, 128), pick(1, 2)), 16,
            {"film": floats(pick(4, 16), 3, pick(32, 128), pick(32, 128))}, WITH_FP32_WEIGHTS),
        Net("separator", lambda: speech.Separator(pick(64, 512), pick(32, 600), pick(1, 3)), 32,
            {"waves": floats(pick(2000, 48000)), "voices": floats(2, pick(2000, 48000))}, WITH_FP32_WEIGHTS),
        Net("switch_encoder",
            lambda: speech.SwitchEncoder(vocab, pick(32, 512), 8, pick(2, 6), experts, capacity), 32, tokens),
    ]  # fmt: skip


def other_nets(tiny: bool) -> list[Net]:
    def pick(small: int, full: int) -> int:
        return small if tiny else full

    points = pick(64, 2048)
    rays = {name: floats(3) for name in ("origins", "directions", "colors")}
    words, rows = below(pick(100, 200_000), pick(8, 48)), pick(50, 100_000)
    return [
        Net("point_net", lambda: others.PointNet(50), 96,
            {"points": floats(points, 3), "parts": below(50, points)}, WITH_FP32_WEIGHTS),
        Net("neighbour_graph", lambda: others.NeighbourGraph((64, 64, 128, 256), pick(5, 20)), 48,
            {"points": floats(pick(32, 1024), 3), "labels": below(40)}, WITH_FP32_WEIGHTS),
        Net("graph_attention", lambda: others.GraphAttention(pick(16, 128), pick(32, 256), 8, 3, 40), 100,
            {"features": nodes(pick(20, 2000), pick(16, 128)), "edges": edges(pick(20, 2000), pick(60, 16000)),
             "labels": nodes(pick(20, 2000), limit=40)}, WITH_FP32_WEIGHTS),
        Net("folding", lambda: others.Folding(pick(16, 128), 4, pick(1, 6)), 2,
            {"residues": below(21, pick(16, 256)), "distances": below(64, pick(16, 256), pick(16, 256))}),
        Net("flow", lambda: others.Flow(pick(8, 64), pick(16, 1024), pick(2, 12)), 65536,
            {"samples": floats(pick(8, 64))}, ("bf16", "fp32", "tf32")),
        Net("forecast", lambda: others.Forecast(pick(16, 336), pick(8, 96), pick(32, 1024), pick(2, 24)), 16384,
            {"past": floats(pick(16, 336)), "future": floats(pick(8, 96))}, ("bf16", "fp32", "tf32")),
        Net("tabular_transformer",
            lambda: others.TabularTransformer(pick(4, 30), (pick(10, 1000),) * pick(2, 12), pick(32, 192), 8, 4), 2048,
            {"numbers": floats(pick(4, 30)), "categories": below(pick(10, 1000), pick(2, 12)), "targets": floats()}),
        Net("heat_equation", lambda: others.HeatEquation(pick(16, 256), pick(2, 6)), 262144,
            {"inside": floats(2), "edge": floats(2), "values": floats()}, ("fp32", "tf32")),
        Net("two_towers", lambda: others.TwoTowers(pick(100, 200_000), pick(32, 512), pick(16, 512)), 32768,
            {"questions": words, "documents": words}),
        Net("cross_net", lambda: others.CrossNet(rows, 26, pick(4, 64), 3), 49152,
            {"categories": below(rows, 26), "clicks": floats()}),
        Net("radiance_field", lambda: others.RadianceField(pick(32, 256), 10, pick(8, 96)), 12288, rays),
        Net("player", lambda: others.Player(6), 10240,
            {"frames": floats(4, 84, 84), "actions": below(6), "before": floats(), "gains": floats()}),
    ]  # fmt: skip


def drawn_case(net: Net, tiny: bool) -> Case:
    """The same draws for the small case as for the full one."""
    draw = random.Random(f"{SEED} {net.name}")
    precision = draw.choice(net.precisions)
    optimizer = draw.choice(OPTIMIZERS)
    rows = max(1, round(net.rows * draw.choice((0.6, 0.8, 1.0, 1.2))))
    clip = draw.choice((None, None, None, 1.0))
    micro_batches = draw.choice((1, 1, 1, 2))
    channels_last = net.may_be_channels_last and draw.random() < 0.5
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32

    def build() -> nn.Module:
        convert: Any = net.build().to  # the memory format is missing from its type
        return convert(memory_format=torch.channels_last) if channels_last else convert()

    def batch(device: str) -> dict[str, Tensor]:
        return {
            name: to_layout(field(2 if tiny else rows, device, dtype), channels_last)
            for name, field in net.fields.items()
        }

    return Case(
        name=f"{net.name}_{precision}",
        build=build,
        batch=batch,
        precision=precision,
        optimizer=optimizer,
        clip_grad_norm=clip,
        micro_batches=micro_batches,
    )


def to_layout(tensor: Tensor, channels_last: bool) -> Tensor:
    is_image = channels_last and tensor.ndim == 4
    return tensor.contiguous(memory_format=torch.channels_last) if is_image else tensor


def survey_nets(tiny: bool = False) -> tuple[list[Case], list[Case]]:
    """The cases to develop with and the blind ones."""
    cases = [drawn_case(net, tiny) for group in (image_nets, sequence_nets, other_nets) for net in group(tiny)]
    order = random.Random(SEED).sample(range(len(cases)), len(cases))
    development = set(order[:NUM_DEVELOPMENT])
    return (
        [case for number, case in enumerate(cases) if number in development],
        [case for number, case in enumerate(cases) if number not in development],
    )
