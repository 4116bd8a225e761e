"""The survey's fourth draw of nets in plain torch: a seed chose 23 of these names, all of them blind.

In: whether they are to be small (a CPU then trains them in seconds). Out: cases by name. `NAMES` was written down
first; then a generator with a fixed seed took those that are predicted before they are measured, and only those were
written. Precision, optimizer, batch, clipping and accumulation are drawn as those of the first draw
(zoo/survey).
"""

from __future__ import annotations

import random

from zoo.case import Case
from zoo.survey import ANY, Net, below, drawn_case, edges, floats, nodes, padding
from zoo.survey.fourth import diffusion, graphs, images, others, pairs, sound
from zoo.survey.further import slow

NAMES = (
    "griffin_lm", "mask_predict", "masked_diffusion_lm", "late_interaction", "biaffine_parser", "attention_flow",
    "reward_model", "memory_layer_lm", "byte_patches", "kernel_prediction", "cross_covariance", "mobile_one",
    "wide_resnet", "factored_video", "point_pillars", "feature_matcher", "redundancy_reduction", "momentum_contrast",
    "edge_next", "pose_lifter", "consistency_model", "u_vit", "flow_matching_sound", "palette_net", "wave_unet",
    "sepformer", "pitch_tracker", "mel_gan", "keyword_spotter", "principal_aggregation", "relational_graph",
    "message_passing", "polarised_atoms", "light_gcn", "oblivious_trees", "row_attention", "soft_actor_critic",
    "rainbow", "mu_zero", "alpha_zero", "deep_onet", "hamiltonian_net", "genome_reader", "weather_grid",
    "dot_interaction", "interest_evolution", "layered_extraction", "n_hits", "inverted_series", "inception_time",
    "traffic_graph", "lst_net",
)  # fmt: skip
SEED, NUM_CHOSEN = 20261119, 23


def image_nets(tiny: bool) -> list[Net]:
    def pick(small: int, full: int) -> int:
        return small if tiny else full

    side, photo, patch = pick(64, 224), pick(64, 256), pick(32, 128)
    labels, scales = {"labels": below(1000)}, (1, 2) if tiny else (1, 2, 4, 4)
    views = {name: floats(3, side, side) for name in ("first", "second")}
    latents = {"latents": floats(4, pick(8, 32), pick(8, 32)), "steps": below(1000), "labels": below(1000)}
    return [
        Net("mobile_one", lambda: images.MobileOne(pick(16, 48), (16, 32) if tiny else (48, 128, 256, 1024),
            (1, 1) if tiny else (2, 8, 10, 1), 4), 64, {"images": floats(3, side, side), **labels}, ANY, True),
        Net("edge_next", lambda: images.EdgeNext((16, 32) if tiny else (48, 96, 160, 304),
            (1, 2) if tiny else (3, 3, 9, 3)), 96, {"images": floats(3, photo, photo), **labels}, ANY, True),
        Net("kernel_prediction", lambda: images.KernelPrediction(8, (16, 32) if tiny else (64, 128, 256, 512), 5), 12,
            {"burst": floats(8, patch, patch), "noise": floats(1, patch, patch), "clean": floats(patch, patch)}),
        Net("factored_video", lambda: images.FactoredVideo(pick(8, 64), pick(1, 2), 400), 8,
            {"film": floats(3, pick(8, 16), pick(32, 112), pick(32, 112)), "labels": below(400)}),
        Net("redundancy_reduction", lambda: pairs.RedundancyReduction(pick(8, 64), pick(1, 2), pick(32, 4096)), 128,
            views, ANY, True),
        Net("momentum_contrast", lambda: pairs.MomentumContrast(pick(8, 64), pick(1, 2), 128, pick(64, 65536)), 128,
            views, ANY, True),
        Net("palette_net", lambda: diffusion.PaletteNet(pick(32, 64), scales, pick(1, 2), pick(1, 2)), 8,
            {"given": floats(3, patch, patch), "wanted": floats(3, patch, patch), "levels": floats()}, ANY, True),
        Net("u_vit", lambda: diffusion.UVit(pick(8, 32), 2, pick(32, 768), pick(2, 12), pick(2, 12), 1000), 16,
            latents),
    ]  # fmt: skip


def sequence_nets(tiny: bool) -> list[Net]:
    def pick(small: int, full: int) -> int:
        return small if tiny else full

    vocab, asked, told = pick(100, 30000), pick(8, 32), pick(16, 180)
    wave = pick(800, 16000)
    return [
        Net("mask_predict", lambda: others.MaskPredict(vocab, pick(32, 512), 8, pick(1, 6), 256), 96,
            {"source": below(vocab, pick(12, 96)), "target": below(vocab, pick(10, 100)),
             "absent": padding(pick(12, 96))}),
        Net("late_interaction", lambda: pairs.LateInteraction(vocab, pick(32, 768), pick(2, 12), pick(1, 6), 128, 256),
            48, {"questions": below(vocab, asked), "documents": below(vocab, told), "absent": padding(told)}),
        Net("keyword_spotter", lambda: sound.KeywordSpotter(pick(8, 64), (1, 1, 1, 1) if tiny else (2, 2, 4, 4), 5, 35),
            256, {"spectra": floats(1, 40, pick(21, 101)), "labels": below(35)}, ANY, True),
        Net("sepformer", lambda: sound.Sepformer(pick(32, 256), pick(2, 8), pick(1, 2), pick(1, 4), pick(20, 250)), 4,
            {"mixed": floats(wave), "voices": floats(2, wave)}),
        Net("inception_time", lambda: sound.InceptionTime(pick(3, 12), pick(8, 32), pick(3, 6), 20), 1024,
            {"series": floats(pick(3, 12), pick(64, 512)), "labels": below(20)}),
    ]  # fmt: skip


def graph_nets(tiny: bool) -> list[Net]:
    def pick(small: int, full: int) -> int:
        return small if tiny else full

    entities, relations, users = pick(100, 50_000), pick(5, 40), pick(50, 300_000)
    roads = pick(10, 207)
    return [
        Net("relational_graph", lambda: graphs.RelationalGraph(entities, pick(16, 128), relations, pick(2, 8), 2, 20),
            48, {"names": nodes(1000, limit=entities), "edges": edges(1000, 8000),
                 "relations": nodes(8000, limit=relations), "labels": nodes(1000, limit=20)}),
        Net("light_gcn", lambda: graphs.LightGcn(users, users // 2, pick(8, 64), 3), 1_000_000,
            {"buyers": below(users), "bought": below(users // 2), "other": below(users // 2)}),
        Net("message_passing", lambda: graphs.MessagePassing(10, 8, pick(8, 64), pick(2, 4), pick(2, 6)), 3072,
            {"atoms": nodes(18, limit=10), "pairs": edges(18, 38), "bonds": nodes(38, 8), "answers": floats(12)},
            ("bf16", "fp32", "tf32")),
        Net("polarised_atoms", lambda: graphs.PolarisedAtoms(pick(16, 128), pick(6, 20), pick(1, 3)), 512,
            {"atoms": nodes(20, limit=100), "places": nodes(20, 3), "pairs": edges(20, 300), "forces": nodes(20, 3)},
            ("fp32", "tf32")),
        Net("traffic_graph", lambda: graphs.TrafficGraph(roads, 12, pick(16, 64), 3), 256,
            {"speeds": floats(12, roads), "later": floats(roads)}),
    ]  # fmt: skip


def other_nets(tiny: bool) -> list[Net]:
    def pick(small: int, full: int) -> int:
        return small if tiny else full

    sizes = (20,) * 4 if tiny else (400_000,) * 5 + (50_000,) * 8 + (1000,) * 13
    things, past, side = pick(50, 300_000), pick(5, 50), pick(5, 19)
    rows, columns = pick(50, 300_000), pick(4, 39)
    return [
        Net("dot_interaction", lambda: others.DotInteraction(sizes, 13, pick(8, 64), pick(16, 512)), 65536,
            {"numbers": floats(13), "categories": below(min(sizes), len(sizes)), "clicks": floats()}),
        Net("interest_evolution", lambda: others.InterestEvolution(things, pick(8, 64), pick(8, 128)), 8192,
            {"clicked": below(things, past), "passed": below(things, past), "offered": below(things),
             "clicks": floats()}),
        Net("layered_extraction", lambda: others.LayeredExtraction(rows, columns, pick(4, 16), pick(16, 512), 3, 4),
            32768, {"categories": below(rows, columns), "answers": floats(3)}),
        Net("alpha_zero", lambda: others.AlphaZero(17, pick(16, 256), pick(1, 8), side), 256,
            {"boards": floats(17, side, side), "visits": floats(side * side + 1), "winners": floats()}, ANY, True),
        Net("soft_actor_critic", lambda: others.SoftActorCritic(pick(8, 376), pick(2, 17), pick(16, 1024)), 131072,
            {"states": floats(pick(8, 376)), "actions": floats(pick(2, 17)), "gains": floats(),
             "later": floats(pick(8, 376))}),
    ]  # fmt: skip


def chosen_names() -> list[str]:
    return random.Random(SEED).sample(NAMES, NUM_CHOSEN)


def fourth_nets(tiny: bool = False) -> tuple[list[Case], list[Case]]:
    """The cases to develop with, of which there are none, and the blind ones."""
    nets = [net for group in (image_nets, sequence_nets, graph_nets, other_nets) for net in group(tiny)]
    cases = {net.name: slow(drawn_case(net, tiny)) for net in nets}
    return [], [cases[name] for name in chosen_names()]
