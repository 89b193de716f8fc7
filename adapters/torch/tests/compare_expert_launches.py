"""The operators of a layer with experts, counted in the modules of three libraries.

    PYTHONPATH=. python tests/compare_expert_launches.py transformers
    PYTHONPATH=. python tests/compare_expert_launches.py torchtitan
    PYTHONPATH=. python tests/compare_expert_launches.py megatron-core

each write the rows of a library to docs/measured/expert_launches.csv, and need it. Modules of
64 features run on the CPU; with two ranks, tokens go through gloo. Megatron-Core has its
experts one by one there, and no fused kernels, which need a GPU.
"""

import contextlib
import csv
import importlib.metadata
import pathlib
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import torch
import torch.multiprocessing

from expert_launches import Launches, count_launches, initialize, tokens, transformers_launches

_TABLE = pathlib.Path(__file__).parents[3] / "docs/measured/expert_launches.csv"
_COLUMNS = ["library", "layer", "products", "ranks", "experts of a rank", "forward", "backward"]


class _Stream:
    """A stream of a GPU, or its event, where there is none."""

    def wait_stream(self, other: Any) -> None: ...
    def synchronize(self) -> None: ...
    def record_event(self, event: Any = None) -> "_Stream":
        return _Stream()

    def wait_event(self, event: Any) -> None: ...


def _megatron_launches(ranks: int, experts: int) -> Iterator[tuple[str, Launches]]:
    torch.cuda.Stream = torch.cuda.current_stream = lambda *_: _Stream()  # type: ignore[assignment, misc]  # no GPU
    torch.cuda.current_device = lambda: "cpu"  # type: ignore[assignment, return-value]  # no GPU
    torch.cuda.stream = lambda _: contextlib.nullcontext()  # type: ignore[assignment]  # no GPU
    torch.Tensor.record_stream = lambda *_: None  # type: ignore[method-assign, assignment]  # no GPU
    from megatron.core import parallel_state
    from megatron.core.models.gpt.moe_module_specs import get_moe_module_spec
    from megatron.core.transformer.moe import moe_utils, token_dispatcher
    from megatron.core.transformer.spec_utils import build_module
    from megatron.core.transformer.transformer_config import TransformerConfig

    def on_the_host(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
        return tensor.tolist() if as_numpy and isinstance(tensor, torch.Tensor) else tensor

    token_dispatcher.maybe_move_tensor_to_cpu = on_the_host
    moe_utils.te_general_gemm = None
    parallel_state.initialize_model_parallel(
        expert_model_parallel_size=ranks, create_gloo_process_groups=False
    )
    config = TransformerConfig(
        num_layers=1,
        hidden_size=64,
        num_attention_heads=4,
        moe_ffn_hidden_size=128,
        num_moe_experts=experts * ranks,
        moe_router_topk=2,
        moe_token_dispatcher_type="alltoall",
        expert_model_parallel_size=ranks,
        use_cpu_initialization=True,
        perform_initialization=False,
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        add_bias_linear=False,
        bias_activation_fusion=False,
        bf16=True,
        params_dtype=torch.bfloat16,
        moe_aux_loss_coeff=1e-3,
        moe_router_dtype="fp32",
    )
    spec = get_moe_module_spec(
        use_te=False, num_experts=experts * ranks, moe_grouped_gemm=False
    )
    layer = build_module(spec, config=config)
    initialize(layer)
    layer.set_layer_number(1)
    yield "layer", count_launches(lambda x: layer(x)[0], tokens(128, 2, 64))
    yield "router", count_launches(lambda x: layer.router(x)[0], tokens(128, 2, 64))


def _torchtitan_launches(ranks: int, experts: int) -> Iterator[tuple[str, Launches]]:
    import torchtitan.models.common.token_dispatcher as dispatcher
    import torchtitan.models.qwen3 as models

    dispatcher.get_spmd_backend = lambda: "local"
    layer = models.make_moe_config(
        num_experts=experts * ranks,
        router=models.make_router_config(
            dim=64,
            num_experts=experts * ranks,
            gate_param_init=models._LINEAR_INIT,
            top_k=2,
            score_func="softmax",
            route_norm=True,
        ),
        routed_experts=models.make_routed_experts_config(
            dim=64,
            hidden_dim=128,
            num_experts=experts,
            top_k=2,
            param_init=models._moe_experts_init(2),
            comm_backend="standard",
        ),
    ).build()
    initialize(layer)
    if ranks > 1:
        mesh = torch.distributed.init_device_mesh("cpu", (ranks,), mesh_dim_names=("ep",))
        layer.routed_experts.token_dispatcher.wire_meshes(ep_mesh=mesh)
    yield "layer", count_launches(layer, tokens(2, 128, 64))
    yield (
        "router",
        count_launches(lambda x: layer.router(x, layer.expert_bias_E)[0], tokens(2, 128, 64)),
    )


_LIBRARIES = {
    "megatron-core": (_megatron_launches, "one by one"),
    "torchtitan": (_torchtitan_launches, "grouped_mm"),
}


def _run_rank(rank: int, library: str, sizes: tuple[int, int], output: str) -> None:
    ranks, experts = sizes
    torch.manual_seed(0)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{output}.store", rank=rank, world_size=ranks
    )
    counts, products = _LIBRARIES[library]
    rows = [
        [part, products, ranks, experts, n.forward, n.backward]
        for part, n in counts(ranks, experts)
    ]
    if rank == 0:
        with open(output, "w", newline="") as file:
            csv.writer(file).writerows(rows)
    torch.distributed.destroy_process_group()


def _rows_of(library: str) -> Iterator[list[Any]]:
    if library == "transformers":
        for experts in (4, 8):
            for name, products, n in transformers_launches(experts):
                yield [name, products, 1, experts, n.forward, n.backward]
        return
    for sizes in ((1, 4), (1, 8), (2, 4), (2, 8)):
        with tempfile.TemporaryDirectory() as folder:
            output = f"{folder}/rows.csv"
            torch.multiprocessing.spawn(
                _run_rank, args=(library, sizes, output), nprocs=sizes[0]
            )
            with open(output, newline="") as file:
                yield from csv.reader(file)


def main() -> None:
    library = sys.argv[1]
    name = f"{library} {importlib.metadata.version(library)}"
    rows = [[name, *map(str, row)] for row in _rows_of(library)]
    if _TABLE.exists():
        with open(_TABLE, newline="") as file:
            others = [row for row in csv.reader(file) if row[0].split()[0] != library]
        rows += [row for row in others if row != _COLUMNS]
    with open(_TABLE, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([_COLUMNS, *sorted(rows)])


if __name__ == "__main__":
    main()
