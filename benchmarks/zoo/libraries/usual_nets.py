"""Small nets in plain torch, as users write them by hand.

Written afresh for the usual part, in the order of its list; each in the style of the tutorials that people start from,
with their names. zoo/libraries/usual_own.py has their sizes and how they are trained.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor


class CausalSelfAttention(nn.Module):
    """With the scores written out, as in the first version of everybody's GPT."""

    def __init__(self, width: int, heads: int, block: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.key, self.query, self.value = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.proj = nn.Linear(width, width)
        self.attn_drop, self.resid_drop = nn.Dropout(dropout), nn.Dropout(dropout)
        self.register_buffer("tril", torch.tril(torch.ones(block, block)))

    def forward(self, x: Tensor) -> Tensor:
        B, T, C = x.shape
        q, k, v = (
            layer(x).view(B, T, self.heads, C // self.heads).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        wei = q @ k.transpose(-2, -1) * (C // self.heads) ** -0.5
        wei = wei.masked_fill(self.tril[:T, :T] == 0, float("-inf"))
        wei = self.attn_drop(F.softmax(wei, dim=-1))
        out = (wei @ v).transpose(1, 2).contiguous().view(B, T, C)
        return self.resid_drop(self.proj(out))


class CharBlock(nn.Module):
    def __init__(self, width: int, heads: int, block: int, dropout: float) -> None:
        super().__init__()
        self.sa = CausalSelfAttention(width, heads, block, dropout)
        self.ffwd = nn.Sequential(
            nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width), nn.Dropout(dropout)
        )
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.sa(self.ln1(x))
        return x + self.ffwd(self.ln2(x))


class CharTransformer(nn.Module):
    def __init__(self, vocab: int, width: int, layers: int, heads: int, block: int, dropout: float = 0.2) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(vocab, width)
        self.position_embedding = nn.Embedding(block, width)
        self.blocks = nn.Sequential(*[CharBlock(width, heads, block, dropout) for _ in range(layers)])
        self.ln_f = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, vocab)

    def forward(self, idx: Tensor) -> Tensor:
        pos = torch.arange(idx.shape[1], device=idx.device)
        x = self.token_embedding(idx) + self.position_embedding(pos)
        return self.lm_head(self.ln_f(self.blocks(x)))


class RMSNorm(nn.Module):
    def __init__(self, dim: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        normed = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.eps)
        return normed.type_as(x) * self.weight


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    x1, x2 = x.float().chunk(2, dim=-1)
    return torch.cat([x1 * cos - x2 * sin, x1 * sin + x2 * cos], dim=-1).type_as(x)


class LlamaBlock(nn.Module):
    def __init__(self, dim: int, heads: int, kv_heads: int, hidden: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, dim // heads
        self.wq = nn.Linear(dim, heads * self.head_dim, bias=False)
        self.wk = nn.Linear(dim, kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(dim, kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)
        self.w1, self.w3 = nn.Linear(dim, hidden, bias=False), nn.Linear(dim, hidden, bias=False)
        self.w2 = nn.Linear(hidden, dim, bias=False)
        self.attention_norm, self.ffn_norm = RMSNorm(dim), RMSNorm(dim)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        B, T, C = x.shape
        h = self.attention_norm(x)
        q = self.wq(h).view(B, T, self.heads, self.head_dim).transpose(1, 2)
        k = self.wk(h).view(B, T, self.kv_heads, self.head_dim).transpose(1, 2)
        v = self.wv(h).view(B, T, self.kv_heads, self.head_dim).transpose(1, 2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        repeats = self.heads // self.kv_heads
        k, v = k.repeat_interleave(repeats, dim=1), v.repeat_interleave(repeats, dim=1)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.wo(out.transpose(1, 2).reshape(B, T, C))
        h = self.ffn_norm(x)
        return x + self.w2(F.silu(self.w1(h)) * self.w3(h))


class Llama(nn.Module):
    def __init__(
        self, vocab: int, dim: int, layers: int, heads: int, kv_heads: int, hidden: int, block: int, theta: float = 1e4
    ) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList([LlamaBlock(dim, heads, kv_heads, hidden) for _ in range(layers)])
        self.norm = RMSNorm(dim)
        self.output = nn.Linear(dim, vocab, bias=False)
        self.output.weight = self.tok_embeddings.weight
        freqs = 1.0 / theta ** (torch.arange(0, dim // heads, 2).float() / (dim // heads))
        angles = torch.outer(torch.arange(block).float(), freqs)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x, T = self.tok_embeddings(tokens), tokens.shape[1]
        for layer in self.layers:
            x = layer(x, self.cos[:T], self.sin[:T])
        return self.output(self.norm(x)).float()


class LSTMModel(nn.Module):
    def __init__(self, vocab: int, emb: int, hidden: int, layers: int, dropout: float, tied: bool = False) -> None:
        super().__init__()
        self.drop = nn.Dropout(dropout)
        self.encoder = nn.Embedding(vocab, emb)
        self.rnn = nn.LSTM(emb, hidden, layers, batch_first=True, dropout=dropout)
        self.decoder = nn.Linear(hidden, vocab)
        if tied:
            self.decoder.weight = self.encoder.weight

    def forward(self, tokens: Tensor) -> Tensor:
        output, _ = self.rnn(self.drop(self.encoder(tokens)))
        return self.decoder(self.drop(output))


class MultiHeadAttention(nn.Module):
    def __init__(self, dim: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.scale = heads, (dim // heads) ** -0.5
        self.to_qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.dropout = nn.Dropout(dropout)
        self.to_out = nn.Sequential(nn.Linear(dim, dim), nn.Dropout(dropout))

    def forward(self, x: Tensor) -> Tensor:
        B, N, D = x.shape
        qkv = self.to_qkv(x).reshape(B, N, 3, self.heads, D // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        attn = self.dropout((torch.matmul(q, k.transpose(-1, -2)) * self.scale).softmax(dim=-1))
        return self.to_out(torch.matmul(attn, v).transpose(1, 2).reshape(B, N, D))


class ViTBlock(nn.Module):
    def __init__(self, dim: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = MultiHeadAttention(dim, heads, dropout)
        self.mlp = nn.Sequential(
            nn.Linear(dim, 4 * dim), nn.GELU(), nn.Dropout(dropout), nn.Linear(4 * dim, dim), nn.Dropout(dropout)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    def __init__(self, side: int, patch: int, dim: int, depth: int, heads: int, classes: int, dropout: float) -> None:
        super().__init__()
        self.patch_embed = nn.Conv2d(3, dim, patch, patch)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos_embed = nn.Parameter(torch.randn(1, (side // patch) ** 2 + 1, dim) * 0.02)
        self.blocks = nn.Sequential(*[ViTBlock(dim, heads, dropout) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patch_embed(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(x.shape[0], -1, -1), x], dim=1) + self.pos_embed
        return self.head(self.norm(self.blocks(x))[:, 0])


class ConvVAE(nn.Module):
    def __init__(self, side: int, widths: tuple[int, ...], latent: int) -> None:
        super().__init__()
        encoder: list[nn.Module] = []
        for before, after in pairwise((3, *widths)):
            encoder += [nn.Conv2d(before, after, 3, stride=2, padding=1), nn.BatchNorm2d(after), nn.LeakyReLU()]
        self.encoder = nn.Sequential(*encoder)
        self.shape = (widths[-1], side >> len(widths), side >> len(widths))
        flat = math.prod(self.shape)
        self.fc_mu, self.fc_var = nn.Linear(flat, latent), nn.Linear(flat, latent)
        self.decoder_input = nn.Linear(latent, flat)
        decoder: list[nn.Module] = []
        back = (*widths[::-1], widths[0])
        for before, after in pairwise(back):
            decoder += [
                nn.ConvTranspose2d(before, after, 3, stride=2, padding=1, output_padding=1),
                nn.BatchNorm2d(after),
                nn.LeakyReLU(),
            ]
        self.decoder = nn.Sequential(*decoder, nn.Conv2d(widths[0], 3, 3, padding=1), nn.Tanh())

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = self.encoder(x).flatten(1)
        mu, logvar = self.fc_mu(h), self.fc_var(h)
        z = mu + torch.randn_like(mu) * torch.exp(0.5 * logvar)
        return self.decoder(self.decoder_input(z).view(-1, *self.shape)), mu, logvar


class BasicBlock(nn.Module):
    def __init__(self, in_planes: int, planes: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_planes, planes, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.shortcut = nn.Sequential()
        if stride != 1 or in_planes != planes:
            self.shortcut = nn.Sequential(
                nn.Conv2d(in_planes, planes, 1, stride=stride, bias=False), nn.BatchNorm2d(planes)
            )

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out)) + self.shortcut(x)
        return F.relu(out)


class SmallResNet(nn.Module):
    """ResNet for images of 32 x 32, as most of CIFAR's repositories have it."""

    def __init__(self, width: int, blocks: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        layers, planes = [], width
        for stage, count in enumerate(blocks):
            for number in range(count):
                after = width << stage
                layers.append(BasicBlock(planes, after, 2 if stage and not number else 1))
                planes = after
        self.layers = nn.Sequential(*layers)
        self.linear = nn.Linear(planes, classes)

    def forward(self, x: Tensor) -> Tensor:
        out = self.layers(F.relu(self.bn1(self.conv1(x))))
        return self.linear(F.adaptive_avg_pool2d(out, 1).flatten(1))


class DLRM(nn.Module):
    """Clicks by dense features, categories, and products of each with each."""

    def __init__(
        self, tables: tuple[int, ...], dim: int, dense: int, bottom: tuple[int, ...], top: tuple[int, ...]
    ) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList([nn.EmbeddingBag(rows, dim, mode="sum") for rows in tables])
        self.bottom = mlp(dense, *bottom, dim)
        pairs = (len(tables) + 1) * len(tables) // 2
        self.top = mlp(dim + pairs, *top, 1)
        self.register_buffer("pairs", torch.tril_indices(len(tables) + 1, len(tables) + 1, offset=-1))

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        x = F.relu(self.bottom(dense))
        looked_up = [table(sparse[:, i : i + 1]) for i, table in enumerate(self.embeddings)]
        features = torch.stack([x, *looked_up], dim=1)
        products = torch.bmm(features, features.transpose(1, 2))
        return self.top(torch.cat([x, products[:, self.pairs[0], self.pairs[1]]], dim=1)).squeeze(1)


def mlp(*widths: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class PositionalEncoding(nn.Module):
    def __init__(self, d_model: int, dropout: float, max_len: int) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        position = torch.arange(max_len).float().unsqueeze(1)
        div_term = torch.exp(torch.arange(0, d_model, 2).float() * (-math.log(10000.0) / d_model))
        pe = torch.stack([torch.sin(position * div_term), torch.cos(position * div_term)], dim=2).flatten(1)
        self.register_buffer("pe", pe.unsqueeze(0))

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(x + self.pe[:, : x.size(1)])


class SeriesTransformer(nn.Module):
    """Forecasts with torch's own encoder layers."""

    def __init__(
        self, features: int, horizon: int, d_model: int, nhead: int, layers: int, length: int, norm_first: bool
    ) -> None:
        super().__init__()
        self.input_proj = nn.Linear(features, d_model)
        self.pos = PositionalEncoding(d_model, 0.1, length)
        layer = nn.TransformerEncoderLayer(
            d_model, nhead, 4 * d_model, dropout=0.1, activation="gelu", batch_first=True, norm_first=norm_first
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(d_model, horizon)

    def forward(self, series: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(series.size(1), device=series.device, dtype=series.dtype)
        x = self.encoder(self.pos(self.input_proj(series)), mask=mask, is_causal=True)
        return self.head(x[:, -1])


class GraphConvolution(nn.Module):
    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)

    def forward(self, x: Tensor, adj: Tensor) -> Tensor:
        return torch.bmm(adj, self.linear(x))


class DenseGCN(nn.Module):
    """Molecules as dense matrices of neighbours, normalised as in Kipf's."""

    def __init__(self, features: int, hidden: int, layers: int, classes: int) -> None:
        super().__init__()
        self.embed = nn.Linear(features, hidden)
        self.convs = nn.ModuleList([GraphConvolution(hidden, hidden) for _ in range(layers)])
        self.norms = nn.ModuleList([nn.BatchNorm1d(hidden) for _ in range(layers)])
        self.readout = nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Dropout(0.5), nn.Linear(hidden, classes))

    def forward(self, x: Tensor, adj: Tensor) -> Tensor:
        adj = adj + torch.eye(adj.size(-1), device=adj.device, dtype=adj.dtype)
        deg = adj.sum(-1).clamp(min=1).pow(-0.5)
        adj = deg.unsqueeze(-1) * adj * deg.unsqueeze(-2)
        x = self.embed(x)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            h = norm(conv(x, adj).transpose(1, 2)).transpose(1, 2)
            x = x + F.dropout(F.relu(h), 0.1, self.training)
        return self.readout(x.mean(dim=1))


class ActorCritic(nn.Module):
    """For games that are seen: the convolutions of DQN, a policy and a value."""

    def __init__(self, channels: tuple[int, int, int], hidden: int, actions: int) -> None:
        super().__init__()
        first, second, third = channels
        self.network = nn.Sequential(
            nn.Conv2d(4, first, 8, stride=4), nn.ReLU(),
            nn.Conv2d(first, second, 4, stride=2), nn.ReLU(),
            nn.Conv2d(second, third, 3, stride=1), nn.ReLU(),
            nn.Flatten(), nn.Linear(third * 7 * 7, hidden), nn.ReLU(),
        )  # fmt: skip
        self.actor = nn.Linear(hidden, actions)
        self.critic = nn.Linear(hidden, 1)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.network(obs / 255.0)
        return self.actor(hidden), self.critic(hidden).squeeze(-1)


class WaveNet(nn.Module):
    def __init__(self, residual: int, skip: int, stacks: int, layers: int, classes: int = 256) -> None:
        super().__init__()
        self.embed = nn.Embedding(classes, residual)
        dilations = [2**i for _ in range(stacks) for i in range(layers)]
        self.pads = dilations
        self.gates = nn.ModuleList([nn.Conv1d(residual, 2 * residual, 2, dilation=d) for d in dilations])
        self.residuals = nn.ModuleList([nn.Conv1d(residual, residual, 1) for _ in dilations])
        self.skips = nn.ModuleList([nn.Conv1d(residual, skip, 1) for _ in dilations])
        self.out = nn.Sequential(nn.ReLU(), nn.Conv1d(skip, skip, 1), nn.ReLU(), nn.Conv1d(skip, classes, 1))

    def forward(self, samples: Tensor) -> Tensor:
        x = self.embed(samples).transpose(1, 2)
        skips = 0
        for pad, gate, residual, skip in zip(self.pads, self.gates, self.residuals, self.skips, strict=True):
            filtered, gated = gate(F.pad(x, (pad, 0))).chunk(2, dim=1)
            h = torch.tanh(filtered) * torch.sigmoid(gated)
            skips = skips + skip(h)
            x = x + residual(h)
        return self.out(skips)


class ContrastiveNet(nn.Module):
    """SimCLR: a ResNet and a projection."""

    def __init__(self, width: int, blocks: tuple[int, ...], hidden: int, out: int) -> None:
        super().__init__()
        self.encoder = SmallResNet(width, blocks, 1)
        features = self.encoder.linear.in_features
        self.encoder.linear = nn.Identity()
        self.projector = nn.Sequential(
            nn.Linear(features, hidden, bias=False), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, out)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.projector(self.encoder(x))


class EmbeddedMLP(nn.Module):
    """Tables: categories are looked up and stand beside the numbers."""

    def __init__(
        self, cardinalities: tuple[int, ...], numbers: int, hidden: tuple[int, ...], outputs: int, dropout: float
    ) -> None:
        super().__init__()
        sizes = [min(600, round(1.6 * count**0.56)) for count in cardinalities]
        self.embeds = nn.ModuleList(
            [nn.Embedding(count, size) for count, size in zip(cardinalities, sizes, strict=True)]
        )
        self.emb_drop = nn.Dropout(0.04)
        self.bn_cont = nn.BatchNorm1d(numbers)
        layers: list[nn.Module] = []
        for before, after in pairwise((sum(sizes) + numbers, *hidden)):
            layers += [nn.Linear(before, after), nn.ReLU(inplace=True), nn.BatchNorm1d(after), nn.Dropout(dropout)]
        self.layers = nn.Sequential(*layers, nn.Linear(hidden[-1], outputs))

    def forward(self, cats: Tensor, nums: Tensor) -> Tensor:
        x = torch.cat([embed(cats[:, i]) for i, embed in enumerate(self.embeds)], dim=1)
        return self.layers(torch.cat([self.emb_drop(x), self.bn_cont(nums)], dim=1))


class Generator(nn.Module):
    """Of DCGAN."""

    def __init__(self, nz: int, ngf: int, levels: int) -> None:
        super().__init__()
        width = ngf << (levels - 1)
        layers = [nn.ConvTranspose2d(nz, width, 4, 1, 0, bias=False), nn.BatchNorm2d(width), nn.ReLU(True)]
        for _ in range(levels - 1):
            layers += [
                nn.ConvTranspose2d(width, width // 2, 4, 2, 1, bias=False), nn.BatchNorm2d(width // 2), nn.ReLU(True),
            ]  # fmt: skip
            width //= 2
        self.main = nn.Sequential(*layers, nn.ConvTranspose2d(width, 3, 4, 2, 1, bias=False), nn.Tanh())

    def forward(self, noise: Tensor) -> Tensor:
        return self.main(noise[:, :, None, None])


class Discriminator(nn.Module):
    def __init__(self, ndf: int, levels: int) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, ndf, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, inplace=True)]
        for level in range(levels - 1):
            layers += [
                nn.Conv2d(ndf << level, ndf << (level + 1), 4, 2, 1, bias=False), nn.BatchNorm2d(ndf << (level + 1)),
                nn.LeakyReLU(0.2, inplace=True),
            ]  # fmt: skip
        self.main = nn.Sequential(*layers, nn.Conv2d(ndf << (levels - 1), 1, 4, 1, 0, bias=False))

    def forward(self, images: Tensor) -> Tensor:
        return self.main(images).flatten()


class GAN(nn.Module):
    """Both halves; while the generator learns, the other's weights take no gradients."""

    def __init__(self, nz: int, width: int, levels: int) -> None:
        super().__init__()
        self.netG = Generator(nz, width, levels)
        self.netD = Discriminator(width, levels)

    def forward(self, real: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        fake = self.netG(noise)
        on_real, on_fake = self.netD(real), self.netD(fake.detach())
        self.netD.requires_grad_(False)
        fooled = self.netD(fake)
        self.netD.requires_grad_(True)
        return on_real, on_fake, fooled
