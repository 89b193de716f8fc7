"""Training steps of packages for Gaussian processes, solvers, flows and probability."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from acplan._step.training_step import TrainingStep
from third_party.registry import add, entry, own

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
            super().__init__(gpytorch.variational.VariationalStrategy(self, points, inner))
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
            states, _ = self.deq(
                lambda z: torch.tanh(self.inner(z) + self.outer(x)), torch.zeros_like(x)
            )
            return states[-1]

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
        return (
            torchsde.sdeint(model, y, times, bm=brown, dt=0.25, method="euler")[-1]
            .square()
            .mean()
        )

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

    coefficients = torchcde.hermite_cubic_coefficients_with_backward_differences(
        torch.randn(2, 6, 3)
    )
    return TrainingStep(Net(), (coefficients,))


@entry("ncps", "ncps.torch")
def liquid_cells() -> TrainingStep:
    from ncps.torch import LTC, CfC
    from ncps.wirings import AutoNCP

    model = nn.Sequential()
    model.first = CfC(4, 8)
    model.second = LTC(8, AutoNCP(12, 2))

    def loss(model: Any, x: Tensor) -> Tensor:
        return model.second(model.first(x)[0])[0].square().mean()

    return TrainingStep(model, (torch.randn(2, 6, 4),), forward_fn=loss)


@entry("torchcfm", "torchcfm.conditional_flow_matching")
def optimal_transport_flow_matching() -> TrainingStep:
    from torchcfm.conditional_flow_matching import (
        ExactOptimalTransportConditionalFlowMatcher,
    )
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
        lambda name=_name, options=_options: _zuko(lambda f: getattr(f, name)(3, 2, **options)),
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
    from FrEIA import framework, modules

    model = framework.SequenceINN(4)
    for _ in range(3):
        model.append(
            modules.AllInOneBlock,
            subnet_constructor=lambda i, o: nn.Sequential(
                nn.Linear(i, 16), nn.ReLU(), nn.Linear(16, o)
            ),
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
        value: Tensor = Trace_ELBO().differentiable_loss(net.model, net.guide, x)
        return value

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
        loss_fn=own,
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
