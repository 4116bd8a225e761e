"""Small nets in plain torch, as users write them by hand: those that stood last in the order of usual_families.py.

In: sizes. Out: modules in the style of the tutorials that people start from, with their names;
zoo/libraries/usual_last_own.py has their sizes and how they are trained.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor


class DoubleConv(nn.Sequential):
    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(
            nn.Conv2d(in_channels, out_channels, 3, padding=1, bias=False), nn.BatchNorm2d(out_channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False), nn.BatchNorm2d(out_channels),
            nn.ReLU(inplace=True),
        )  # fmt: skip


class Up(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, bilinear: bool) -> None:
        super().__init__()
        if bilinear:
            self.up: nn.Module = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)
            self.conv = DoubleConv(in_channels + out_channels, out_channels)
        else:
            self.up = nn.ConvTranspose2d(in_channels, in_channels // 2, 2, stride=2)
            self.conv = DoubleConv(in_channels // 2 + out_channels, out_channels)

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        x1 = self.up(x1)
        diff_y, diff_x = x2.size(2) - x1.size(2), x2.size(3) - x1.size(3)
        x1 = F.pad(x1, [diff_x // 2, diff_x - diff_x // 2, diff_y // 2, diff_y - diff_y // 2])
        return self.conv(torch.cat([x2, x1], dim=1))


class UNet(nn.Module):
    """Segments, as the first of everybody's U-Nets has it."""

    def __init__(self, channels: int, classes: int, width: int, levels: int, bilinear: bool) -> None:
        super().__init__()
        widths = [width << level for level in range(levels + 1)]
        self.inc = DoubleConv(channels, width)
        self.downs = nn.ModuleList(
            [nn.Sequential(nn.MaxPool2d(2), DoubleConv(before, after)) for before, after in pairwise(widths)]
        )
        self.ups = nn.ModuleList([Up(before, after, bilinear) for before, after in pairwise(widths[::-1])])
        self.outc = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        skips = [self.inc(x)]
        for down in self.downs:
            skips.append(down(skips[-1]))
        x = skips.pop()
        for up in self.ups:
            x = up(x, skips.pop())
        return self.outc(x)


class SinusoidalPositionEmbeddings(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, time: Tensor) -> Tensor:
        half = self.dim // 2
        freqs = torch.exp(torch.arange(half, device=time.device) * -(math.log(10000) / (half - 1)))
        angles = time[:, None] * freqs[None, :]
        return torch.cat([angles.sin(), angles.cos()], dim=-1)


class ResnetBlock(nn.Module):
    """The time moves and stretches what the first convolution found."""

    def __init__(self, dim: int, dim_out: int, time_dim: int, dropout: float, groups: int = 8) -> None:
        super().__init__()
        self.time_mlp = nn.Sequential(nn.SiLU(), nn.Linear(time_dim, 2 * dim_out))
        self.conv1, self.norm1 = nn.Conv2d(dim, dim_out, 3, padding=1), nn.GroupNorm(groups, dim_out)
        self.conv2, self.norm2 = nn.Conv2d(dim_out, dim_out, 3, padding=1), nn.GroupNorm(groups, dim_out)
        self.dropout = nn.Dropout(dropout)
        self.res_conv = nn.Conv2d(dim, dim_out, 1) if dim != dim_out else nn.Identity()

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        scale, shift = self.time_mlp(t)[:, :, None, None].chunk(2, dim=1)
        h = F.silu(self.norm1(self.conv1(x)) * (scale + 1) + shift)
        h = F.silu(self.norm2(self.conv2(self.dropout(h))))
        return h + self.res_conv(x)


class PixelAttention(nn.Module):
    """Every place looks at all others."""

    def __init__(self, dim: int, heads: int = 4, dim_head: int = 32) -> None:
        super().__init__()
        self.heads, self.scale = heads, dim_head**-0.5
        self.norm = nn.GroupNorm(1, dim)
        self.to_qkv = nn.Conv2d(dim, 3 * heads * dim_head, 1, bias=False)
        self.to_out = nn.Conv2d(heads * dim_head, dim, 1)

    def forward(self, x: Tensor) -> Tensor:
        b, _, h, w = x.shape
        q, k, v = (part.view(b, self.heads, -1, h * w) for part in self.to_qkv(self.norm(x)).chunk(3, dim=1))
        attn = torch.einsum("bhdi,bhdj->bhij", q * self.scale, k).softmax(dim=-1)
        out = torch.einsum("bhij,bhdj->bhid", attn, v)
        return x + self.to_out(out.permute(0, 1, 3, 2).reshape(b, -1, h, w))


class LinearAttention(nn.Module):
    """The same by a sum over all places, which does not grow with their square."""

    def __init__(self, dim: int, heads: int = 4, dim_head: int = 32) -> None:
        super().__init__()
        self.heads, self.scale = heads, dim_head**-0.5
        self.norm = nn.GroupNorm(1, dim)
        self.to_qkv = nn.Conv2d(dim, 3 * heads * dim_head, 1, bias=False)
        self.to_out = nn.Sequential(nn.Conv2d(heads * dim_head, dim, 1), nn.GroupNorm(1, dim))

    def forward(self, x: Tensor) -> Tensor:
        b, _, h, w = x.shape
        q, k, v = (part.view(b, self.heads, -1, h * w) for part in self.to_qkv(self.norm(x)).chunk(3, dim=1))
        q, k = q.softmax(dim=-2) * self.scale, k.softmax(dim=-1)
        context = torch.einsum("bhdn,bhen->bhde", k, v)
        out = torch.einsum("bhde,bhdn->bhen", context, q)
        return x + self.to_out(out.reshape(b, -1, h, w))


class NoiseUNet(nn.Module):
    """Predicts the noise of images, two blocks and an attention at every level of both halves."""

    def __init__(
        self, channels: int, dim: int, dim_mults: tuple[int, ...], attended: tuple[int, ...], linear: bool,
        dropout: float,
    ) -> None:  # fmt: skip
        super().__init__()
        time_dim = 4 * dim
        self.time_mlp = nn.Sequential(
            SinusoidalPositionEmbeddings(dim), nn.Linear(dim, time_dim), nn.GELU(), nn.Linear(time_dim, time_dim)
        )
        self.init_conv = nn.Conv2d(channels, dim, 7, padding=3)
        dims = [dim, *(dim * mult for mult in dim_mults)]
        self.downs, self.ups = nn.ModuleList(), nn.ModuleList()

        def level(number: int, before: int, after: int, skipped: int, resize: nn.Module) -> nn.ModuleList:
            attention: nn.Module = nn.Identity()
            if number in attended:
                attention = LinearAttention(before) if linear else PixelAttention(before)
            first, second = (ResnetBlock(before + skipped, before, time_dim, dropout) for _ in range(2))
            return nn.ModuleList([first, second, attention, resize])

        for number, (before, after) in enumerate(pairwise(dims)):
            self.downs.append(level(number, before, after, 0, nn.Conv2d(before, after, 4, stride=2, padding=1)))
            back = nn.ConvTranspose2d(after, before, 4, stride=2, padding=1)
            self.ups.insert(0, level(number, before, after, before, back))
        self.mid_block1, self.mid_block2 = (ResnetBlock(dims[-1], dims[-1], time_dim, dropout) for _ in range(2))
        self.mid_attn = PixelAttention(dims[-1])
        self.final_block = ResnetBlock(2 * dim, dim, time_dim, dropout)
        self.final_conv = nn.Conv2d(dim, channels, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        t = self.time_mlp[1:](self.time_mlp[0](time).to(x.dtype))
        x = first = self.init_conv(x)
        skips: list[Tensor] = []
        for block1, block2, attn, downsample in self.downs:
            x = block1(x, t)
            skips.append(x)
            x = attn(block2(x, t))
            skips.append(x)
            x = downsample(x)
        x = self.mid_block2(self.mid_attn(self.mid_block1(x, t)), t)
        for block1, block2, attn, upsample in self.ups:
            x = upsample(x)
            x = block1(torch.cat([x, skips.pop()], dim=1), t)
            x = attn(block2(torch.cat([x, skips.pop()], dim=1), t))
        return self.final_conv(self.final_block(torch.cat([x, first], dim=1), t))


class GaussianDiffusion(nn.Module):
    """Adds noise to images, each as much as its drawn step has, and asks the net for it."""

    def __init__(self, model: nn.Module, timesteps: int, huber: bool) -> None:
        super().__init__()
        self.model, self.timesteps, self.huber = model, timesteps, huber
        alphas_cumprod = torch.cumprod(1.0 - torch.linspace(1e-4, 0.02, timesteps), dim=0)
        self.register_buffer("sqrt_alphas_cumprod", alphas_cumprod.sqrt())
        self.register_buffer("sqrt_one_minus_alphas_cumprod", (1.0 - alphas_cumprod).sqrt())

    def forward(self, images: Tensor) -> Tensor:
        t = torch.randint(0, self.timesteps, (images.size(0),), device=images.device)
        noise = torch.randn_like(images)
        kept = self.sqrt_alphas_cumprod[t].view(-1, 1, 1, 1)
        added = self.sqrt_one_minus_alphas_cumprod[t].view(-1, 1, 1, 1)
        found = self.model(kept * images + added * noise, t)
        return F.smooth_l1_loss(found, noise) if self.huber else F.mse_loss(found, noise)


class BiLSTMTagger(nn.Module):
    """A tag for every word; the letters of a word are read by a convolution, if there are any."""

    def __init__(
        self, vocab: int, emb: int, hidden: int, layers: int, tags: int, dropout: float, letters: int = 0,
        letter_emb: int = 30, filters: int = 30,
    ) -> None:  # fmt: skip
        super().__init__()
        self.embedding = nn.Embedding(vocab, emb, padding_idx=0)
        self.dropout = nn.Dropout(dropout)
        if letters:
            self.char_embedding = nn.Embedding(letters, letter_emb, padding_idx=0)
            self.char_cnn = nn.Conv1d(letter_emb, filters, 3, padding=1)
            emb += filters
        self.lstm = nn.LSTM(
            emb, hidden, layers, bidirectional=True, batch_first=True, dropout=dropout if layers > 1 else 0.0
        )
        self.fc = nn.Linear(2 * hidden, tags)

    def forward(self, words: Tensor, chars: Tensor | None = None) -> Tensor:
        x = self.embedding(words)
        if chars is not None:
            spelled = self.char_embedding(chars.flatten(0, 1)).transpose(1, 2)
            found = self.char_cnn(self.dropout(spelled)).max(dim=2).values
            x = torch.cat([x, found.view(*words.shape, -1)], dim=-1)
        out, _ = self.lstm(self.dropout(x))
        return self.fc(self.dropout(out))


class TNet(nn.Module):
    """How points, or what was found of them, are to be turned."""

    def __init__(self, k: int) -> None:
        super().__init__()
        self.k = k
        self.conv1, self.conv2, self.conv3 = nn.Conv1d(k, 64, 1), nn.Conv1d(64, 128, 1), nn.Conv1d(128, 1024, 1)
        self.fc1, self.fc2, self.fc3 = nn.Linear(1024, 512), nn.Linear(512, 256), nn.Linear(256, k * k)
        self.bn1, self.bn2, self.bn3 = nn.BatchNorm1d(64), nn.BatchNorm1d(128), nn.BatchNorm1d(1024)
        self.bn4, self.bn5 = nn.BatchNorm1d(512), nn.BatchNorm1d(256)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.relu(self.bn2(self.conv2(x)))
        x = F.relu(self.bn3(self.conv3(x)))
        x = torch.max(x, 2)[0]
        x = F.relu(self.bn4(self.fc1(x)))
        x = F.relu(self.bn5(self.fc2(x)))
        x = self.fc3(x).view(-1, self.k, self.k)
        return x + torch.eye(self.k, device=x.device, dtype=x.dtype)


class PointNet(nn.Module):
    """Points to the class of the whole, or to one of each; the second result is how features were turned."""

    def __init__(self, channels: int, classes: int, dense: bool, aligned: bool, dropout: float = 0.3) -> None:
        super().__init__()
        self.dense = dense
        self.stn = TNet(3)
        self.fstn = TNet(64) if aligned else None
        self.conv1, self.conv2, self.conv3 = nn.Conv1d(channels, 64, 1), nn.Conv1d(64, 128, 1), nn.Conv1d(128, 1024, 1)
        self.bn1, self.bn2, self.bn3 = nn.BatchNorm1d(64), nn.BatchNorm1d(128), nn.BatchNorm1d(1024)
        if dense:
            layers: list[nn.Module] = []
            for before, after in pairwise((1088, 512, 256, 128)):
                layers += [nn.Conv1d(before, after, 1), nn.BatchNorm1d(after), nn.ReLU()]
            self.head = nn.Sequential(*layers, nn.Conv1d(128, classes, 1))
        else:
            self.head = nn.Sequential(
                nn.Linear(1024, 512), nn.BatchNorm1d(512), nn.ReLU(),
                nn.Linear(512, 256), nn.Dropout(dropout), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, classes),
            )  # fmt: skip

    def forward(self, points: Tensor) -> tuple[Tensor, Tensor | None]:
        x = points.transpose(2, 1)
        turned = torch.bmm(points[:, :, :3], self.stn(x[:, :3]))
        x = torch.cat([turned, points[:, :, 3:]], dim=2).transpose(2, 1)
        x = F.relu(self.bn1(self.conv1(x)))
        trans = None
        if self.fstn is not None:
            trans = self.fstn(x)
            x = torch.bmm(x.transpose(2, 1), trans).transpose(2, 1)
        local = x
        x = self.bn3(self.conv3(F.relu(self.bn2(self.conv2(x)))))
        x = torch.max(x, 2)[0]
        if self.dense:
            x = torch.cat([x.unsqueeze(2).expand(-1, -1, points.size(1)), local], dim=1)
        return F.log_softmax(self.head(x), dim=1), trans


class Encoder(nn.Module):
    def __init__(self, vocab: int, emb: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, emb)
        self.rnn = nn.GRU(emb, hidden, bidirectional=True, batch_first=True)
        self.fc = nn.Linear(2 * hidden, hidden)
        self.dropout = nn.Dropout(dropout)

    def forward(self, src: Tensor) -> tuple[Tensor, Tensor]:
        outputs, hidden = self.rnn(self.dropout(self.embedding(src)))
        return outputs, torch.tanh(self.fc(torch.cat([hidden[-2], hidden[-1]], dim=1)))


class Attention(nn.Module):
    """Bahdanau's: by a small net of what was said and each word that was read."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.attn = nn.Linear(3 * hidden, hidden)
        self.v = nn.Linear(hidden, 1, bias=False)

    def forward(self, hidden: Tensor, encoder_outputs: Tensor) -> Tensor:
        hidden = hidden.unsqueeze(1).repeat(1, encoder_outputs.size(1), 1)
        energy = torch.tanh(self.attn(torch.cat([hidden, encoder_outputs], dim=2)))
        return F.softmax(self.v(energy).squeeze(2), dim=1)


class Decoder(nn.Module):
    """One word after the other."""

    def __init__(self, vocab: int, emb: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.attention = Attention(hidden)
        self.embedding = nn.Embedding(vocab, emb)
        self.rnn = nn.GRU(2 * hidden + emb, hidden, batch_first=True)
        self.fc_out = nn.Linear(3 * hidden + emb, vocab)
        self.dropout = nn.Dropout(dropout)

    def forward(self, word: Tensor, hidden: Tensor, encoder_outputs: Tensor) -> tuple[Tensor, Tensor]:
        embedded = self.dropout(self.embedding(word)).unsqueeze(1)
        weighted = torch.bmm(self.attention(hidden, encoder_outputs).unsqueeze(1), encoder_outputs)
        output, state = self.rnn(torch.cat([embedded, weighted], dim=2), hidden.unsqueeze(0))
        prediction = self.fc_out(torch.cat([output, weighted, embedded], dim=2).squeeze(1))
        return prediction, state.squeeze(0)


class Seq2Seq(nn.Module):
    """A translator that is told each right word before it guesses the next."""

    def __init__(self, src_vocab: int, trg_vocab: int, emb: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.encoder = Encoder(src_vocab, emb, hidden, dropout)
        self.decoder = Decoder(trg_vocab, emb, hidden, dropout)

    def forward(self, src: Tensor, trg: Tensor) -> Tensor:
        encoder_outputs, hidden = self.encoder(src)
        outputs = []
        for t in range(trg.size(1) - 1):
            output, hidden = self.decoder(trg[:, t], hidden, encoder_outputs)
            outputs.append(output)
        return torch.stack(outputs, dim=1)
