"""How nets that users write by hand are trained, and their sizes.

Out: `OWN`, by the names that usual_families.py has; the nets are those of zoo/libraries/usual_nets.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.libraries import Trained, Written
from zoo.libraries import usual_nets as nets
from zoo.survey import ANY, WITH_FP32_WEIGHTS, Field, Net, below, floats


def trained(make: Callable[[], nn.Module], loss: Callable[..., Tensor], fields: dict[str, Field], **others: Any) -> Net:
    return Net("own", lambda: Trained(make(), loss), 32, fields, **{"precisions": ANY, **others})


def next_token(net: nn.Module, tokens: Tensor, targets: Tensor) -> Tensor:
    logits = net(tokens)
    return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))


def classify(net: nn.Module, labels: Tensor, **inputs: Tensor) -> Tensor:
    return F.cross_entropy(net(*inputs.values()), labels)


def regress(net: nn.Module, targets: Tensor, **inputs: Tensor) -> Tensor:
    return F.mse_loss(net(*inputs.values()), targets)


def clicked(net: nn.Module, clicks: Tensor, **inputs: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(net(**inputs), clicks)


def vae_loss(net: nn.Module, images: Tensor) -> Tensor:
    recons, mu, logvar = net(images)
    kld = torch.mean(-0.5 * torch.sum(1 + logvar - mu**2 - logvar.exp(), dim=1), dim=0)
    return F.mse_loss(recons, images) + 0.00025 * kld


def ppo(
    net: nn.Module, obs: Tensor, actions: Tensor, old_logprobs: Tensor, advantages: Tensor, returns: Tensor
) -> Tensor:
    logits, values = net(obs)
    logprobs = F.log_softmax(logits, dim=-1)
    ratio = (logprobs.gather(1, actions.unsqueeze(1)).squeeze(1) - old_logprobs).exp()
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    policy = torch.max(-advantages * ratio, -advantages * torch.clamp(ratio, 0.8, 1.2)).mean()
    entropy = -(logprobs.exp() * logprobs).sum(-1).mean()
    return policy - 0.01 * entropy + 0.5 * ((values - returns) ** 2).mean()


def lm(kind: Callable[..., nn.Module], vocab: int, length: int, **sizes: Any) -> Net:
    fields = {"tokens": below(vocab, length), "targets": below(vocab, length)}
    return trained(lambda: kind(vocab, **sizes), next_token, fields)


def char_transformer(vocab: int, length: int, **sizes: Any) -> Net:
    return lm(nets.CharTransformer, vocab, length, block=length, **sizes)


def llama_by_hand(vocab: int, length: int, **sizes: Any) -> Net:
    return lm(nets.Llama, vocab, length, block=length, **sizes)


def lstm_lm(vocab: int, length: int, **sizes: Any) -> Net:
    return lm(nets.LSTMModel, vocab, length, **sizes)


def vit_by_hand(side: int, classes: int, **sizes: Any) -> Net:
    fields = {"images": floats(3, side, side), "labels": below(classes)}
    return trained(lambda: nets.ViT(side, classes=classes, **sizes), classify, fields)


def conv_vae(side: int, **sizes: Any) -> Net:
    fields = {"images": floats(3, side, side)}
    return trained(lambda: nets.ConvVAE(side, **sizes), vae_loss, fields, may_be_channels_last=True)


def small_resnet(classes: int, side: int, **sizes: Any) -> Net:
    fields = {"images": floats(3, side, side), "labels": below(classes)}
    return trained(lambda: nets.SmallResNet(classes=classes, **sizes), classify, fields, may_be_channels_last=True)


def recommender(tables: tuple[int, ...], dense: int, **sizes: Any) -> Net:
    """All categories are drawn from the rows of the smallest table."""
    fields = {"dense": floats(dense), "sparse": below(min(tables), len(tables)), "clicks": floats()}
    return trained(lambda: nets.DLRM(tables, dense=dense, **sizes), clicked, fields, precisions=WITH_FP32_WEIGHTS)


def series_transformer(length: int, features: int, horizon: int, **sizes: Any) -> Net:
    fields = {"series": floats(length, features), "targets": floats(horizon)}
    return trained(lambda: nets.SeriesTransformer(features, horizon, length=length, **sizes), regress, fields)


def dense_graph(nodes: int, features: int, classes: int, **sizes: Any) -> Net:
    def linked(rows: int, device: str, dtype: torch.dtype) -> Tensor:
        """Made on the CPU: on the GPU the wider numbers would take memory that the step does not know of."""
        return torch.randint(0, 2, (rows, nodes, nodes)).to(dtype).to(device)

    fields = {"x": floats(nodes, features), "adj": linked, "labels": below(classes)}
    return trained(lambda: nets.DenseGCN(features, classes=classes, **sizes), classify, fields)


def actor_critic(actions: int, **sizes: Any) -> Net:
    fields = {
        "obs": floats(4, 84, 84), "actions": below(actions), "old_logprobs": floats(), "advantages": floats(),
        "returns": floats(),
    }  # fmt: skip
    return trained(lambda: nets.ActorCritic(actions=actions, **sizes), ppo, fields, may_be_channels_last=True)


def wave_net(length: int, **sizes: Any) -> Net:
    def predict(net: nn.Module, samples: Tensor) -> Tensor:
        return F.cross_entropy(net(samples)[:, :, :-1], samples[:, 1:])

    return trained(lambda: nets.WaveNet(**sizes), predict, {"samples": below(256, length)})


def tabular_mlp(cardinalities: tuple[int, ...], numbers: int, outputs: int, **sizes: Any) -> Net:
    """All categories are drawn from those that the smallest column has."""
    fields = {"cats": below(min(cardinalities), len(cardinalities)), "nums": floats(numbers), "labels": below(outputs)}
    return trained(
        lambda: nets.EmbeddedMLP(cardinalities, numbers, outputs=outputs, **sizes), classify, fields,
        precisions=WITH_FP32_WEIGHTS,
    )  # fmt: skip


def contrastive(side: int, **sizes: Any) -> Net:
    """Two views of each image are to be like each other, and unlike all others."""

    def nt_xent(net: nn.Module, first: Tensor, second: Tensor) -> Tensor:
        z = F.normalize(net(torch.cat([first, second])), dim=1)
        n = len(first)
        scores = (z @ z.T).float() / 0.5
        scores = scores.masked_fill(torch.eye(2 * n, dtype=torch.bool, device=z.device), -1e9)
        return F.cross_entropy(scores, torch.arange(2 * n, device=z.device).roll(n))

    fields = {"first": floats(3, side, side), "second": floats(3, side, side)}
    return trained(lambda: nets.ContrastiveNet(**sizes), nt_xent, fields, may_be_channels_last=True)


def gan(nz: int, levels: int, **sizes: Any) -> Net:
    """One step of both halves."""

    def play(net: nn.Module, real: Tensor, noise: Tensor) -> Tensor:
        on_real, on_fake, fooled = net(real, noise)
        judged = F.binary_cross_entropy_with_logits(on_real, torch.ones_like(on_real))
        judged = judged + F.binary_cross_entropy_with_logits(on_fake, torch.zeros_like(on_fake))
        return judged + F.binary_cross_entropy_with_logits(fooled, torch.ones_like(fooled))

    side = 4 << levels
    fields = {"real": floats(3, side, side), "noise": floats(nz)}
    return trained(lambda: nets.GAN(nz, levels=levels, **sizes), play, fields, may_be_channels_last=True)


OWN: dict[str, Written] = {
    "char_transformer": Written(
        char_transformer, {"vocab": 65, "length": 16, "width": 32, "layers": 2, "heads": 2},
        {"lecture": {"vocab": 65, "width": 384, "layers": 6, "heads": 6},
         "wide": {"vocab": 8192, "width": 512, "layers": 8, "heads": 8}},
        {"length": (128, 256, 512)},
    ),
    "llama_by_hand": Written(
        llama_by_hand,
        {"vocab": 100, "length": 16, "dim": 32, "layers": 2, "heads": 4, "kv_heads": 2, "hidden": 64},
        {"stories_15m": {"vocab": 32000, "dim": 288, "layers": 6, "heads": 6, "kv_heads": 6, "hidden": 768},
         "stories_110m": {"vocab": 32000, "dim": 768, "layers": 12, "heads": 12, "kv_heads": 12, "hidden": 2048},
         "grouped": {"vocab": 50257, "dim": 1024, "layers": 12, "heads": 16, "kv_heads": 4, "hidden": 2816}},
        {"length": (256, 512, 1024)},
    ),
    "lstm_lm": Written(
        lstm_lm, {"vocab": 100, "length": 8, "emb": 16, "hidden": 16, "layers": 2, "dropout": 0.2},
        {"word": {"vocab": 33278, "emb": 650, "hidden": 650, "layers": 2, "dropout": 0.5, "tied": True},
         "example": {"vocab": 33278, "emb": 200, "hidden": 200, "layers": 2, "dropout": 0.2},
         "large": {"vocab": 10000, "emb": 1024, "hidden": 1500, "layers": 2, "dropout": 0.65}},
        {"length": (35, 70, 128)},
    ),
    "vit_by_hand": Written(
        vit_by_hand, {"side": 16, "classes": 5, "patch": 4, "dim": 32, "depth": 2, "heads": 2, "dropout": 0.1},
        {"cifar": {"side": 32, "classes": 10, "patch": 4, "dim": 512, "depth": 6, "heads": 8},
         "small": {"side": 224, "classes": 1000, "patch": 16, "dim": 384, "depth": 12, "heads": 6},
         "base": {"side": 224, "classes": 100, "patch": 16, "dim": 768, "depth": 12, "heads": 12},
         "tiny_imagenet": {"side": 64, "classes": 200, "patch": 8, "dim": 384, "depth": 9, "heads": 12}},
        {"dropout": (0.0, 0.1)},
    ),
    "conv_vae": Written(
        conv_vae, {"side": 16, "widths": (8, 16), "latent": 8},
        {"faces": {"side": 64, "widths": (32, 64, 128, 256, 512), "latent": 128},
         "large_faces": {"side": 128, "widths": (64, 128, 256, 512, 512), "latent": 256},
         "wide": {"side": 64, "widths": (64, 128, 256, 512), "latent": 256}},
    ),
    "small_resnet": Written(
        small_resnet, {"classes": 5, "side": 16, "width": 8, "blocks": (1, 1)},
        {"18": {"width": 64, "blocks": (2, 2, 2, 2)}, "34": {"width": 64, "blocks": (3, 4, 6, 3)},
         "wide": {"width": 160, "blocks": (4, 4, 4)}},
        {"classes": (10, 100), "side": (32, 32, 64)},
    ),
    "recommender": Written(
        recommender, {"tables": (50, 40), "dense": 4, "dim": 8, "bottom": (16,), "top": (16,)},
        {"criteo": {"tables": (100_000,) * 13 + (1_000,) * 13, "dense": 13, "dim": 64, "bottom": (512, 256),
                    "top": (512, 256)},
         "wide": {"tables": (200_000,) * 8 + (10_000,) * 18, "dense": 13, "dim": 128, "bottom": (512, 256),
                  "top": (1024, 1024, 512, 256)},
         "films": {"tables": (162_541, 59_047, 1_000, 21), "dense": 8, "dim": 64, "bottom": (128,),
                   "top": (512, 256, 128)}},
    ),
    "series_transformer": Written(
        series_transformer,
        {"length": 16, "features": 3, "horizon": 4, "d_model": 16, "nhead": 2, "layers": 2, "norm_first": False},
        {"small": {"features": 7, "horizon": 24, "d_model": 128, "nhead": 8, "layers": 3},
         "base": {"features": 21, "horizon": 96, "d_model": 512, "nhead": 8, "layers": 6},
         "wide": {"features": 64, "horizon": 48, "d_model": 768, "nhead": 12, "layers": 8}},
        {"length": (96, 168, 336, 512), "norm_first": (False, True)},
    ),
    "dense_graph": Written(
        dense_graph, {"nodes": 8, "features": 5, "classes": 3, "hidden": 16, "layers": 2},
        {"molecules": {"nodes": 64, "features": 75, "classes": 12, "hidden": 256, "layers": 5},
         "proteins": {"nodes": 256, "features": 29, "classes": 2, "hidden": 512, "layers": 6},
         "roads": {"nodes": 325, "features": 24, "classes": 12, "hidden": 768, "layers": 9}},
    ),
    "actor_critic": Written(
        actor_critic, {"channels": (8, 8, 8), "hidden": 16, "actions": 4},
        {"atari": {"channels": (32, 64, 64)}, "wide": {"channels": (64, 128, 128)}},
        {"hidden": (512, 1024), "actions": (4, 6, 18)},
    ),
    "wave_net": Written(
        wave_net, {"length": 200, "residual": 8, "skip": 16, "stacks": 1, "layers": 3},
        {"small": {"residual": 64, "skip": 256, "stacks": 3, "layers": 10},
         "wide": {"residual": 128, "skip": 256, "stacks": 2, "layers": 10}},
        {"length": (8000, 16000)},
    ),
    "tabular_mlp": Written(
        tabular_mlp, {"cardinalities": (9, 5), "numbers": 3, "hidden": (16, 8), "outputs": 2, "dropout": 0.1},
        {"shops": {"cardinalities": (1115, 7, 12, 31, 4, 24, 26, 12, 8, 22), "numbers": 16, "hidden": (1000, 500),
                   "outputs": 2},
         "adult": {"cardinalities": (9, 16, 7, 15, 6, 5, 42), "numbers": 6, "hidden": (512, 512, 512, 512),
                   "outputs": 2},
         "covertype": {"cardinalities": (40, 4), "numbers": 10, "hidden": (1024,) * 6, "outputs": 7},
         "wide": {"cardinalities": (50_000, 10_000, 1_000, 1_000, 300, 100, 60, 24), "numbers": 64,
                  "hidden": (2048, 2048, 1024, 1024, 512), "outputs": 10}},
        {"dropout": (0.0, 0.1, 0.5)},
    ),
    "contrastive": Written(
        contrastive, {"side": 16, "width": 8, "blocks": (1, 1), "hidden": 16, "out": 8},
        {"18": {"width": 64, "blocks": (2, 2, 2, 2), "hidden": 512},
         "34": {"width": 64, "blocks": (3, 4, 6, 3), "hidden": 512},
         "wide": {"width": 128, "blocks": (2, 2, 2, 2), "hidden": 2048}},
        {"side": (32, 32, 64, 96), "out": (64, 128)},
    ),
    "gan": Written(
        gan, {"nz": 16, "width": 8, "levels": 2},
        {"faces": {"width": 64, "levels": 4}, "large_faces": {"width": 64, "levels": 5},
         "cifar": {"width": 64, "levels": 3}, "wide": {"width": 128, "levels": 4}},
        {"nz": (100, 128)},
    ),
}  # fmt: skip
