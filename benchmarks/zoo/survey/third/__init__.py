"""The survey's third draw of nets in plain torch: a seed chose 28 of these names, and which of them are blind.

In: whether they are to be small (a CPU then trains them in seconds). Out: cases by name. `NAMES` was written down
first; then a generator with a fixed seed took 8 of them to develop with and 20 that are predicted before they are
measured, and only those were written. Precision, optimizer, batch, clipping and accumulation are drawn as those of the
first draw (zoo/survey).
"""

from __future__ import annotations

import random

from zoo.case import Case
from zoo.survey import ANY, Net, below, drawn_case, floats
from zoo.survey.further import slow
from zoo.survey.third import diffusion, images, others, sound, texts, tokens, vision

NAMES = (
    "latent_diffusion", "mm_dit", "control_net", "video_dit", "kl_autoencoder", "naf_net", "rrdb", "fcos",
    "detection_transformer", "hourglass", "bise_net", "swin_unetr", "coat_net", "max_vit", "rep_lk_net", "mobile_vit",
    "visual_attention_net", "self_distillation", "masked_autoencoder", "image_text", "captioner", "line_reader",
    "mono_depth", "hash_radiance", "mla_lm", "dropless_experts", "sliding_window_lm", "chunked_delta",
    "state_space_duality", "multi_token_lm", "preference_pair", "lora_lm", "sound_codec", "ecapa_tdnn", "branchformer",
    "matcha_speech", "sequential_recommender", "hstu", "xdeep_fm", "graph_transformer", "mesh_graph", "impala",
    "diffusion_policy", "patch_series", "times_net", "tab_net", "fourier_operator", "lora_vit",
)  # fmt: skip
SEED, NUM_CHOSEN, NUM_DEVELOPMENT = 20261118, 28, 8


def image_nets(tiny: bool) -> list[Net]:
    def pick(small: int, full: int) -> int:
        return small if tiny else full

    side, sizes = pick(64, 224), (32, 64) if tiny else (64, 128, 256, 512)
    depths, labels = (1, 1) if tiny else (2, 2, 5, 2), {"labels": below(1000)}
    photos = {"images": floats(3, side, side)} | labels
    crop = (3, pick(64, 512), pick(64, 1024))
    found = {"matches": below(pick(10, 100), 12), "labels": below(91, 12), "boxes": floats(12, 4)}
    stages = (1, 1) if tiny else (2, 2, 18, 2)
    return [
        Net("max_vit", lambda: images.MaxVit(pick(32, 64), sizes, depths, pick(4, 7)), 64, photos, ANY, True),
        Net("rep_lk_net", lambda: images.RepLkNet(pick(16, 128), stages, (31, 29, 27, 13)[: len(stages)]), 24, photos,
            ANY, True),
        Net("visual_attention_net", lambda: images.VisualAttentionNet((16, 32) if tiny else (64, 128, 320, 512),
            (1, 1) if tiny else (3, 3, 12, 3)), 96, photos, ANY, True),
        Net("coat_net", lambda: images.CoatNet(side, pick(32, 64), (32, 32, 64, 64) if tiny else (96, 192, 384, 768),
            (1, 1, 1, 1) if tiny else (2, 3, 5, 2)), 128, photos, ANY, True),
        Net("rrdb", lambda: images.Rrdb(pick(16, 64), pick(8, 32), pick(1, 16)), 16,
            {"small": floats(3, pick(16, 64), pick(16, 64)), "large": floats(3, pick(64, 256), pick(64, 256))}, ANY,
            True),
        Net("bise_net", lambda: vision.BiseNet(pick(8, 64), 19), 8,
            {"images": floats(*crop), "classes": below(19, *crop[1:])}, ANY, True),
        Net("detection_transformer",
            lambda: vision.DetectionTransformer(pick(8, 64), (1, 1) if tiny else (3, 4, 6, 3), pick(32, 256),
            pick(1, 4), pick(10, 100), 91), 8,
            {"images": floats(3, pick(64, 640), pick(64, 800)), **found}, ANY, True),
        Net("swin_unetr", lambda: vision.SwinUnetr(pick(16, 48), pick(4, 6), pick(2, 4), 14), 2,
            {"volumes": floats(1, *[pick(16, 96)] * 3), "classes": below(14, *[pick(16, 96)] * 3)}),
        Net("lora_vit", lambda: texts.LoraVit(side, pick(32, 1024), pick(2, 16), pick(2, 24), 8), 160,
            {"images": floats(3, side, side), "labels": below(100)}),
        Net("masked_autoencoder",
            lambda: texts.MaskedAutoencoder(side, pick(32, 768), pick(2, 12), pick(2, 12), pick(64, 512), pick(1, 8)),
            160, {"images": floats(3, side, side)}),
    ]  # fmt: skip


def diffusion_nets(tiny: bool) -> list[Net]:
    def pick(small: int, full: int) -> int:
        return small if tiny else full

    scales, side = (1, 2) if tiny else (1, 2, 4, 4), pick(64, 256)
    words = {"words": floats(pick(7, 77), pick(32, 768))}
    latent = {"latents": floats(4, side // 4, side // 4), "steps": below(1000), **words}
    return [
        Net("kl_autoencoder", lambda: diffusion.KlAutoencoder(pick(32, 128), scales, pick(1, 2), pick(8, 64)), 3,
            {"images": floats(3, side, side)}, ANY, True),
        Net("control_net", lambda: diffusion.ControlNet(pick(32, 192), scales, pick(1, 2), pick(32, 768), 8), 16,
            {**latent, "drawing": floats(3, 2 * side, 2 * side)}, ANY, True),
        Net("latent_diffusion", lambda: diffusion.LatentDiffusion(pick(32, 256), scales, pick(1, 2), pick(32, 768), 8),
            14, latent, ANY, True),
        Net("mm_dit", lambda: tokens.MmDit(16, pick(4, 32), pick(32, 4096), pick(32, 1152), pick(2, 18), pick(2, 12)),
            16, {"latents": floats(16, pick(8, 64), pick(8, 64)), "words": floats(pick(5, 154), pick(32, 4096)),
                 "pooled": floats(768)}),
        Net("video_dit", lambda: tokens.VideoDit(pick(32, 768), pick(2, 12), pick(2, 8), 101), 3,
            {"film": floats(pick(3, 16), 4, pick(8, 32), pick(8, 32)), "steps": below(1000), "labels": below(101)}),
    ]  # fmt: skip


def text_nets(tiny: bool) -> list[Net]:
    def pick(small: int, full: int) -> int:
        return small if tiny else full

    vocab = pick(100, 32000)
    sight = pick(28, 224)
    return [
        Net("mla_lm", lambda: tokens.MlaLM(vocab, pick(64, 2048), pick(2, 16), pick(16, 512), pick(2, 5)), 4,
            {"tokens": below(vocab, pick(32, 2048))}),
        Net("lora_lm", lambda: texts.LoraLM(vocab, pick(64, 1536), pick(4, 16), pick(2, 12), 16), 4,
            {"tokens": below(vocab, pick(32, 512))}),
        Net("chunked_delta", lambda: texts.ChunkedDelta(vocab, pick(32, 768), pick(2, 6), pick(1, 2), pick(8, 64)), 16,
            {"tokens": below(vocab, pick(32, 1024))}),
        Net("multi_token_lm", lambda: texts.MultiTokenLM(vocab, pick(64, 1024), pick(4, 16), pick(2, 10), 2), 8,
            {"tokens": below(vocab, pick(32, 1024))}),
        Net("captioner", lambda: texts.Captioner(pick(32, 1024), pick(2, 12), vocab, pick(32, 1024), pick(2, 16),
            pick(2, 8)), 8, {"images": floats(3, sight, sight), "tokens": below(vocab, pick(12, 128))}),
    ]  # fmt: skip


def other_nets(tiny: bool) -> list[Net]:
    def pick(small: int, full: int) -> int:
        return small if tiny else full

    steps, columns, rows = pick(3, 20), pick(5, 26), pick(50, 400_000)
    series, strides = pick(2, 21), (2, 2) if tiny else (2, 4, 5, 8)
    rays = {"origins": floats(3), "directions": floats(3), "harmonics": floats(16), "colors": floats(3)}
    return [
        Net("impala", lambda: others.Impala((4, 8, 8) if tiny else (16, 32, 32), pick(16, 256), 15), 160,
            {"frames": floats(steps, 4, 84, 84), "actions": below(15, steps), "before": floats(steps),
             "gains": floats(steps)}),
        Net("line_reader", lambda: others.LineReader(pick(8, 64), pick(16, 256), 96), 512,
            {"lines": floats(1, 32, pick(64, 320)), "symbols": below(95, pick(5, 25))}, ANY, True),
        Net("fourier_operator", lambda: others.FourierOperator(pick(8, 64), pick(4, 16), 4), 128,
            {"field": floats(pick(16, 128), pick(16, 128)), "later": floats(pick(16, 128), pick(16, 128))}),
        Net("hash_radiance", lambda: others.HashRadiance(pick(2, 16), pick(1024, 2**19), pick(16, 64), pick(4, 64)),
            32768, rays),
        Net("xdeep_fm", lambda: others.XDeepFm(rows, columns, pick(4, 16), (8, 8) if tiny else (128, 128, 128),
            pick(16, 400)), 12288, {"categories": below(rows, columns), "clicks": floats()}),
        Net("times_net", lambda: others.TimesNet(series, pick(16, 96), pick(8, 96), pick(8, 64), pick(1, 2),
            (8, 4) if tiny else (24, 96, 48, 12, 8)), 160,
            {"past": floats(pick(16, 96), series), "coming": floats(pick(8, 96), series)}),
        Net("branchformer", lambda: sound.Branchformer(pick(16, 80), pick(32, 256), 4, pick(1, 8), pick(20, 500)), 64,
            {"frames": floats(pick(80, 1000), pick(16, 80)), "symbols": below(pick(19, 499), pick(6, 60))}),
        Net("sound_codec", lambda: sound.SoundCodec(pick(8, 32), strides, pick(16, 128), pick(2, 8), pick(16, 1024)),
            32, {"wave": floats(1, pick(2400, 24000))}),
    ]  # fmt: skip


def chosen_names() -> tuple[list[str], list[str]]:
    """Those to develop with and the blind ones."""
    order = random.Random(SEED).sample(NAMES, NUM_CHOSEN)
    return order[:NUM_DEVELOPMENT], order[NUM_DEVELOPMENT:]


def third_nets(tiny: bool = False) -> tuple[list[Case], list[Case]]:
    """The cases to develop with and the blind ones."""
    nets = [net for group in (image_nets, diffusion_nets, text_nets, other_nets) for net in group(tiny)]
    cases = {net.name: slow(drawn_case(net, tiny)) for net in nets}
    development, blind = chosen_names()
    return [cases[name] for name in development], [cases[name] for name in blind]
