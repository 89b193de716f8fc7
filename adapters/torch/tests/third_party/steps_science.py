"""Training steps of packages for graphs, molecules, physics, probability, control, sound
and tables."""

import typing
from collections.abc import Callable
from typing import Any

import torch
from acplan.training_steps import TrainingStep
from torch import Tensor, nn
from torch.nn import functional as F

from third_party.registry import add, classes, entry


def _own(loss: Tensor) -> Tensor:
    """The output itself."""
    return loss


# --- Graphs ---

_EDGES = [[0, 1, 2, 3, 4, 5, 0, 2, 1, 3], [1, 2, 3, 4, 5, 0, 3, 5, 0, 1]]


def _graph(make: Callable[[Any], nn.Module]) -> TrainingStep:
    import torch_geometric.nn

    return TrainingStep(
        make(torch_geometric.nn),
        (torch.randn(6, 8), torch.tensor(_EDGES), torch.arange(6) % 3),
        forward_fn=lambda m, x, e, y: F.cross_entropy(m(x, e), y),
    )


for _name in ("GCN", "GraphSAGE", "GIN", "GAT", "PNA", "EdgeCNN"):
    _options: dict[str, Any] = {"norm": "batch", "dropout": 0.1}
    if _name == "PNA":
        _options |= {
            "aggregators": ["mean", "max", "std"], "scalers": ["identity", "attenuation"],
            "deg": torch.tensor([0, 2, 4]),
        }  # fmt: skip
    if _name == "GAT":
        _options |= {"v2": True, "heads": 2}
    add(
        "torch-geometric",
        _name,
        lambda name=_name, options=_options: _graph(
            lambda n: getattr(n, name)(8, 16, 3, out_channels=3, **options)
        ),
        "torch_geometric.nn",
    )
add(
    "torch-geometric",
    "graph U-Net with top-k pooling",
    lambda: _graph(lambda n: n.GraphUNet(8, 16, 3, depth=2)),
    "torch_geometric.nn",
)


def _atoms() -> dict[str, Tensor]:
    return {
        "z": torch.tensor([1, 6, 8, 1, 6, 1]),
        "pos": torch.randn(6, 3) * 1.2,
        "batch": torch.tensor([0, 0, 0, 1, 1, 1]),
    }


def _forces(make: Callable[[], nn.Module]) -> TrainingStep:
    """Energies and the forces that are their gradients."""

    def loss(model: nn.Module, z: Tensor, pos: Tensor, batch: Tensor) -> Tensor:
        pos = pos.detach().requires_grad_()
        energy = model(z, pos, batch)
        (grad,) = torch.autograd.grad(energy.sum(), pos, create_graph=True)
        return energy.square().mean() + grad.square().mean()

    return TrainingStep(make(), kwargs=_atoms(), forward_fn=loss)


class _Complete(nn.Module):
    """The edges of a graph, which the package's extensions would find."""

    def forward(self, pos: Tensor, batch: Tensor) -> tuple[Tensor, Tensor]:
        pairs = (batch[:, None] == batch) & ~torch.eye(
            len(batch), dtype=torch.bool, device=batch.device
        )
        edges = pairs.nonzero().t()
        return edges, (pos[edges[0]] - pos[edges[1]]).norm(dim=-1)


@entry("torch-geometric", "torch_geometric.nn")
def schnet_with_forces() -> TrainingStep:
    from torch_geometric.nn import SchNet

    return _forces(lambda: SchNet(16, 16, 2, 10, interaction_graph=_Complete()))


@entry("torch-geometric", "torch_geometric.nn")
def heterogeneous_convolutions() -> TrainingStep:
    from torch_geometric.nn import HeteroConv, SAGEConv

    model = HeteroConv(
        {
            ("a", "to", "b"): SAGEConv((8, 8), 4),
            ("b", "to", "a"): SAGEConv((8, 8), 4),
        }
    )
    edges = torch.tensor(_EDGES)
    return TrainingStep(
        model,
        (
            {"a": torch.randn(6, 8), "b": torch.randn(6, 8)},
            {("a", "to", "b"): edges, ("b", "to", "a"): edges.flip(0)},
        ),
        loss_fn=lambda out: out["a"].square().mean() + out["b"].square().mean(),
    )


@entry("torch-geometric", "torch_geometric.nn")
def variational_graph_autoencoder() -> TrainingStep:
    from torch_geometric.nn import GCN, VGAE

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mean, self.log = GCN(8, 8, 2, 4), GCN(8, 8, 2, 4)

        def forward(self, x: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
            return self.mean(x, edges), self.log(x, edges)

    def loss(model: Any, x: Tensor, edges: Tensor) -> Tensor:
        z = model.encode(x, edges)
        return model.recon_loss(z, edges) + model.kl_loss() / len(x)

    return TrainingStep(VGAE(Encoder()), (torch.randn(6, 8), torch.tensor(_EDGES)), forward_fn=loss)


# --- Molecules and symmetry ---


@entry("e3nn", "e3nn.o3", "e3nn.nn")
def equivariant_convolution() -> TrainingStep:
    from e3nn import nn as enn
    from e3nn import o3

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.edges = o3.Irreps.spherical_harmonics(2)
            inner = o3.Irreps("4x0e + 2x1o")
            self.product = o3.FullyConnectedTensorProduct(
                inner, self.edges, inner, shared_weights=False
            )
            self.radial = enn.FullyConnectedNet(
                [8, 16, self.product.weight_numel], torch.nn.functional.silu
            )
            self.mix = o3.Linear(inner, inner)

        def forward(self, x: Tensor, pos: Tensor, edges: Tensor) -> Tensor:
            along = pos[edges[0]] - pos[edges[1]]
            y = o3.spherical_harmonics(self.edges, along, True, "component")
            radii = torch.exp(-(along.norm(dim=1, keepdim=True) - torch.arange(8.0, device=x.device)).square())
            sent = self.product(self.mix(x)[edges[0]], y, self.radial(radii))
            return x + torch.zeros_like(x).index_add(0, edges[1], sent)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([Layer(), Layer()])

        def forward(self, x: Tensor, pos: Tensor, edges: Tensor) -> Tensor:
            for layer in self.layers:
                x = layer(x, pos, edges)
            return x

    return TrainingStep(Net(), (torch.randn(6, 10), torch.randn(6, 3), torch.tensor(_EDGES)))


def _mace(kind: str) -> TrainingStep:
    import numpy
    from e3nn import o3
    from mace import modules

    model = getattr(modules, kind)(
        r_max=5.0, num_bessel=4, num_polynomial_cutoff=3, max_ell=2,
        interaction_cls=modules.interaction_classes["RealAgnosticResidualInteractionBlock"],
        interaction_cls_first=modules.interaction_classes["RealAgnosticResidualInteractionBlock"],
        num_interactions=2, num_elements=2, hidden_irreps=o3.Irreps("4x0e + 4x1o"),
        MLP_irreps=o3.Irreps("4x0e"), gate=F.silu, atomic_energies=numpy.array([[1.0, 3.0]]),
        avg_num_neighbors=4.0, atomic_numbers=[1, 8], correlation=2, radial_type="bessel",
        atomic_inter_scale=1.0, atomic_inter_shift=0.0,
    )  # fmt: skip
    edges = torch.tensor([[0, 0, 1, 1, 2, 2], [1, 2, 0, 2, 0, 1]])
    batch = {
        "positions": torch.tensor([[0.0, 0.0, 0.0], [1.0, 0.2, 0.0], [-0.3, 1.0, 0.1]]),
        "node_attrs": F.one_hot(torch.tensor([1, 0, 0]), 2).float(),
        "edge_index": edges,
        "shifts": torch.zeros(6, 3),
        "unit_shifts": torch.zeros(6, 3),
        "cell": torch.eye(3) * 10,
        "batch": torch.zeros(3, dtype=torch.long),
        "ptr": torch.tensor([0, 3]),
        "head": torch.zeros(1, dtype=torch.long),
    }

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        out = model(dict(batch), training=True)
        return out["energy"].square().mean() + out["forces"].square().mean()

    return TrainingStep(model.float(), (batch,), forward_fn=loss)


add("mace-torch", "ScaleShiftMACE, energies and forces", lambda: _mace("ScaleShiftMACE"), "mace.modules")


def _schnetpack(kind: str) -> TrainingStep:
    # A name that the package imports and later PyTorch does not have.
    torch.utils.data.dataloader.T_co = typing.TypeVar("T_co")  # type: ignore[attr-defined]
    import schnetpack
    from schnetpack import properties

    radial = schnetpack.nn.GaussianRBF(n_rbf=8, cutoff=5.0)
    body = getattr(schnetpack.representation, kind)(
        n_atom_basis=16, n_interactions=2, radial_basis=radial,
        cutoff_fn=schnetpack.nn.CosineCutoff(5.0),
    )  # fmt: skip
    model = schnetpack.model.NeuralNetworkPotential(
        body,
        input_modules=[schnetpack.atomistic.PairwiseDistances()],
        output_modules=[
            schnetpack.atomistic.Atomwise(16, output_key="energy"),
            schnetpack.atomistic.Forces(),
        ],
    )
    pairs = [(i, j) for i in range(4) for j in range(4) if i != j]
    batch = {
        properties.Z: torch.tensor([8, 1, 1, 6]),
        properties.R: torch.randn(4, 3),
        properties.idx_i: torch.tensor([i for i, _ in pairs]),
        properties.idx_j: torch.tensor([j for _, j in pairs]),
        properties.offsets: torch.zeros(len(pairs), 3),
        properties.idx_m: torch.zeros(4, dtype=torch.long),
        properties.n_atoms: torch.tensor([4]),
        properties.cell: torch.zeros(1, 3, 3),
        properties.pbc: torch.zeros(3, dtype=torch.bool),
    }

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        out = model(dict(batch))
        return out["energy"].square().mean() + out["forces"].square().mean()

    return TrainingStep(model, (batch,), forward_fn=loss)


for _name in ("SchNet", "PaiNN"):
    add("schnetpack", f"{_name}, energies and forces", lambda name=_name: _schnetpack(name), "torchmetrics")


@entry("egnn-pytorch")
def egnn_network() -> TrainingStep:
    from egnn_pytorch import EGNN_Network

    model = EGNN_Network(num_tokens=8, dim=16, depth=2, num_nearest_neighbors=4)
    return TrainingStep(
        model,
        (torch.randint(0, 8, (2, 8)), torch.randn(2, 8, 3)),
        forward_fn=lambda m, x, p: sum(v.square().mean() for v in m(x, p)),
    )


@entry("torchani")
def ani_with_forces() -> TrainingStep:
    from torchani.arch import simple_ani

    model = simple_ani(("H", "C", "O"), lot="wb97x-631gd", periodic_table_index=True)

    def loss(model: nn.Module, z: Tensor, pos: Tensor) -> Tensor:
        pos = pos.detach().requires_grad_()
        energy = model((z, pos)).energies
        (grad,) = torch.autograd.grad(energy.sum(), pos, create_graph=True)
        return energy.square().mean() + grad.square().mean()

    return TrainingStep(
        model.float(), (torch.tensor([[8, 1, 1, 6]]), torch.randn(1, 4, 3)), forward_fn=loss
    )


@entry("chemprop", "chemprop.nn", "chemprop.models")
def message_passing_of_molecules() -> TrainingStep:
    from chemprop.data import BatchMolGraph
    from chemprop.featurizers import SimpleMoleculeMolGraphFeaturizer
    from chemprop.models import MPNN
    from chemprop.nn import BondMessagePassing, MeanAggregation, RegressionFFN
    from rdkit import Chem

    featurize = SimpleMoleculeMolGraphFeaturizer()
    graphs = BatchMolGraph([featurize(Chem.MolFromSmiles(s)) for s in ("CCO", "c1ccccc1", "CN")])
    model = MPNN(BondMessagePassing(d_h=16, depth=2), MeanAggregation(), RegressionFFN(input_dim=16, hidden_dim=16))
    return TrainingStep(
        model,
        (graphs, torch.randn(3, 1)),
        forward_fn=lambda m, g, y: F.mse_loss(m(g), y),
    )


# --- Gaussian processes ---


def _gp(kernel: Callable[[Any], Any]) -> TrainingStep:
    import gpytorch

    x = torch.linspace(0, 1, 12)
    y = torch.sin(6 * x)
    likelihood = gpytorch.likelihoods.GaussianLikelihood()

    class Process(gpytorch.models.ExactGP):
        def __init__(self) -> None:
            super().__init__(x, y, likelihood)
            self.mean = gpytorch.means.ConstantMean()
            self.kernel = kernel(gpytorch.kernels)

        def forward(self, x: Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))

    model = Process()

    def loss(model: Any, x: Tensor, y: Tensor) -> Tensor:
        marginal = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
        return -marginal(model(x), y)

    return TrainingStep(model, (x, y), forward_fn=loss)


add("gpytorch", "exact process, RBF", lambda: _gp(lambda k: k.ScaleKernel(k.RBFKernel())))
add(
    "gpytorch",
    "exact process, spectral mixture",
    lambda: _gp(lambda k: k.SpectralMixtureKernel(num_mixtures=2)),
)


@entry("gpytorch")
def variational_process() -> TrainingStep:
    import gpytorch

    points = torch.linspace(0, 1, 5).unsqueeze(-1)

    class Process(gpytorch.models.ApproximateGP):
        def __init__(self) -> None:
            inner = gpytorch.variational.CholeskyVariationalDistribution(5)
            super().__init__(
                gpytorch.variational.VariationalStrategy(self, points, inner)
            )
            self.mean = gpytorch.means.ConstantMean()
            self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())
            self.likelihood = gpytorch.likelihoods.GaussianLikelihood()

        def forward(self, x: Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))

    def loss(model: Any, x: Tensor, y: Tensor) -> Tensor:
        return -gpytorch.mlls.VariationalELBO(model.likelihood, model, 12)(model(x), y)

    x = torch.linspace(0, 1, 12).unsqueeze(-1)
    return TrainingStep(Process(), (x, torch.sin(6 * x[:, 0])), forward_fn=loss)


@entry("botorch", "botorch.models")
def single_task_gp() -> TrainingStep:
    import gpytorch
    from botorch.models import SingleTaskGP

    x = torch.rand(10, 2, dtype=torch.float64)
    y = x.sum(1, keepdim=True).sin()
    model = SingleTaskGP(x, y)

    def loss(model: Any, x: Tensor) -> Tensor:
        marginal = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
        return -marginal(model(x), model.train_targets)

    return TrainingStep(model.train(), (model.train_inputs[0],), forward_fn=loss)


# --- Solvers and layers that are solutions ---


class _Field(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 4))

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        return self.net(y)


def _ode(method: str, adjoint: bool) -> TrainingStep:
    import torchdiffeq

    solve = torchdiffeq.odeint_adjoint if adjoint else torchdiffeq.odeint
    times = torch.linspace(0, 1, 4)

    def loss(model: nn.Module, y: Tensor, times: Tensor) -> Tensor:
        return solve(model, y, times, method=method)[-1].square().mean()

    return TrainingStep(_Field(), (torch.randn(3, 4), times), forward_fn=loss)


for _method, _adjoint in (("rk4", False), ("dopri5", False), ("rk4", True), ("dopri5", True)):
    add(
        "torchdiffeq",
        f"{_method}{' by the adjoint' if _adjoint else ''}",
        lambda method=_method, adjoint=_adjoint: _ode(method, adjoint),
    )


@entry("torchdeq")
def deep_equilibrium() -> TrainingStep:
    from torchdeq import get_deq

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.outer = nn.Linear(8, 8), nn.Linear(8, 8)
            nn.init.normal_(self.inner.weight, std=0.05)
            self.deq = get_deq(f_solver="fixed_point_iter", f_max_iter=8, b_max_iter=8)

        def forward(self, x: Tensor) -> Tensor:
            found, _ = self.deq(lambda z: torch.tanh(self.inner(z) + self.outer(x)), torch.zeros_like(x))
            return found[-1]

    return TrainingStep(Net(), (torch.randn(4, 8),))


@entry("torchsde")
def latent_stochastic_equation() -> TrainingStep:
    import torchsde

    class Equation(nn.Module):
        noise_type, sde_type = "diagonal", "ito"

        def __init__(self) -> None:
            super().__init__()
            self.drift, self.spread = nn.Linear(4, 4), nn.Linear(4, 4)

        def f(self, t: Tensor, y: Tensor) -> Tensor:
            return self.drift(y)

        def g(self, t: Tensor, y: Tensor) -> Tensor:
            return torch.sigmoid(self.spread(y))

    def loss(model: nn.Module, y: Tensor, times: Tensor) -> Tensor:
        brown = torchsde.BrownianInterval(0.0, 1.0, size=y.shape, device=y.device, entropy=7)
        return torchsde.sdeint(model, y, times, bm=brown, dt=0.25, method="euler")[-1].square().mean()

    return TrainingStep(
        Equation(), (torch.randn(3, 4), torch.tensor([0.0, 1.0])), forward_fn=loss
    )


@entry("torchcde")
def controlled_equation() -> TrainingStep:
    import torchcde

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.begin, self.field = nn.Linear(3, 4), nn.Linear(4, 12)

        def forward(self, coefficients: Tensor) -> Tensor:
            path = torchcde.CubicSpline(coefficients)
            z = self.begin(path.evaluate(path.interval[0]))
            return torchcde.cdeint(
                path, lambda t, z: self.field(z).tanh().view(-1, 4, 3), z, path.interval,
                adjoint=False, method="rk4", options={"step_size": 0.5},
            )[:, -1]  # fmt: skip

    known = torchcde.hermite_cubic_coefficients_with_backward_differences(torch.randn(2, 6, 3))
    return TrainingStep(Net(), (known,))


@entry("ncps", "ncps.torch")
def liquid_cells() -> TrainingStep:
    from ncps.torch import CfC, LTC
    from ncps.wirings import AutoNCP

    model = nn.Sequential()
    model.first = CfC(4, 8)
    model.second = LTC(8, AutoNCP(12, 2))

    def loss(model: Any, x: Tensor) -> Tensor:
        return model.second(model.first(x)[0])[0].square().mean()

    return TrainingStep(model, (torch.randn(2, 6, 4),), forward_fn=loss)


@entry("torchcfm", "torchcfm.conditional_flow_matching")
def optimal_transport_flow_matching() -> TrainingStep:
    from torchcfm.conditional_flow_matching import ExactOptimalTransportConditionalFlowMatcher
    from torchcfm.models import MLP

    matcher = ExactOptimalTransportConditionalFlowMatcher(sigma=0.1)

    def loss(model: nn.Module, a: Tensor, b: Tensor) -> Tensor:
        t, x, u = matcher.sample_location_and_conditional_flow(a, b)
        return F.mse_loss(model(torch.cat([x, t[:, None]], -1)), u)

    return TrainingStep(
        MLP(dim=2, time_varying=True), (torch.randn(8, 2), torch.randn(8, 2)), forward_fn=loss
    )


# --- Flows and probability ---


@entry("nflows", "nflows.flows")
def masked_autoregressive_flow() -> TrainingStep:
    from nflows.flows import MaskedAutoregressiveFlow

    model = MaskedAutoregressiveFlow(4, 16, 2, 1, batch_norm_between_layers=True)
    return TrainingStep(
        model, (torch.randn(8, 4),), forward_fn=lambda m, x: -m.log_prob(x).mean()
    )


@entry("nflows", "nflows.flows", "nflows.transforms")
def spline_coupling_flow() -> TrainingStep:
    from nflows.distributions import StandardNormal
    from nflows.flows import Flow
    from nflows.nn.nets import ResidualNet
    from nflows.transforms import (
        CompositeTransform,
        LULinear,
        PiecewiseRationalQuadraticCouplingTransform,
    )

    def layer() -> Any:
        return PiecewiseRationalQuadraticCouplingTransform(
            torch.tensor([1, 0, 1, 0]), lambda i, o: ResidualNet(i, o, 16), tails="linear"
        )

    model = Flow(CompositeTransform([layer(), LULinear(4), layer()]), StandardNormal([4]))
    return TrainingStep(
        model, (torch.randn(8, 4),), forward_fn=lambda m, x: -m.log_prob(x).mean()
    )


def _zuko(make: Callable[[Any], nn.Module]) -> TrainingStep:
    import zuko

    return TrainingStep(
        make(zuko.flows),
        (torch.randn(8, 3), torch.randn(8, 2)),
        forward_fn=lambda m, x, c: -m(c).log_prob(x).mean(),
    )


for _name in ("NSF", "MAF", "NICE", "GF", "UNAF", "CNF"):
    _options = {"hidden_features": (16, 16)}
    if _name != "CNF":
        _options["transforms"] = 2  # type: ignore[assignment]
    add(
        "zuko",
        _name,
        lambda name=_name, options=_options: _zuko(
            lambda f: getattr(f, name)(3, 2, **options)
        ),
        "zuko.flows",
    )


@entry("normflows")
def real_nvp() -> TrainingStep:
    import normflows as nf

    layers = []
    for _ in range(3):
        layers += [
            nf.flows.AffineCouplingBlock(nf.nets.MLP([2, 16, 4], init_zeros=True)),
            nf.flows.Permute(4, mode="swap"),
            nf.flows.ActNorm(4),
        ]
    model = nf.NormalizingFlow(nf.distributions.DiagGaussian(4), layers)
    return TrainingStep(model, (torch.randn(8, 4),), forward_fn=lambda m, x: m.forward_kld(x))


@entry("freia", "FrEIA.framework", "FrEIA.modules")
def invertible_blocks() -> TrainingStep:
    import FrEIA.framework as framework
    import FrEIA.modules as modules

    model = framework.SequenceINN(4)
    for _ in range(3):
        model.append(
            modules.AllInOneBlock,
            subnet_constructor=lambda i, o: nn.Sequential(nn.Linear(i, 16), nn.ReLU(), nn.Linear(16, o)),
            permute_soft=True,
        )

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        z, log_det = model(x)
        return (0.5 * z.square().sum(1) - log_det).mean()

    return TrainingStep(model, (torch.randn(8, 4),), forward_fn=loss)


@entry("pyro-ppl", "pyro")
def variational_autoencoder() -> TrainingStep:
    import pyro
    from pyro import distributions as dist
    from pyro.infer import Trace_ELBO

    class Net(pyro.nn.PyroModule):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.decoder = nn.Linear(8, 4), nn.Linear(2, 8)

        def model(self, x: Tensor) -> None:
            with pyro.plate("data", len(x)):
                zero = torch.zeros(len(x), 2, device=x.device)
                z = pyro.sample("z", dist.Normal(zero, zero + 1).to_event(1))
                pyro.sample("x", dist.Normal(self.decoder(z), 1.0).to_event(1), obs=x)

        def guide(self, x: Tensor) -> None:
            with pyro.plate("data", len(x)):
                mean, log = self.encoder(x).chunk(2, -1)
                pyro.sample("z", dist.Normal(mean, log.exp()).to_event(1))

    def loss(net: Any, x: Tensor) -> Tensor:
        pyro.clear_param_store()
        found: Tensor = Trace_ELBO().differentiable_loss(net.model, net.guide, x)
        return found

    return TrainingStep(Net(), (torch.randn(4, 8),), forward_fn=loss)


@entry("geoopt")
def hyperbolic_embeddings() -> TrainingStep:
    import geoopt

    ball = geoopt.PoincareBall()

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.points = geoopt.ManifoldParameter(torch.randn(10, 4) * 0.1, manifold=ball)

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return ball.dist(self.points[a], self.points[b]).mean()

    model = Net()
    return TrainingStep(
        model,
        (torch.arange(5), torch.arange(5, 10)),
        loss_fn=_own,
        optimizer=geoopt.optim.RiemannianSGD(model.parameters(), lr=0.1),
    )


@entry("entmax")
def sparse_attention() -> TrainingStep:
    from entmax import entmax15, sparsemax

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v = (nn.Linear(16, 16) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            scores = self.q(x) @ self.k(x).transpose(1, 2)
            return entmax15(scores, dim=-1) @ self.v(x) + sparsemax(scores, -1) @ x

    return TrainingStep(nn.Sequential(Net(), Net()), (torch.randn(2, 8, 16),))


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
        channel_mlp_skip="linear", uno_out_channels=[8, 8, 8], uno_n_modes=[[4, 4], [4, 4], [4, 4]],
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
            found = self.book(self.encoder(x))
            loss = found[2].sum() if len(found) > 2 else 0.0
            return F.mse_loss(self.decoder(found[0]), x) + loss

    return TrainingStep(Net(), (torch.randn(2, 12, 8),), loss_fn=_own)


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

    model = GaussianDiffusion(Unet(dim=8, dim_mults=(1, 2), attn_dim_head=8), image_size=16, timesteps=10)
    return TrainingStep(model, (torch.rand(2, 3, 16, 16),), loss_fn=_own)


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

    inner = Unet(
        dim=8, dim_mults=(1, 2), attn_dim_head=8, learned_sinusoidal_cond=True
    )
    model = ElucidatedDiffusion(inner, image_size=16)
    return TrainingStep(model, (torch.rand(2, 3, 16, 16),), loss_fn=_own)


@entry("siren-pytorch")
def implicit_picture() -> TrainingStep:
    from siren_pytorch import SirenNet

    model = SirenNet(dim_in=2, dim_hidden=16, dim_out=3, num_layers=3)

    def loss(model: nn.Module, x: Tensor, grad: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        (found,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        return F.mse_loss(found, grad)

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
        loss_fn=_own,
    )


# --- Sound ---


@entry("torchaudio", "torchaudio.models")
def conformer_and_ctc() -> TrainingStep:
    from torchaudio.models import Conformer

    model = nn.ModuleDict({"body": Conformer(16, 2, 32, 2, 7), "head": nn.Linear(16, 10)})

    def loss(model: Any, x: Tensor, lengths: Tensor, labels: Tensor) -> Tensor:
        out, lengths = model["body"](x, lengths)
        logits = model["head"](out).log_softmax(-1).transpose(0, 1)
        return F.ctc_loss(logits, labels, lengths, torch.tensor([3, 2]))

    return TrainingStep(
        model,
        (torch.randn(2, 12, 16), torch.tensor([12, 9]), torch.randint(1, 10, (2, 3))),
        forward_fn=loss,
    )


@entry("torchaudio", "torchaudio.models")
def separation_in_time() -> TrainingStep:
    from torchaudio.models import ConvTasNet

    model = ConvTasNet(2, 8, 16, 3, 8, 16, 2, 2)
    return TrainingStep(model, (torch.randn(2, 1, 128),))


@entry("torchaudio", "torchaudio.models")
def wav2vec_and_layer_drop() -> TrainingStep:
    from torchaudio.models import wav2vec2_model

    model = wav2vec2_model(
        "group_norm", [(16, 10, 5), (16, 3, 2)], False, 16, 0.0, 4, 2, 2, 2, 0.1, 32, 0.1, 0.1,
        False, 0.2, 8,
    )  # fmt: skip
    return TrainingStep(model, (torch.randn(2, 400),))


@entry("torchaudio", "torchaudio.models")
def tacotron() -> TrainingStep:
    from torchaudio.models import Tacotron2

    model = Tacotron2(
        n_mels=8, n_symbol=20, symbol_embedding_dim=16, encoder_embedding_dim=16,
        encoder_n_convolution=1, attention_rnn_dim=16, attention_hidden_dim=8,
        attention_location_n_filter=4, decoder_rnn_dim=16, prenet_dim=8, postnet_n_convolution=2,
        postnet_embedding_dim=8,
    )  # fmt: skip

    def loss(model: Any, t: Tensor, n: Tensor, mel: Tensor, m: Tensor) -> Tensor:
        before, after, gates, _ = model(t, n, mel, m)
        return F.mse_loss(before, mel) + F.mse_loss(after, mel) + gates.sigmoid().mean()

    return TrainingStep(
        model,
        (
            torch.randint(0, 20, (2, 6)),
            torch.tensor([6, 5]),
            torch.randn(2, 8, 7),
            torch.tensor([7, 6]),
        ),
        forward_fn=loss,
    )


@entry("speechbrain", "speechbrain.lobes.models.ECAPA_TDNN")
def ecapa_and_additive_margin() -> TrainingStep:
    from speechbrain.lobes.models.ECAPA_TDNN import ECAPA_TDNN, Classifier
    from speechbrain.nnet.losses import AdditiveAngularMargin, LogSoftmaxWrapper

    model = nn.ModuleDict(
        {
            "body": ECAPA_TDNN(8, channels=[16] * 5, lin_neurons=16, attention_channels=8, res2net_scale=4, se_channels=8, kernel_sizes=[5, 3, 3, 3, 1], dilations=[1, 2, 3, 4, 1], groups=[1] * 5),
            "head": Classifier(16, out_neurons=10),
        }
    )
    criterion = LogSoftmaxWrapper(AdditiveAngularMargin(0.2, 30))
    return TrainingStep(
        model,
        (torch.randn(4, 20, 8), classes(4).unsqueeze(1)),
        forward_fn=lambda m, x, y: criterion(m["head"](m["body"](x)), y),
    )


@entry("speechbrain", "speechbrain.lobes.models.transformer.TransformerASR")
def transformer_for_speech() -> TrainingStep:
    from speechbrain.lobes.models.transformer.TransformerASR import TransformerASR

    model = TransformerASR(
        tgt_vocab=20, input_size=8, d_model=16, nhead=2, num_encoder_layers=1,
        num_decoder_layers=1, d_ffn=32, encoder_module="conformer", causal=False,
        attention_type="RelPosMHAXL", normalize_before=True,
    )  # fmt: skip

    def loss(model: Any, x: Tensor, words: Tensor, lengths: Tensor) -> Tensor:
        a, b = model(x, words, lengths)
        return a.square().mean() + b.square().mean()

    return TrainingStep(
        model,
        (torch.randn(2, 12, 8), torch.randint(1, 20, (2, 5)), torch.tensor([1.0, 0.7])),
        forward_fn=loss,
    )


@entry("speechbrain", "speechbrain.lobes.models.CRDNN")
def crdnn() -> TrainingStep:
    from speechbrain.lobes.models.CRDNN import CRDNN

    model = CRDNN(
        input_shape=[None, None, 8], cnn_blocks=1, cnn_channels=(8,), rnn_layers=1,
        rnn_neurons=8, dnn_blocks=1, dnn_neurons=8, time_pooling=True,
    )  # fmt: skip
    return TrainingStep(model, (torch.randn(2, 12, 8),))


@entry("asteroid", "asteroid.models")
def dual_path_rnn_and_permutations() -> TrainingStep:
    from asteroid.losses import PITLossWrapper, pairwise_neg_sisdr
    from asteroid.models import DPRNNTasNet

    model = DPRNNTasNet(2, n_filters=16, kernel_size=4, stride=2, bn_chan=8, hid_size=8, chunk_size=8, n_repeats=1)
    criterion = PITLossWrapper(pairwise_neg_sisdr, pit_from="pw_mtx")
    return TrainingStep(
        model,
        (torch.randn(2, 1, 64), torch.randn(2, 2, 64)),
        forward_fn=lambda m, x, y: criterion(m(x), y),
    )


@entry("encodec", "encodec.modules")
def seanet_autoencoder() -> TrainingStep:
    from encodec.modules import SEANetDecoder, SEANetEncoder

    options = {"dimension": 8, "n_filters": 4, "n_residual_layers": 1, "ratios": [4, 2], "lstm": 1}
    model = nn.Sequential(SEANetEncoder(**options), SEANetDecoder(**options))
    return TrainingStep(model, (torch.randn(2, 1, 64),))


@entry("conformer")
def conformer_block() -> TrainingStep:
    from conformer import Conformer

    return TrainingStep(Conformer(dim=16, depth=2, dim_head=8, heads=2, conv_kernel_size=7, attn_dropout=0.1, ff_dropout=0.1, conv_dropout=0.1), (torch.randn(2, 12, 16),))


# --- Tables, time series, spikes, control ---


@entry("tab-transformer-pytorch")
def ft_transformer() -> TrainingStep:
    from tab_transformer_pytorch import FTTransformer

    model = FTTransformer(categories=(5, 4), num_continuous=3, dim=16, depth=2, heads=2, attn_dropout=0.1, ff_dropout=0.1)
    return TrainingStep(model, (torch.randint(0, 4, (4, 2)), torch.randn(4, 3)))


@entry("pytorch-tabnet", "pytorch_tabnet.tab_network")
def tabnet() -> TrainingStep:
    from pytorch_tabnet.tab_network import TabNet

    model = TabNet(8, 3, n_d=8, n_a=8, n_steps=3, virtual_batch_size=4, group_attention_matrix=torch.eye(8))

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        out, sparse = model(x)
        return F.cross_entropy(out, y) - 1e-3 * sparse

    return TrainingStep(model, (torch.randn(8, 8), classes(8, 3)), forward_fn=loss)


@entry("pytorch-widedeep", "pytorch_widedeep.models")
def saint_of_columns() -> TrainingStep:
    from pytorch_widedeep.models import SAINT, WideDeep

    columns = {"a": 0, "b": 1, "c": 2}
    model = WideDeep(
        deeptabular=SAINT(
            column_idx=columns, cat_embed_input=[("a", 5), ("b", 5)], continuous_cols=["c"],
            input_dim=8, n_heads=2, n_blocks=1,
        )
    )  # fmt: skip
    return TrainingStep(model, ({"deeptabular": torch.randint(0, 4, (4, 3)).float()},))


def _forecast(make: Callable[[], tuple[nn.Module, Any]]) -> TrainingStep:
    model, (x, y) = make()

    def loss(model: Any, x: Any, y: Any) -> Tensor:
        return model.loss(model(x)["prediction"], y)

    return TrainingStep(model, (x, y), forward_fn=loss)


def _series(kind: str, **options: Any) -> tuple[nn.Module, Any]:
    import numpy
    import pandas
    import pytorch_forecasting as forecasting

    frame = pandas.DataFrame(
        {
            "time": numpy.tile(numpy.arange(24), 3),
            "group": numpy.repeat(["a", "b", "c"], 24),
            "value": numpy.sin(numpy.arange(72.0)),
        }
    )
    data = forecasting.TimeSeriesDataSet(
        frame, "time", "value", ["group"], max_encoder_length=8, max_prediction_length=4,
        time_varying_unknown_reals=["value"], time_varying_known_reals=options.pop("known", []),
        target_normalizer=forecasting.data.EncoderNormalizer(),
        static_categoricals=options.pop("static", []),
    )  # fmt: skip
    if kind in ("NBeats", "NHiTS"):
        options["loss"] = forecasting.metrics.SMAPE()
    model = getattr(forecasting, kind).from_dataset(data, **options)
    return model, next(iter(data.to_dataloader(train=False, batch_size=4, num_workers=0)))


for _name, _options in {
    "NBeats": {"widths": [16, 16], "num_blocks": [1, 1], "num_block_layers": [1, 1]},
    "NHiTS": {"hidden_size": 16},
    "TemporalFusionTransformer": {
        "hidden_size": 8, "attention_head_size": 2, "hidden_continuous_size": 4,
        "known": ["time"], "static": ["group"],
    },
    "DeepAR": {"hidden_size": 8, "rnn_layers": 2},
}.items():  # fmt: skip
    add(
        "pytorch-forecasting",
        _name,
        lambda name=_name, options=_options: _forecast(lambda: _series(name, **options)),
    )


@entry("snntorch")
def leaky_neurons_over_time() -> TrainingStep:
    import snntorch
    from snntorch import surrogate

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 4)
            spike = surrogate.fast_sigmoid()
            self.first = snntorch.Leaky(0.9, spike_grad=spike, learn_beta=True)
            self.second = snntorch.Leaky(0.9, spike_grad=spike)

        def forward(self, x: Tensor) -> Tensor:
            one, two = self.first.init_leaky(), self.second.init_leaky()
            total = torch.zeros((), device=x.device)
            for _ in range(4):
                s, one = self.first(self.a(x), one)
                s, two = self.second(self.b(s), two)
                total = total + two.square().mean() + s.mean()
            return total

    return TrainingStep(Net(), (torch.randn(4, 8),), loss_fn=_own)


@entry("spikingjelly", "spikingjelly.activation_based")
def spiking_convolutions() -> TrainingStep:
    from spikingjelly.activation_based import functional, layer, neuron

    model = nn.Sequential(
        layer.Conv2d(1, 4, 3, padding=1), layer.BatchNorm2d(4), neuron.IFNode(),
        layer.MaxPool2d(2), layer.Flatten(), layer.Linear(64, 4), neuron.LIFNode(),
    )  # fmt: skip

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        functional.reset_net(model)
        return sum((model(x) for _ in range(3)), torch.zeros((), device=x.device)).square().mean()

    return TrainingStep(model, (torch.rand(2, 1, 8, 8),), forward_fn=loss)


@entry("stable-baselines3")
def ppo_update() -> TrainingStep:
    import gymnasium
    from stable_baselines3.common.policies import ActorCriticPolicy

    box = gymnasium.spaces.Box(-1, 1, (4,))
    model = ActorCriticPolicy(box, gymnasium.spaces.Discrete(3), lambda _: 1e-3)

    def loss(model: Any, x: Tensor, actions: Tensor, old: Tensor, gain: Tensor) -> Tensor:
        values, log_prob, entropy = model.evaluate_actions(x, actions)
        ratio = torch.exp(log_prob - old)
        gained = torch.min(gain * ratio, gain * ratio.clamp(0.8, 1.2)).mean()
        return -gained + 0.5 * F.mse_loss(values.flatten(), gain) - 0.01 * entropy.mean()

    return TrainingStep(
        model,
        (torch.rand(8, 4), torch.arange(8) % 3, torch.full((8,), -1.1), torch.randn(8)),
        forward_fn=loss,
    )


@entry("stable-baselines3")
def continuous_actor() -> TrainingStep:
    import gymnasium
    from stable_baselines3.sac.policies import SACPolicy

    box = gymnasium.spaces.Box(-1, 1, (4,))
    model = SACPolicy(box, gymnasium.spaces.Box(-1, 1, (2,)), lambda _: 1e-3, net_arch=[16, 16])

    def loss(model: Any, x: Tensor) -> Tensor:
        actions, log_prob = model.actor.action_log_prob(x)
        values = torch.cat(model.critic(x, actions), dim=1)
        return (0.1 * log_prob.unsqueeze(1) - values.min(1, keepdim=True).values).mean()

    return TrainingStep(model, (torch.rand(8, 4),), forward_fn=loss)


@entry("torchrl", "torchrl.objectives", "torchrl.modules")
def clipped_ppo_loss() -> TrainingStep:
    from tensordict import TensorDict
    from tensordict.nn import TensorDictModule
    from torchrl.modules import NormalParamExtractor, ProbabilisticActor, TanhNormal, ValueOperator
    from torchrl.objectives import ClipPPOLoss

    body = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 4), NormalParamExtractor())
    actor = ProbabilisticActor(
        TensorDictModule(body, in_keys=["observation"], out_keys=["loc", "scale"]),
        in_keys=["loc", "scale"], distribution_class=TanhNormal, return_log_prob=True,
    )  # fmt: skip
    critic = ValueOperator(nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1)), in_keys=["observation"])
    model = ClipPPOLoss(actor, critic)
    names = (model.tensor_keys.sample_log_prob, model.tensor_keys.advantage, model.tensor_keys.value_target)

    def loss(model: Any, seen: Tensor, action: Tensor, old: Tensor, gain: Tensor) -> Tensor:
        data = dict(zip(names, (old, gain, gain))) | {"observation": seen, "action": action}
        out = model(TensorDict(data, batch_size=[8]))
        return out["loss_objective"] + out["loss_critic"] + out["loss_entropy"]

    return TrainingStep(
        model,
        (torch.rand(8, 4), torch.rand(8, 2) * 0.9, torch.full((8,), -1.0), torch.randn(8, 1)),
        forward_fn=loss,
    )


@entry("torchopt")
def maml() -> TrainingStep:
    import torchopt

    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        inner = torchopt.MetaSGD(model, lr=0.1)
        kept = torchopt.extract_state_dict(model, by="reference")
        inner.step(F.mse_loss(model(x), y))
        found = F.mse_loss(model(x), y)
        torchopt.recover_state_dict(model, kept)
        return found

    return TrainingStep(model, (torch.randn(8, 4), torch.randn(8, 1)), forward_fn=loss)


@entry("higher")
def unrolled_inner_loop() -> TrainingStep:
    import higher

    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        with higher.innerloop_ctx(model, inner, copy_initial_weights=False) as (fast, steps):
            steps.step(F.mse_loss(fast(x), y))
            return F.mse_loss(fast(x), y)

    return TrainingStep(model, (torch.randn(8, 4), torch.randn(8, 1)), forward_fn=loss)


def _clicks(kind: str) -> TrainingStep:
    from deepctr_torch import models
    from deepctr_torch.inputs import DenseFeat, SparseFeat

    columns = [SparseFeat("user", 10, 4), SparseFeat("item", 10, 4), DenseFeat("age", 1)]
    model = getattr(models, kind)(columns, columns, dnn_hidden_units=(16, 16), device="cpu")
    rows = torch.cat([torch.randint(0, 10, (8, 2)).float(), torch.rand(8, 1)], 1)
    return TrainingStep(
        model,
        (rows, torch.ones(8, 1)),
        forward_fn=lambda m, x, y: F.binary_cross_entropy(m(x), y),
    )


for _name in ("DeepFM", "xDeepFM", "AutoInt", "DCN"):
    add("deepctr-torch", _name, lambda name=_name: _clicks(name), "deepctr_torch.models")


@entry("ema-pytorch")
def moving_average_of_a_model() -> TrainingStep:
    from ema_pytorch import EMA

    net = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8))
    model = EMA(net, beta=0.9, update_after_step=0, update_every=1, include_online_model=True)

    def update(model: Any, optimizer: torch.optim.Optimizer) -> None:
        optimizer.step()
        optimizer.zero_grad()
        model.update()

    def loss(model: Any, x: Tensor) -> Tensor:
        with torch.no_grad():
            told = model(x)
        return F.mse_loss(model.online_model(x), told + 1)

    return TrainingStep(model, (torch.randn(4, 8),), forward_fn=loss, step_fn=update)
