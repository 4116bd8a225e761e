"""Nets in plain torch for the second blind test: diffusion, recurrent, graph and recommender nets, and adapters.

Each computes its own loss from what its batch names. Nothing here was measured before it was predicted.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


def step_embedding(steps: Tensor, width: int) -> Tensor:
    """Sines and cosines of a diffusion step, as transformers embed positions."""
    rates = torch.exp(torch.arange(width // 2, device=steps.device) * (-math.log(10000.0) / (width // 2)))
    angles = steps[:, None].float() * rates
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


class ResidualBlock(nn.Module):
    """Two convolutions behind group norms, the diffusion step added in between."""

    def __init__(self, channels: int, out: int, step_width: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.GroupNorm(32, channels), nn.SiLU(), nn.Conv2d(channels, out, 3, padding=1))
        self.step = nn.Linear(step_width, out)
        self.second = nn.Sequential(
            nn.GroupNorm(32, out), nn.SiLU(), nn.Dropout(0.1), nn.Conv2d(out, out, 3, padding=1)
        )
        self.skip = nn.Conv2d(channels, out, 1) if channels != out else nn.Identity()

    def forward(self, x: Tensor, step: Tensor) -> Tensor:
        hidden = self.first(x) + self.step(F.silu(step))[:, :, None, None]
        return self.second(hidden) + self.skip(x)


class PixelAttention(nn.Module):
    """Self-attention between the pixels of a feature map."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.GroupNorm(32, channels)
        self.qkv = nn.Conv2d(channels, 3 * channels, 1)
        self.out = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        size, channels, height, width = x.shape
        qkv = self.qkv(self.norm(x)).reshape(size, 3, self.heads, channels // self.heads, height * width)
        query, key, value = qkv.transpose(-1, -2).unbind(1)
        mixed = F.scaled_dot_product_attention(query, key, value)
        return x + self.out(mixed.transpose(-1, -2).reshape(size, channels, height, width))


class DiffusionUNet(nn.Module):
    """Predicts the noise of an image; attention on the two smallest of four resolutions."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        widths = [channels, 2 * channels, 3 * channels, 4 * channels]
        step_width = 4 * channels
        self.channels = channels
        self.embed = nn.Sequential(nn.Linear(channels, step_width), nn.SiLU(), nn.Linear(step_width, step_width))
        self.enter = nn.Conv2d(3, channels, 3, padding=1)
        self.down, self.shrink = nn.ModuleList(), nn.ModuleList()
        previous, skips = channels, []
        for level, width in enumerate(widths):
            for _ in range(2):
                attention = PixelAttention(width, width // 64) if level > 1 else nn.Identity()
                self.down.append(nn.ModuleList([ResidualBlock(previous, width, step_width), attention]))
                skips.append(width)
                previous = width
            self.shrink.append(nn.Conv2d(width, width, 3, 2, 1) if level < 3 else nn.Identity())
        self.middle = nn.ModuleList([ResidualBlock(previous, previous, step_width), PixelAttention(previous, 4)])
        self.up, self.grow = nn.ModuleList(), nn.ModuleList()
        for level, width in reversed(list(enumerate(widths))):
            for _ in range(2):
                attention = PixelAttention(width, width // 64) if level > 1 else nn.Identity()
                self.up.append(nn.ModuleList([ResidualBlock(previous + skips.pop(), width, step_width), attention]))
                previous = width
            self.grow.append(nn.Conv2d(width, width, 3, padding=1) if level else nn.Identity())
        self.leave = nn.Sequential(nn.GroupNorm(32, channels), nn.SiLU(), nn.Conv2d(channels, 3, 3, padding=1))

    def forward(self, images: Tensor, noise: Tensor, steps: Tensor) -> Tensor:
        step = self.embed(step_embedding(steps, self.channels))
        share = torch.cos(steps.float() * (math.pi / 2000.0))[:, None, None, None]
        x = self.enter(images * share + noise * (1.0 - share.square()).sqrt())
        kept = []
        for level in range(4):
            for block, attention in self.down[2 * level : 2 * level + 2]:
                x = attention(block(x, step))
                kept.append(x)
            x = self.shrink[level](x)
        x = self.middle[1](self.middle[0](x, step))
        for level in range(4):
            for block, attention in self.up[2 * level : 2 * level + 2]:
                x = attention(block(torch.cat([x, kept.pop()], dim=1), step))
            if level < 3:
                x = self.grow[level](F.interpolate(x, scale_factor=2.0, mode="nearest"))
        return F.mse_loss(self.leave(x), noise)


class DiTBlock(nn.Module):
    """A transformer block whose norms are shifted, scaled and gated by the diffusion step and the class."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width, elementwise_affine=False, eps=1e-6) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width))
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        shifts = self.modulation(condition).unsqueeze(1).chunk(6, dim=-1)
        normed = self.norms[0](x) * (1 + shifts[1]) + shifts[0]
        size, length, width = x.shape
        qkv = self.qkv(normed).view(size, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*qkv.unbind(0)).transpose(1, 2).reshape(size, length, width)
        x = x + shifts[2] * self.out(mixed)
        return x + shifts[5] * self.mlp(self.norms[1](x) * (1 + shifts[4]) + shifts[3])


class DiT(nn.Module):
    """A diffusion transformer on latents of four channels."""

    def __init__(self, width: int, depth: int, heads: int, side: int) -> None:
        super().__init__()
        self.width, self.is_checkpointed = width, False
        self.patch = nn.Conv2d(4, width, 2, 2)
        self.place = nn.Parameter(torch.randn(1, side * side // 4, width) * 0.02)
        self.step = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width))
        self.label = nn.Embedding(1001, width)
        self.blocks = nn.ModuleList(DiTBlock(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.leave = nn.Linear(width, 2 * 2 * 4)

    def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs: dict[str, bool]) -> None:
        assert gradient_checkpointing_kwargs == {"use_reentrant": False}
        self.is_checkpointed = True

    def forward(self, latents: Tensor, noise: Tensor, steps: Tensor, labels: Tensor) -> Tensor:
        size, channels, height, width = latents.shape
        x = self.patch(latents + noise).flatten(2).transpose(1, 2) + self.place
        condition = self.step(step_embedding(steps, 256).to(x.dtype)) + self.label(labels)
        for block in self.blocks:
            x = checkpoint(block, x, condition, use_reentrant=False) if self.is_checkpointed else block(x, condition)
        patches = self.leave(self.norm(x)).view(size, height // 2, width // 2, 2, 2, channels)
        predicted = patches.permute(0, 5, 1, 3, 2, 4).reshape(size, channels, height, width)
        return F.mse_loss(predicted, noise)


class VariationalAutoencoder(nn.Module):
    """Strided convolutions down, transposed ones up, batch norms between them."""

    def __init__(self, channels: int, depth: int) -> None:
        super().__init__()
        widths = [channels * 2**level for level in range(depth)]

        def stage(layer: nn.Module, width: int) -> nn.Sequential:
            return nn.Sequential(layer, nn.BatchNorm2d(width), nn.LeakyReLU(0.2, inplace=True))

        pairs = list(zip([3, *widths], widths, strict=False))
        self.encoder = nn.Sequential(*(stage(nn.Conv2d(a, b, 4, 2, 1), b) for a, b in pairs))
        self.mean, self.log_variance = nn.Conv2d(widths[-1], 64, 1), nn.Conv2d(widths[-1], 64, 1)
        self.enter = nn.Conv2d(64, widths[-1], 1)
        self.decoder = nn.Sequential(
            *(stage(nn.ConvTranspose2d(b, a, 4, 2, 1), a) for a, b in reversed(pairs[1:])),
            nn.ConvTranspose2d(widths[0], 3, 4, 2, 1),
        )

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.encoder(images)
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        latent = mean + torch.randn_like(mean) * torch.exp(0.5 * log_variance)
        decoded = torch.sigmoid(self.decoder(self.enter(latent)))
        divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).mean()
        return F.l1_loss(decoded, images) + 0.01 * divergence


class Tagger(nn.Module):
    """A bidirectional LSTM that tags every token."""

    def __init__(self, vocab: int, width: int, layers: int, tags: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.rnn = nn.LSTM(width, width, layers, batch_first=True, dropout=0.3, bidirectional=True)
        self.head = nn.Linear(2 * width, tags)

    def forward(self, tokens: Tensor, tags: Tensor) -> Tensor:
        hidden, _ = self.rnn(F.dropout(self.embed(tokens), 0.3, self.training))
        return F.cross_entropy(self.head(hidden).flatten(0, 1), tags.flatten())


class Translator(nn.Module):
    """A GRU encoder and a GRU cell that attends to it, one target token at a time."""

    def __init__(self, vocab: int, width: int) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(vocab, width), nn.Embedding(vocab, width)
        self.encoder = nn.GRU(width, width, 2, batch_first=True)
        self.keys = nn.Linear(width, width)
        self.cell = nn.GRUCell(2 * width, width)
        self.head = nn.Linear(2 * width, vocab)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        encoded, last = self.encoder(self.source(tokens))
        keys, state = self.keys(encoded), last[-1]
        outputs = []
        for word in self.target(targets).unbind(1):
            weights = torch.softmax(torch.bmm(keys, state.unsqueeze(2)).squeeze(2), dim=-1)
            context = torch.bmm(weights.unsqueeze(1), encoded).squeeze(1)
            state = self.cell(torch.cat([word, context], dim=-1), state)
            outputs.append(torch.cat([state, context], dim=-1))
        logits = self.head(torch.stack(outputs, dim=1))
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), targets[:, 1:].flatten())


class GraphLayer(nn.Module):
    """Messages along edges, gated, summed at their targets, divided by how many came."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.message, self.gate = nn.Linear(2 * width, width), nn.Linear(2 * width, width)
        self.update = nn.Sequential(nn.Linear(2 * width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))
        self.norm = nn.LayerNorm(width)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        source, target = edges
        pair = torch.cat([nodes[source], nodes.index_select(0, target)], dim=-1)
        messages = torch.sigmoid(self.gate(pair)) * self.message(pair)
        summed = torch.zeros_like(nodes).index_add(0, target, messages)
        count = nodes.new_zeros(len(nodes)).scatter_add(0, target, nodes.new_ones(len(target))).clamp(min=1)
        return self.norm(nodes + self.update(torch.cat([nodes, summed / count[:, None]], dim=-1)))


class GraphNet(nn.Module):
    """Classifies the nodes of a graph."""

    def __init__(self, features: int, width: int, depth: int, classes: int) -> None:
        super().__init__()
        self.enter = nn.Linear(features, width)
        self.layers = nn.ModuleList(GraphLayer(width) for _ in range(depth))
        self.leave = nn.Linear(width, classes)

    def forward(self, features: Tensor, edges: Tensor, labels: Tensor) -> Tensor:
        nodes = F.relu(self.enter(features))
        for layer in self.layers:
            nodes = layer(nodes, edges)
        return F.cross_entropy(self.leave(nodes), labels)


class Recommender(nn.Module):
    """Bags of embeddings, their pairwise products, a deep and a wide perceptron."""

    def __init__(self, tables: int, rows: int, width: int) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(tables))
        self.bottom = nn.Sequential(nn.Linear(13, 512), nn.ReLU(), nn.Linear(512, width), nn.ReLU())
        pairs = (tables + 1) * tables // 2
        self.register_buffer("pairs", torch.tril_indices(tables + 1, tables + 1, -1), persistent=False)
        self.top = nn.Sequential(
            nn.Linear(pairs + width, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1)
        )

    def forward(self, numbers: Tensor, categories: Tensor, clicks: Tensor) -> Tensor:
        dense = self.bottom(numbers)
        rows = torch.stack([dense, *(bag(ids) for bag, ids in zip(self.bags, categories, strict=True))], dim=1)
        products = torch.bmm(rows, rows.transpose(1, 2))
        lower, upper = self.pairs
        return F.binary_cross_entropy_with_logits(
            self.top(torch.cat([dense, products[:, lower, upper]], dim=1)).squeeze(1), clicks
        )


class PromptTuned(nn.Module):
    """A frozen language model behind trained embeddings."""

    def __init__(self, model: nn.Module, length: int, width: int) -> None:
        super().__init__()
        self.model = model.requires_grad_(False)
        self.prompt = nn.Parameter(torch.randn(length, width) * 0.02)

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        words = self.model.get_input_embeddings()(input_ids)
        prompt = self.prompt.expand(len(words), -1, -1)
        ignored = labels.new_full((len(words), len(self.prompt)), -100)
        output = self.model(inputs_embeds=torch.cat([prompt, words], dim=1), labels=torch.cat([ignored, labels], dim=1))
        return output.loss


class Scaled(nn.Module):
    """A frozen linear layer whose outputs are scaled by a trained vector."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.scale = nn.Parameter(base.weight.new_ones(base.out_features))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) * self.scale


def add_scales(model: nn.Module, names: tuple[str, ...]) -> nn.Module:
    """Freeze the model and scale the outputs of every linear layer with one of these names."""
    model.requires_grad_(False)
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if name in names and isinstance(child, nn.Linear):
                setattr(parent, name, Scaled(child))
    return model
