"""Training steps of packages for graphs, molecules and symmetry."""

import typing
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from acplan._step.training_step import TrainingStep
from third_party.registry import add, entry

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

    return TrainingStep(
        VGAE(Encoder()), (torch.randn(6, 8), torch.tensor(_EDGES)), forward_fn=loss
    )


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
            differences = pos[edges[0]] - pos[edges[1]]
            y = o3.spherical_harmonics(self.edges, differences, True, "component")
            radii = torch.exp(
                -(
                    differences.norm(dim=1, keepdim=True) - torch.arange(8.0, device=x.device)
                ).square()
            )
            messages = self.product(self.mix(x)[edges[0]], y, self.radial(radii))
            return x + torch.zeros_like(x).index_add(0, edges[1], messages)

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


add(
    "mace-torch",
    "ScaleShiftMACE, energies and forces",
    lambda: _mace("ScaleShiftMACE"),
    "mace.modules",
)


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
    add(
        "schnetpack",
        f"{_name}, energies and forces",
        lambda name=_name: _schnetpack(name),
        "torchmetrics",
    )


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
    graphs = BatchMolGraph(
        [featurize(Chem.MolFromSmiles(s)) for s in ("CCO", "c1ccccc1", "CN")]
    )
    model = MPNN(
        BondMessagePassing(d_h=16, depth=2),
        MeanAggregation(),
        RegressionFFN(input_dim=16, hidden_dim=16),
    )
    return TrainingStep(
        model,
        (graphs, torch.randn(3, 1)),
        forward_fn=lambda m, g, y: F.mse_loss(m(g), y),
    )
