"""Tiny models of torch's own modules, and hand-written ones."""

import random
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import rnn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

from architectures import (
    LENGTH,
    VOCABULARY,
    Architecture,
    Inputs,
    batches,
    floats,
    masked_variants,
    seeded,
    tokens,
)

_WIDTH = 32
_HEADS = 4


class _Embedded(nn.Module):
    """Ids in, a loss over the vocabulary out; what is between has yet to be said."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, _WIDTH, padding_idx=0)
        self.head = nn.Linear(_WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        hidden = self.body(self.embedding(tokens), mask)
        logits = self.head(hidden)
        targets = tokens if mask is None else tokens.masked_fill(mask == 0, -100)
        return F.cross_entropy(logits.transpose(1, 2), targets)

    def body(self, x: Tensor, mask: Tensor | None) -> Tensor:
        raise NotImplementedError


def _token_inputs(batch: int, mask: Tensor | None) -> dict[str, Any]:
    ids = tokens(batch)
    if mask is None:
        return {"tokens": ids}
    return {"tokens": ids.masked_fill(mask == 0, 0), "mask": mask}


class _Encoder(_Embedded):
    """torch's encoder; with a causal mask, which it recognises by its values."""

    def __init__(self, is_causal: bool) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(_WIDTH, _HEADS, 64, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.is_causal = is_causal

    def body(self, x: Tensor, mask: Tensor | None) -> Tensor:
        before = None
        if self.is_causal:
            before = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
        padding = None if mask is None else mask == 0
        out: Tensor = self.encoder(x, mask=before, src_key_padding_mask=padding)
        # In evaluation the encoder cuts off what is padding in all.
        return F.pad(out, (0, 0, 0, x.shape[1] - out.shape[1]))


class _Transformer(_Embedded):
    def __init__(self) -> None:
        super().__init__()
        self.transformer = nn.Transformer(
            _WIDTH, _HEADS, 2, 2, 64, batch_first=True, norm_first=True
        )

    def body(self, x: Tensor, mask: Tensor | None) -> Tensor:
        before = self.transformer.generate_square_subsequent_mask(x.shape[1], x.device)
        padding = None if mask is None else (mask == 0)
        out: Tensor = self.transformer(
            x,
            x,
            tgt_mask=before,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
        )
        return out


class _Attention(_Embedded):
    def __init__(self, gives_weights: bool) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(_WIDTH, _HEADS, 0.1, batch_first=True)
        self.norm = nn.RMSNorm(_WIDTH)
        self.gives_weights = gives_weights

    def body(self, x: Tensor, mask: Tensor | None) -> Tensor:
        out, _ = self.attention(
            *(x, x, x),
            key_padding_mask=None if mask is None else mask == 0,
            need_weights=self.gives_weights,
        )
        normed: Tensor = self.norm(x + out)
        return normed


class _Recurrent(_Embedded):
    """Sequences packed by their lengths, where there is a mask."""

    def __init__(self, kind: type[nn.RNNBase], is_bidirectional: bool) -> None:
        super().__init__()
        ways = 2 if is_bidirectional else 1
        self.layers = kind(
            *(_WIDTH, _WIDTH // ways, 2),
            batch_first=True,
            dropout=0.1,
            bidirectional=is_bidirectional,
        )

    def body(self, x: Tensor, mask: Tensor | None) -> Tensor:
        if mask is None:
            plain: Tensor = self.layers(x)[0]
            return plain
        packed = rnn.pack_padded_sequence(
            x, mask.sum(1).cpu(), batch_first=True, enforce_sorted=False
        )
        out, _ = rnn.pad_packed_sequence(
            self.layers(packed)[0], batch_first=True, total_length=x.shape[1]
        )
        return out


class _Cells(_Embedded):
    """A cell, step by step, to the end of the longest sequence."""

    def __init__(self, kind: type[nn.RNNCellBase]) -> None:
        super().__init__()
        self.cell = kind(_WIDTH, _WIDTH)

    def body(self, x: Tensor, mask: Tensor | None) -> Tensor:
        steps = x.shape[1] if mask is None else int(mask.sum(1).max())
        state: Any = None
        states = []
        for step in range(min(steps, 8)):
            state = self.cell(x[:, step], state)
            states.append(state if isinstance(state, Tensor) else state[0])
        out = torch.stack(states, 1)
        return F.pad(out, (0, 0, 0, x.shape[1] - out.shape[1]))


class _Selecting(_Embedded):
    """Only what is no padding is computed, and the loss only where there is a label."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(_WIDTH, 64)
        self.down = nn.Linear(64, _WIDTH)

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        x = self.embedding(tokens)
        if mask is None or mask.all():
            x = self._layer(x)
        else:
            unpadded = x[mask.bool()]
            x = torch.zeros_like(x).masked_scatter(
                mask.bool()[..., None], self._layer(unpadded)
            )
        is_labelled = tokens % 7 == 0
        places = is_labelled.nonzero(as_tuple=True)
        return F.cross_entropy(self.head(x[places]), tokens[is_labelled])

    def _layer(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(F.gelu(self.up(x)))
        return F.dropout(out, 0.1, self.training) + x


class _Packed(_Embedded):
    """Sequences one after the other in a row, told apart by positions that begin
    anew: rotary embeddings, and attention sequence by sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(_WIDTH, 3 * _WIDTH)
        self.out = nn.Linear(_WIDTH, _WIDTH)

    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        x = self.embedding(tokens)[0]
        starts = (positions[0] == 0).nonzero()[:, 0]
        end = starts.new_tensor([tokens.shape[1]])
        lengths = torch.cat([starts, end]).diff().tolist()
        q, k, v = self.qkv(x).view(len(x), 3, _HEADS, -1).unbind(1)
        q, k = (self._rotated(t, positions[0]) for t in (q, k))
        parts = [
            F.scaled_dot_product_attention(
                *(t.transpose(0, 1)[None] for t in part), is_causal=True
            )
            for part in zip(q.split(lengths), k.split(lengths), v.split(lengths))
        ]
        rows = torch.cat(parts, 2)[0].transpose(0, 1).reshape(len(x), _WIDTH)
        return F.cross_entropy(self.head(x + self.out(rows)), tokens[0])

    def _rotated(self, x: Tensor, positions: Tensor) -> Tensor:
        half = x.shape[-1] // 2
        rates = 1 / 100 ** (torch.arange(half, device=x.device) / half)
        angles = positions[:, None, None] * rates
        a, b = x.chunk(2, -1)
        cos, sin = angles.cos(), angles.sin()
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


def _packed_inputs(*lengths: int) -> Inputs:
    def inputs() -> dict[str, Any]:
        positions = torch.cat([torch.arange(n) for n in lengths])[None]
        return {"tokens": tokens(1, sum(lengths)), "positions": positions}

    return inputs


class _SlidingWindow(_Embedded):
    """Grouped heads, a window, and a mask only where something is masked."""

    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Linear(_WIDTH, _WIDTH)
        self.kv = nn.Linear(_WIDTH, _WIDTH)
        self.norm = nn.RMSNorm(_WIDTH)
        self.window = 32

    def body(self, x: Tensor, mask: Tensor | None) -> Tensor:
        batch, length, _ = x.shape
        q = self.q(self.norm(x)).view(batch, length, _HEADS, -1).transpose(1, 2)
        kv = self.kv(x).view(batch, length, 2, _HEADS // 2, -1)
        k, v = kv.permute(2, 0, 3, 1, 4)
        at = torch.arange(length, device=x.device)
        near = (at[:, None] - at) < self.window
        if mask is not None and not mask.bool().all():
            near = near & mask[:, None, None].bool()
        is_plain = bool(near.all())
        causal = near & (at[:, None] >= at)
        out = F.scaled_dot_product_attention(
            *(q, k, v),
            attn_mask=None if is_plain else causal,
            is_causal=is_plain,
            enable_gqa=True,
        )
        return x + out.transpose(1, 2).reshape(batch, length, _WIDTH)


class _Experts(_Embedded):
    """The best two of four experts, each with room for a number of tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(_WIDTH, 4)
        self.up = nn.Parameter(torch.randn(4, _WIDTH, 64))
        self.down = nn.Parameter(torch.randn(4, 64, _WIDTH))

    def body(self, x: Tensor, mask: Tensor | None) -> Tensor:
        rows = x.reshape(-1, _WIDTH)
        weights, experts = self.router(rows).softmax(-1).topk(2)
        room = len(rows)
        one_hot = F.one_hot(experts, 4)
        place = one_hot.flatten(0, 1).cumsum(0).view_as(one_hot) * one_hot - 1
        place = place.amax(-1).clamp(0, room - 1)
        slots = rows.new_zeros(4, room, _WIDTH)
        slots = slots.index_put((experts, place), rows[:, None].expand(-1, 2, -1))
        out = F.silu(slots @ self.up) @ self.down
        mixed = (out[experts, place] * weights[..., None]).sum(1)
        if mask is not None:
            mixed = mixed * mask.reshape(-1, 1)
        return x + mixed.view_as(x)


class _LoopedExperts(_Embedded):
    """Experts run in a loop, each on the tokens that the router sends it."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(_WIDTH, 3)
        self.experts = nn.ModuleList(nn.Linear(_WIDTH, _WIDTH) for _ in range(3))

    def body(self, x: Tensor, mask: Tensor | None) -> Tensor:
        rows = x.reshape(-1, _WIDTH)
        best = self.router(rows).argmax(-1)
        out = torch.zeros_like(rows)
        for index, expert in enumerate(self.experts):
            (indices,) = torch.where(best == index)
            out = out.index_add(0, indices, expert(rows[indices]).to(out.dtype))
        return x + out.view_as(x)


class _Adaptive(_Embedded):
    """Rare words have smaller vectors: the targets decide what is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.softmax = nn.AdaptiveLogSoftmaxWithLoss(_WIDTH, VOCABULARY, [20, 60])

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        rows = self.embedding(tokens).flatten(0, 1)
        loss: Tensor = self.softmax(rows, tokens.flatten()).loss
        return loss


class _Speech(nn.Module):
    """Spectrograms in, convolutions, a recurrent layer, CTC loss with lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(16, _WIDTH, 5, 2, 2)
        self.norm = nn.BatchNorm1d(_WIDTH)
        self.layer = nn.GRU(_WIDTH, 16, batch_first=True, bidirectional=True)
        self.head = nn.Linear(_WIDTH, 20)

    def forward(self, sound: Tensor, targets: Tensor, mask: Tensor | None = None) -> Tensor:
        x = F.hardtanh(self.norm(self.convolution(sound))).transpose(1, 2)
        if mask is None:
            lengths = torch.full((len(x),), x.shape[1], device=x.device)
        else:
            lengths = (mask.sum(1) + 1) // 2
        logits = self.head(self.layer(x)[0]).log_softmax(-1).transpose(0, 1)
        return F.ctc_loss(logits, targets, lengths, (targets > 0).sum(1))


def _speech_inputs(batch: int, mask: Tensor | None) -> dict[str, Any]:
    targets = tokens(batch, 4, 20)
    targets[-1, 3:] = 0
    arguments: dict[str, Any] = {"sound": floats(batch, 16, 48), "targets": targets}
    return arguments if mask is None else arguments | {"mask": mask}


class _Recommender(nn.Module):
    """Bags of ids of different lengths, dense features, and their products."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(50, 8, mode=mode) for mode in ("sum", "mean"))
        self.dense = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 8))
        self.top = nn.Sequential(nn.Linear(11, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, dense: Tensor, ids: Tensor, offsets: Tensor) -> Tensor:
        embeddings = [self.dense(dense), *(bag(ids, offsets) for bag in self.bags)]
        stacked = torch.stack(embeddings, 1)
        products = stacked @ stacked.mT
        above = torch.triu_indices(3, 3, 1, device=dense.device)
        features = torch.cat([embeddings[0], products[:, above[0], above[1]]], 1)
        return F.binary_cross_entropy_with_logits(
            self.top(features)[:, 0], (offsets % 2).float()
        )


def _bags(batch: int) -> dict[str, Any]:
    ids = tokens(1, 4 * batch, 50)[0]
    return {
        "dense": floats(batch, 6),
        "ids": ids,
        "offsets": torch.arange(batch) * 3,
    }


class _Siamese(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tower = nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(inplace=True),
            nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 16),
        )  # fmt: skip

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        embeddings = F.normalize(self.tower(x), dim=-1)
        same = labels[:, None] == labels
        distances = torch.cdist(embeddings, embeddings)
        if not bool((~same).any()):
            return distances.mean()
        near = distances.masked_fill(~same, 0).amax(1)
        far = distances.masked_fill(same, 9).amin(1)
        return F.relu(near - far + 0.2).mean()


class _Generator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.ConvTranspose2d(8, 16, 4), nn.BatchNorm2d(16), nn.ReLU(True),
            nn.ConvTranspose2d(16, 8, 4, 2, 1), nn.InstanceNorm2d(8, affine=True),
            nn.LeakyReLU(0.2, True), nn.Upsample(scale_factor=2, mode="bilinear"),
            nn.Conv2d(8, 3, 3, padding=1), nn.Tanh(),
        )  # fmt: skip
        self.critic = nn.Sequential(
            spectral_norm(nn.Conv2d(3, 8, 4, 2, 1)), nn.LeakyReLU(0.2),
            nn.Dropout2d(0.1), nn.Flatten(), spectral_norm(nn.Linear(512, 1)),
        )  # fmt: skip

    def forward(self, noise: Tensor) -> Tensor:
        images = self.layers(noise[:, :, None, None])
        return F.softplus(-self.critic(images)).mean()


class _Flow(nn.Module):
    """Affine couplings by turns over halves, and a triangular mixing."""

    def __init__(self) -> None:
        super().__init__()
        self.nets = nn.ModuleList(
            nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 8)) for _ in range(3)
        )
        self.mix = nn.Parameter(torch.eye(8))
        self.register_buffer("turns", torch.tensor([True, False, True]))

    def forward(self, x: Tensor) -> Tensor:
        logdet = torch.zeros(len(x), device=x.device)
        for net, turn in zip(self.nets, self.turns):
            a, b = x.chunk(2, 1)
            if turn:
                a, b = b, a
            scale, shift = net(a).chunk(2, 1)
            b = b * scale.tanh().exp() + shift
            logdet = logdet + scale.tanh().sum(1)
            x = torch.cat([a, b], 1) @ self.mix.tril()
        prior = torch.distributions.Normal(0.0, 1.0, validate_args=False)
        return -(prior.log_prob(x).sum(1) + logdet).mean()


class _Autoencoder(nn.Module):
    """Noise as large as it learns, and as often as it was drawn."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Flatten(), nn.Linear(192, 32), nn.SiLU())
        self.mean = nn.Linear(32, 4)
        self.spread = nn.Linear(32, 4)
        self.decode = weight_norm(nn.Linear(4, 192))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.encode(x)
        mean, spread = self.mean(hidden), self.spread(hidden)
        sample = mean + torch.randn_like(mean) * (spread / 2).exp()
        reconstruction = self.decode(sample).view_as(x)
        divergence = (mean.square() + spread.exp() - spread - 1).mean()
        return F.mse_loss(reconstruction, x) + divergence


class _Graph(nn.Module):
    """Messages along edges, summed by target; as many nodes as the edges name."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))
        self.head = nn.Linear(16, 3)

    def forward(self, nodes: Tensor, edges: Tensor, graphs: Tensor) -> Tensor:
        source, target = edges
        degrees = torch.bincount(target, minlength=len(nodes)).clamp(min=1)
        x = nodes
        for layer in self.layers:
            messages = layer(x)[source].to(x.dtype)
            sums = torch.zeros_like(x).index_add_(0, target, messages)
            x = F.relu(x + sums / degrees[:, None])
        count = int(graphs.max()) + 1
        pooled = x.new_zeros(count, 16).index_add_(0, graphs, x)
        logits: Tensor = self.head(pooled)
        return logits.logsumexp(-1).mean()


def _graph_inputs(batch: int) -> dict[str, Any]:
    edges = tokens(2, 12 * batch) % (6 * batch)
    graphs = torch.arange(batch).repeat_interleave(6)
    return {"nodes": floats(6 * batch, 16), "edges": edges, "graphs": graphs}


class _Net(nn.Module):
    """Blocks with a bottleneck, squeezed and excited; some are skipped by chance."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, 2, 1)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(8, 16, 1), nn.BatchNorm2d(16), nn.Hardswish(),
                nn.Conv2d(16, 16, 3, padding=1, groups=16), nn.ReLU6(),
                nn.Conv2d(16, 8, 1), nn.BatchNorm2d(8),
            )
            for _ in range(3)
        )  # fmt: skip
        self.squeeze = nn.Sequential(nn.Conv2d(8, 8, 1), nn.Hardsigmoid())
        self.head = nn.Linear(8, 10)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            if self.training and random.random() < 0.2:
                continue
            x = x + block(x)
        x = x * self.squeeze(F.adaptive_avg_pool2d(x, 1))
        x = F.max_pool2d(x, 2).mean((2, 3))
        return F.cross_entropy(self.head(x), labels, label_smoothing=0.1)


class _UNet(nn.Module):
    """Skips, told the time, for images of any size."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Linear(8, 8)
        self.enter = nn.Conv2d(3, 8, 3, padding=1)
        self.down = nn.Conv2d(8, 8, 3, 2, 1)
        self.middle = nn.Sequential(nn.GroupNorm(4, 8), nn.SiLU(), nn.Conv2d(8, 8, 1))
        self.up = nn.ConvTranspose2d(16, 8, 2, 2)
        self.leave = nn.Conv2d(16, 3, 3, padding=1)

    def forward(self, x: Tensor, step: Tensor) -> Tensor:
        if bool((step < 0).any()):
            raise ValueError("no step is negative")
        rates = torch.exp(-torch.arange(4, device=x.device).float())
        angles = step[:, None] * rates
        time = self.time(torch.cat([angles.sin(), angles.cos()], 1))
        first = self.enter(x) + time[:, :, None, None]
        low = self.down(first)
        high = self.up(torch.cat([low, self.middle(low)], 1))
        out: Tensor = self.leave(torch.cat([high, first], 1))
        return F.mse_loss(out, x)


class _Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, _WIDTH, 8, 8)
        self.patches_mlp = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
        self.channels_mlp = nn.Sequential(
            nn.LayerNorm(_WIDTH), nn.Linear(_WIDTH, 64), nn.GELU(), nn.Dropout(0.1),
            nn.Linear(64, _WIDTH),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2)
        x = (x + self.patches_mlp(x)).transpose(1, 2)
        out: Tensor = x + self.channels_mlp(x)
        return out.square().mean()


class _Dilated(nn.Module):
    """Convolutions over time that see ever more of the past, gated."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Conv1d(1, 8, 1)
        self.layers = nn.ModuleList(
            weight_norm(nn.Conv1d(8, 16, 2, dilation=2**k)) for k in range(3)
        )
        self.leave = nn.Conv1d(8, 32, 1)

    def forward(self, x: Tensor) -> Tensor:
        levels = ((x.clamp(-1, 1) + 1) * 15.5).long()
        hidden = self.enter(x[:, None])
        for k, layer in enumerate(self.layers):
            signal, gate = layer(F.pad(hidden, (2**k, 0))).chunk(2, 1)
            hidden = hidden + signal.tanh() * gate.sigmoid()
        return F.cross_entropy(self.leave(hidden), levels)


class _Teacher(_Embedded):
    """A decoder of cells that is told the truth by chance, and attends to what was
    read."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(_WIDTH, _WIDTH)

    def body(self, x: Tensor, mask: Tensor | None) -> Tensor:
        state = x.mean(1)
        last = x[:, 0]
        outputs = []
        for step in range(4):
            state = self.cell(last, state)
            scores = (x @ state[:, :, None])[..., 0]
            if mask is not None:
                scores = scores.masked_fill(mask == 0, -1e4)
            read = (scores.softmax(-1)[:, None] @ x)[:, 0]
            last = x[:, step] if torch.rand(()) < 0.5 else read
            outputs.append(state + read)
        return torch.cat([torch.stack(outputs, 1), x[:, 4:]], 1)


class _Latents(nn.Module):
    """A few latents read a long input by attention, again and again."""

    def __init__(self) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(4, _WIDTH))
        self.read = nn.MultiheadAttention(_WIDTH, _HEADS, batch_first=True)
        self.think = nn.TransformerEncoderLayer(_WIDTH, _HEADS, 64, batch_first=True)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        hidden = self.latents.expand(len(x), -1, -1)
        padding = None if mask is None else ~mask.bool()
        for _ in range(2):
            read, _ = self.read(hidden, x, x, key_padding_mask=padding)
            hidden = self.think(hidden + read)
        return hidden.square().mean()


def _latents_inputs(batch: int, mask: Tensor | None) -> dict[str, Any]:
    arguments: dict[str, Any] = {"x": floats(batch, LENGTH, _WIDTH)}
    return arguments if mask is None else arguments | {"mask": mask}


_NESTED = {
    "batch of one, evaluated": "in evaluation, PyTorch's encoder makes nested tensors, "
    "which cannot be traced; no training step does"
}
_ROUTED = {
    "": "which tokens an expert gets is decided by the router's numbers, which a trace "
    "does not compute"
}


def _text(
    make: Callable[[], nn.Module],
    group: str,
    exceptions: Mapping[str, str] = MappingProxyType({}),
) -> Architecture:
    return Architecture(group, seeded(make), masked_variants(_token_inputs), exceptions)


def _of_images(make: Callable[[], nn.Module], **more: Any) -> Architecture:
    def inputs(batch: int) -> dict[str, Any]:
        arguments = {name: value(batch) for name, value in more.items()}
        return {"x": floats(batch, 3, 32, 32)} | arguments

    return Architecture("hand-written", seeded(make), batches(inputs))


def _small_images(batch: int) -> dict[str, Any]:
    return {"x": floats(batch, 3, 8, 8)}


ARCHITECTURES: dict[str, Architecture] = {
    "nn.TransformerEncoder": _text(lambda: _Encoder(False), "torch", _NESTED),
    "nn.TransformerEncoder, causal": _text(lambda: _Encoder(True), "torch"),
    "nn.Transformer": _text(_Transformer, "torch"),
    "nn.MultiheadAttention": _text(lambda: _Attention(False), "torch"),
    "nn.MultiheadAttention, weights": _text(lambda: _Attention(True), "torch"),
    "nn.LSTM, packed": _text(lambda: _Recurrent(nn.LSTM, True), "recurrent"),
    "nn.GRU, packed": _text(lambda: _Recurrent(nn.GRU, False), "recurrent"),
    "nn.RNN, packed": _text(lambda: _Recurrent(nn.RNN, False), "recurrent"),
    "nn.LSTMCell": _text(lambda: _Cells(nn.LSTMCell), "recurrent"),
    "nn.GRUCell": _text(lambda: _Cells(nn.GRUCell), "recurrent"),
    "nn.AdaptiveLogSoftmax": _text(_Adaptive, "torch"),
    "teacher forcing by chance": _text(_Teacher, "recurrent"),
    "unpadded tokens": _text(_Selecting, "hand-written"),
    "packed sequences": Architecture(
        "hand-written",
        seeded(_Packed),
        {
            "no mask": _packed_inputs(24),
            "packed": _packed_inputs(10, 8, 6),
            "batch of one": _packed_inputs(9),
        },
    ),
    "sliding window": _text(_SlidingWindow, "hand-written"),
    "experts with room": _text(_Experts, "hand-written"),
    "experts in a loop": _text(_LoopedExperts, "hand-written", _ROUTED),
    "speech with CTC": Architecture(
        "speech", seeded(_Speech), masked_variants(_speech_inputs, 48, ("right",))
    ),
    "recommender": Architecture("hand-written", seeded(_Recommender), batches(_bags)),
    "siamese": _of_images(_Siamese, labels=lambda n: torch.arange(n) % 2),
    "generator and critic": Architecture(
        "hand-written", seeded(_Generator), batches(lambda n: {"noise": floats(n, 8)})
    ),
    "flow": Architecture("hand-written", seeded(_Flow), batches(lambda n: {"x": floats(n, 8)})),
    "variational autoencoder": Architecture(
        "hand-written", seeded(_Autoencoder), batches(_small_images)
    ),
    "graph": Architecture("hand-written", seeded(_Graph), batches(_graph_inputs)),
    "mobile net": _of_images(_Net, labels=lambda n: torch.arange(n)),
    "U-Net": _of_images(_UNet, step=lambda n: torch.arange(n) * 7),
    "mixer": _of_images(_Mixer),
    "dilated convolutions": Architecture(
        "speech", seeded(_Dilated), batches(lambda n: {"x": floats(n, 64)})
    ),
    "latents": Architecture("hand-written", seeded(_Latents), masked_variants(_latents_inputs)),
}
