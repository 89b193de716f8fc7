"""Training steps of packages for operators, physics, codebooks and diffusion."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from acplan._step.training_step import TrainingStep
from third_party.registry import add, entry, own

# --- Operators and physics ---


@entry("neuraloperator", "neuralop.models")
def fourier_operator() -> TrainingStep:
    from neuralop.models import FNO

    return TrainingStep(
        FNO(n_modes=(4, 4), hidden_channels=8, in_channels=1, out_channels=1, n_layers=2),
        (torch.randn(2, 1, 16, 16),),
    )


@entry("neuraloperator", "neuralop.models")
def tensorised_fourier_operator() -> TrainingStep:
    from neuralop.models import TFNO

    return TrainingStep(
        TFNO(
            n_modes=(4, 4), hidden_channels=8, in_channels=1, out_channels=1, n_layers=2,
            factorization="Tucker", rank=0.5,
        ),
        (torch.randn(2, 1, 16, 16),),
    )  # fmt: skip


@entry("neuraloperator", "neuralop.models")
def u_shaped_operator() -> TrainingStep:
    from neuralop.models import UNO

    model = UNO(
        in_channels=1, out_channels=1, hidden_channels=8, n_layers=3,
        channel_mlp_skip="linear", uno_out_channels=[8, 8, 8],
        uno_n_modes=[[4, 4], [4, 4], [4, 4]],
        uno_scalings=[[1.0, 1.0], [0.5, 0.5], [2.0, 2.0]],
    )  # fmt: skip
    return TrainingStep(model, (torch.randn(2, 1, 16, 16),))


@entry("torch-harmonics")
def spherical_convolution() -> TrainingStep:
    import torch_harmonics as harmonics

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.forth = harmonics.RealSHT(8, 16, grid="equiangular")
            self.back = harmonics.InverseRealSHT(8, 16, grid="equiangular")
            shape = (4, self.forth.lmax, self.forth.mmax)
            self.weight = nn.Parameter(torch.randn(*shape, dtype=torch.complex64))

        def forward(self, x: Tensor) -> Tensor:
            return F.gelu(self.back(self.forth(x) * self.weight))

    return TrainingStep(nn.Sequential(Net(), Net()), (torch.randn(2, 4, 8, 16),))


@entry("deepxde")
def physics_informed_burgers() -> TrainingStep:
    import deepxde

    model = deepxde.nn.FNN([2] + [16] * 3 + [1], "tanh", "Glorot normal")

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        u = model(x)
        deepxde.gradients.clear()
        first = [deepxde.grad.jacobian(u, x, i=0, j=k) for k in range(2)]
        second = deepxde.grad.hessian(u, x, i=0, j=0)
        return (first[1] + u * first[0] - 0.01 * second).square().mean()

    return TrainingStep(model, (torch.rand(16, 2),), forward_fn=loss)


# --- Codebooks, diffusion and others ---


def _quantised(make: Callable[[Any], nn.Module]) -> TrainingStep:
    import vector_quantize_pytorch as v

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.decoder = nn.Linear(8, 16), nn.Linear(16, 8)
            self.book = make(v)

        def forward(self, x: Tensor) -> Tensor:
            quantised = self.book(self.encoder(x))
            loss = quantised[2].sum() if len(quantised) > 2 else 0.0
            return F.mse_loss(self.decoder(quantised[0]), x) + loss

    return TrainingStep(Net(), (torch.randn(2, 12, 8),), loss_fn=own)


for _name, _make in {
    "moving averages": lambda v: v.VectorQuantize(16, 32, decay=0.8),
    "cosine similarity and k-means": lambda v: v.VectorQuantize(
        16, 32, use_cosine_sim=True, kmeans_init=True
    ),
    "learnable codes, rotation trick": lambda v: v.VectorQuantize(
        16, 32, learnable_codebook=True, ema_update=False
    ),
    "residual": lambda v: v.ResidualVQ(dim=16, num_quantizers=3, codebook_size=16),
    "residual with dropout": lambda v: v.ResidualVQ(
        dim=16, num_quantizers=3, codebook_size=16, quantize_dropout=True
    ),
    "finite scalars": lambda v: _Scalars(v),
    "lookup-free": lambda v: v.LFQ(codebook_size=64, dim=16, entropy_loss_weight=0.1),
    "random projection": lambda v: v.SimVQ(dim=16, codebook_size=32),
}.items():
    add("vector-quantize-pytorch", _name, lambda make=_make: _quantised(make))


def _Scalars(v: Any) -> nn.Module:
    return v.FSQ(levels=[8, 5, 5], dim=16)


@entry("denoising-diffusion-pytorch")
def gaussian_diffusion() -> TrainingStep:
    from denoising_diffusion_pytorch import GaussianDiffusion, Unet

    model = GaussianDiffusion(
        Unet(dim=8, dim_mults=(1, 2), attn_dim_head=8), image_size=16, timesteps=10
    )
    return TrainingStep(model, (torch.rand(2, 3, 16, 16),), loss_fn=own)


@entry("denoising-diffusion-pytorch", "denoising_diffusion_pytorch.karras_unet")
def karras_unet() -> TrainingStep:
    from denoising_diffusion_pytorch.karras_unet import KarrasUnet

    model = KarrasUnet(
        image_size=16, dim=8, dim_max=16, num_downsamples=1, num_blocks_per_stage=1,
        attn_dim_head=8, fourier_dim=8,
    )  # fmt: skip
    return TrainingStep(model, (torch.rand(2, 4, 16, 16),), {"time": torch.rand(2)})


@entry("denoising-diffusion-pytorch", "denoising_diffusion_pytorch.elucidated_diffusion")
def elucidated_diffusion() -> TrainingStep:
    from denoising_diffusion_pytorch import ElucidatedDiffusion, Unet

    inner = Unet(dim=8, dim_mults=(1, 2), attn_dim_head=8, learned_sinusoidal_cond=True)
    model = ElucidatedDiffusion(inner, image_size=16)
    return TrainingStep(model, (torch.rand(2, 3, 16, 16),), loss_fn=own)


@entry("siren-pytorch")
def implicit_picture() -> TrainingStep:
    from siren_pytorch import SirenNet

    model = SirenNet(dim_in=2, dim_hidden=16, dim_out=3, num_layers=3)

    def loss(model: nn.Module, x: Tensor, grad: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        return F.mse_loss(gradient, grad)

    return TrainingStep(model, (torch.rand(16, 2), torch.rand(16, 2)), forward_fn=loss)


@entry("se3-transformer-pytorch")
def se3_transformer() -> TrainingStep:
    from se3_transformer_pytorch import SE3Transformer

    model = SE3Transformer(dim=8, heads=2, depth=1, dim_head=4, num_degrees=2, num_neighbors=3)
    return TrainingStep(
        model,
        (torch.randn(1, 6, 8), torch.randn(1, 6, 3), torch.ones(1, 6, dtype=torch.bool)),
    )


@entry("enformer-pytorch")
def enformer() -> TrainingStep:
    from enformer_pytorch import Enformer

    model = Enformer.from_hparams(
        dim=48, depth=1, heads=2, output_heads={"human": 4}, target_length=2, num_downsamples=3,
        dim_divisible_by=4,
    )  # fmt: skip
    return TrainingStep(
        model,
        (torch.randint(0, 5, (1, 64)),),
        {"head": "human", "target": torch.rand(1, 2, 4)},
        loss_fn=own,
    )
