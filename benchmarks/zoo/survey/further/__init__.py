"""The survey's second draw of nets in plain torch: a seed chose 34 of these names, and which of them are blind.

In: whether they are to be small (a CPU then trains them in seconds). Out: cases by name. `NAMES` was written down
first; then a generator with a fixed seed took 12 of them to develop with and 22 that are predicted before they are
measured, and only those were written. Precision, optimizer, batch, clipping and accumulation are drawn as those of the
first draw (zoo/survey).
"""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial

from zoo.case import Case
from zoo.survey import ANY, WITH_FP32_WEIGHTS, Net, below, drawn_case, edges, floats, nodes, padding
from zoo.survey.further import images, others, sequences, sound, texts, vision

NAMES = (
    "ghost_net", "res2net", "repvgg", "yolo", "center_net", "psp_net", "seg_net", "cycle_gan", "pix2pix", "big_gan",
    "masked_autoencoder", "sim_clr", "byol", "vgg", "squeeze_net", "xception", "bottleneck_transformer", "slow_fast",
    "stereo_matcher", "unet_plus", "capsules", "siren", "neural_ode", "arc_face", "score_net", "glow", "slot_attention",
    "style_transfer", "wave_glow", "hifi_gan", "conformer", "quartz_net", "fast_speech", "text_cnn", "lstm_crf",
    "conv_s2s", "transformer_xl", "universal_transformer", "selective_scan", "informer", "patch_series",
    "temporal_fusion", "deep_ar", "pointer_network", "turing_machine", "retention", "receptance", "char_elmo",
    "quasi_recurrent", "decision_transformer", "demucs", "conv_tasnet", "dual_path", "x_vector", "graph_sage",
    "isomorphism_net", "sch_net", "equivariant_net", "deep_fm", "deep_interest", "auto_int", "wide_deep",
    "sequential_recommender", "multi_gate", "dueling_dqn", "world_model", "tab_net", "made", "hyper_network",
    "set_transformer", "point_transformer", "fourier_operator", "mixture_density", "triplet_net",
)  # fmt: skip
SEED, NUM_CHOSEN, NUM_DEVELOPMENT = 20261117, 34, 12
RATE = 1e-5
"""Small, since a step is skipped, and shorter, when training has left the range of float16."""


def image_nets(tiny: bool) -> list[Net]:
    def pick(small: int, full: int) -> int:
        return small if tiny else full

    side, wide = pick(64, 256), pick(64, 512)
    views = {"left": floats(3, side, wide), "right": floats(3, side, wide), "truth": floats(side, wide)}
    return [
        Net("stereo_matcher", lambda: images.StereoMatcher(pick(8, 32), pick(16, 128)), 8, views),
        Net("yolo", lambda: images.Yolo(pick(8, 32), 1, pick(5, 80)), 40,
            {"images": floats(3, pick(64, 512), pick(64, 512)), "cells": below(pick(12, 768), 20),
             "boxes": floats(20, 4), "classes": below(pick(5, 80), 20)}, ANY, True),
        Net("style_transfer", lambda: images.StyleTransfer(pick(8, 32), pick(1, 5), pick(8, 64)), 16,
            {"images": floats(3, side, side)}, ANY, True),
        Net("cycle_gan", lambda: images.CycleGan(pick(8, 64), pick(1, 9)), 6,
            {"horses": floats(3, side, side), "zebras": floats(3, side, side)}, ANY, True),
        Net("ghost_net", lambda: images.GhostNet(1.0, pick(5, 13)), 160,
            {"images": floats(3, pick(64, 224), pick(64, 224)), "labels": below(1000)}, ANY, True),
        Net("glow", lambda: images.Glow(pick(2, 3), pick(1, 12), pick(16, 512)), 320,
            {"images": floats(3, 32, 32)}, WITH_FP32_WEIGHTS),
        Net("neural_ode", lambda: vision.NeuralOde(pick(8, 64), pick(1, 6)), 512,
            {"images": floats(3, 32, 32), "labels": below(10)}, ANY, True),
        Net("triplet_net", lambda: vision.TripletNet(pick(8, 64), pick(3, 5), pick(16, 256), pick(32, 128)), 224,
            {"images": floats(3, pick(32, 128), pick(32, 128)), "people": below(16)}, ANY, True),
        Net("sim_clr", lambda: vision.SimClr(pick(8, 64), pick(1, 2), pick(8, 128)), 1536,
            {"first": floats(3, 32, 32), "second": floats(3, 32, 32)}, ANY, True),
        Net("pix2pix", lambda: vision.Pix2Pix(pick(8, 64), pick(4, 8)), 32,
            {"maps": floats(3, side, side), "photos": floats(3, side, side)}, ANY, True),
        Net("unet_plus", lambda: vision.UNetPlus(pick(8, 32), pick(3, 5)), 16,
            {"images": floats(3, side, side), "masks": floats(side, side)}, ANY, True),
        Net("world_model", lambda: vision.WorldModel(pick(8, 48), pick(16, 600), pick(4, 32), 6), 160,
            {"frames": floats(pick(3, 24), 3, 64, 64), "actions": below(6, pick(3, 24)),
             "rewards": floats(pick(3, 24))}),
    ]  # fmt: skip


def sequence_nets(tiny: bool) -> list[Net]:
    def pick(small: int, full: int) -> int:
        return small if tiny else full

    vocab, cities, words = pick(100, 16000), pick(6, 50), pick(8, 64)
    return [
        Net("pointer_network", lambda: sequences.PointerNetwork(pick(16, 256)), 1024,
            {"cities": floats(cities, 2), "tour": below(cities, cities)}),
        Net("selective_scan", lambda: sequences.SelectiveScan(vocab, pick(32, 384), pick(4, 16), pick(2, 4)), 5,
            {"tokens": below(vocab, pick(24, 512))}),
        Net("turing_machine", lambda: sequences.TuringMachine(8, pick(16, 128), pick(16, 128), pick(8, 32)), 2048,
            {"sequence": floats(pick(4, 10), 8)}),
        Net("char_elmo", lambda: sequences.CharElmo(pick(8, 1), pick(16, 512), pick(16, 1024), vocab), 48,
            {"letters": below(262, words, pick(10, 50)), "words": below(vocab, words)}),
        Net("retention", lambda: sequences.RetentionLM(vocab, pick(32, 768), pick(2, 6), pick(2, 8)), 8,
            {"tokens": below(vocab, pick(32, 1024))}),
        Net("receptance", lambda: sequences.Receptance(vocab, pick(32, 1024), pick(1, 3)), 128,
            {"tokens": below(vocab, pick(8, 28))}),
        Net("lstm_crf", lambda: sequences.LstmCrf(pick(100, 50000), pick(16, 300), pick(16, 512), pick(5, 45)), 512,
            {"words": below(pick(100, 50000), words), "tags": below(pick(5, 45), words), "absent": padding(words)}),
        Net("universal_transformer",
            lambda: texts.UniversalTransformer(vocab, pick(32, 512), 8, pick(2, 8)), 24,
            {"tokens": below(vocab, pick(24, 512))}),
        Net("quasi_recurrent", lambda: texts.QuasiRecurrent(vocab, pick(32, 640), pick(1, 3)), 96,
            {"tokens": below(vocab, pick(8, 96))}),
        Net("deep_ar", lambda: texts.DeepAr(pick(10, 3000), 7, pick(16, 128), pick(1, 3)), 2048,
            {"values": floats(pick(16, 192)), "covariates": floats(pick(16, 192), 7),
             "which": below(pick(10, 3000))}),
        Net("informer", lambda: texts.Informer(7, pick(32, 512), 8, pick(2, 3), pick(8, 96)), 96,
            {"past": floats(pick(32, 768), 7), "coming": floats(pick(8, 96), 7)}),
    ]  # fmt: skip


def sound_nets(tiny: bool) -> list[Net]:
    def pick(small: int, full: int) -> int:
        return small if tiny else full

    letters, frames = pick(10, 120), pick(24, 700)
    return [
        Net("hifi_gan", lambda: sound.HifiGan(pick(8, 80), pick(32, 256), (8, 8, 2, 2), pick(4, 32)), 48,
            {"bands": floats(pick(8, 80), pick(8, 32)), "wave": floats(1, pick(2048, 8192))}, WITH_FP32_WEIGHTS),
        Net("conformer", lambda: sound.Conformer(pick(16, 80), pick(32, 256), 4, pick(1, 12), pick(7, 31), 128), 24,
            {"frames": floats(pick(80, 1000), pick(16, 80)), "symbols": below(127, pick(6, 60))}),
        Net("fast_speech", lambda: sound.FastSpeech(70, pick(16, 256), pick(1, 4), pick(8, 80)), 32,
            {"symbols": below(70, letters), "absent": padding(letters), "spoken": below(letters, frames),
             "pitches": below(256, letters), "frames": floats(frames, pick(8, 80))}),
        Net("dual_path", lambda: sound.DualPath(pick(16, 64), pick(16, 64), pick(8, 128), pick(10, 100), pick(1, 4)),
            8, {"mixture": floats(pick(800, 32000)), "voices": floats(2, pick(800, 32000))}),
    ]  # fmt: skip


def other_nets(tiny: bool) -> list[Net]:
    def pick(small: int, full: int) -> int:
        return small if tiny else full

    columns = pick(5, 39)
    items, kinds, past = pick(100, 500_000), pick(10, 5000), pick(8, 100)
    history = {"items": below(items, past), "kinds": below(kinds, past), "absent": padding(past)}
    return [
        Net("set_transformer", lambda: others.SetTransformer(pick(16, 256), 4, pick(4, 32), pick(1, 3)), 96,
            {"points": floats(pick(32, 2048), 3), "labels": below(40)}),
        Net("deep_interest", lambda: others.DeepInterest(items, kinds, pick(4, 64)), 24576,
            {"item": below(items), "kind": below(kinds), **history, "clicks": floats()}),
        Net("equivariant_net", lambda: others.EquivariantNet(pick(16, 128), pick(1, 4)), 24000,
            {"charges": nodes(5, 1), "places": nodes(5, 3), "edges": edges(5, 20), "later": nodes(5, 3)}),
        Net("sch_net", lambda: others.SchNet(pick(16, 128), pick(10, 50), pick(1, 4)), 1280,
            {"atoms": nodes(20, limit=100), "places": nodes(20, 3), "pairs": edges(20, 300), "forces": nodes(20, 3)},
            ("fp32", "tf32")),
        Net("deep_fm", lambda: others.DeepFm(pick(100, 1_000_000), columns, pick(4, 32), pick(16, 512)), 262144,
            {"categories": below(pick(100, 1_000_000), columns), "weights": floats(columns), "clicks": floats()}),
        Net("multi_gate", lambda: others.MultiGate(pick(100, 300_000), columns, pick(4, 24), pick(2, 8), pick(16, 512),
            3), 98304, {"categories": below(pick(100, 300_000), columns), "answers": floats(3)}),
        Net("point_transformer", lambda: others.PointTransformer(pick(8, 64), pick(2, 4), pick(4, 16)), 96,
            {"points": floats(pick(64, 1024), 3), "labels": below(40)}, WITH_FP32_WEIGHTS),
    ]  # fmt: skip


def chosen_names() -> tuple[list[str], list[str]]:
    """Those to develop with and the blind ones."""
    order = random.Random(SEED).sample(NAMES, NUM_CHOSEN)
    return order[:NUM_DEVELOPMENT], order[NUM_DEVELOPMENT:]


def slow(case: Case) -> Case:
    return replace(case, optimizer=partial(case.optimizer, lr=RATE))


def further_nets(tiny: bool = False) -> tuple[list[Case], list[Case]]:
    """The cases to develop with and the blind ones."""
    groups = (image_nets, sequence_nets, sound_nets, other_nets)
    nets = [net for group in groups for net in group(tiny)]
    cases = {net.name: slow(drawn_case(net, tiny)) for net in nets}
    development, blind = chosen_names()
    return [cases[name] for name in development], [cases[name] for name in blind]
