"""Measures what the decisions of a plan cost the host, for each operator of a unit.

    ACPLAN=... OMP_NUM_THREADS=1 PYTHONPATH=. python tests/compare_host_times.py

writes three tables of docs/measured. host_times.csv: microseconds per operator in forward and in
backward, beyond the same step without a checkpoint. Tensors have one element, so that kernels
take next to nothing. For each decision all operators of a kind have that decision. Beside it
stands the selective checkpoint of PyTorch itself, whose policies know neither a plan nor
skipping. host_times_measured.csv: the forward and the backward pass of real models with tiny
tensors, without a plan, with five and with PyTorch's checkpoints, which take turns, beside the
host's time that is predicted, without launches. The best of all rounds, and the median of the
rounds' ratios to PyTorch's. host_times_models.csv: that time for plans of the bundled traces and
of two small batches on an H100, beside the device's.
"""

import copy
import functools
import logging
import pathlib
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from acplan import DEVICES, Plan, PlannedModule, PlannedOperator, Trace, apply, plan, trace
from acplan._device.host_times import host_times_of
from measured import simulated
from sharding_cases import Names, operators_of
from tables import Table
from zoo import images, tokens, transformer, whole_blocks

_COUNT = 300
_REPEATS = 25

Forward = Callable[[torch.Tensor], torch.Tensor]


def _plain(x: torch.Tensor) -> torch.Tensor:
    for _ in range(_COUNT):
        x = -x
    return x


def _views(x: torch.Tensor) -> torch.Tensor:
    x = x * 2
    for _ in range(_COUNT):
        x.unsqueeze(0)
    return x


def _random(x: torch.Tensor) -> torch.Tensor:
    for _ in range(_COUNT):
        torch.rand_like(x)
    return x


def _in_place(x: torch.Tensor) -> torch.Tensor:
    x = x * 2
    for _ in range(_COUNT):
        x.neg_()
    return x


_KINDS: dict[str, Forward] = {
    "most": _plain, "views": _views, "random": _random, "in place": _in_place
}  # fmt: skip
_POLICIES = ("whole", "recompute", "save", "skip", "skip, in a run")
_OF_PYTORCH = ("PyTorch's, recompute", "PyTorch's, save")
_TRACES = pathlib.Path(__file__).parents[3] / "data" / "traces"
# Plans are made at so much of the way from the least budget to the step without one.
_SHARE = 0.6


class _Unit(nn.Module):
    def __init__(self, run: Forward) -> None:
        super().__init__()
        self.run = run

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # Only the exponential asks for a recomputation: autograd saves its result.
        return self.run(x).sum() + x.exp()


class _Model(nn.Module):
    def __init__(self, run: Forward) -> None:
        super().__init__()
        self.unit = _Unit(run)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.unit(x)


class _Two(nn.Module):
    def __init__(self, run: Forward) -> None:
        super().__init__()
        self.units = nn.ModuleList([_Unit(run), _Unit(run)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = (unit(x) for unit in self.units)
        return first + second


def _policy_of_pytorch(policy: str, _: Any, func: Any, *__: Any, **___: Any) -> Any:
    is_saved = policy.endswith("save") and func is not torch.ops.aten.exp.default
    kinds = CheckpointPolicy
    return kinds.MUST_SAVE if is_saved else kinds.MUST_RECOMPUTE


class _ByPyTorch(nn.Module):
    def __init__(self, model: nn.Module, policy: str) -> None:
        super().__init__()
        self.model = model
        self.contexts = functools.partial(
            create_selective_checkpoint_contexts,
            functools.partial(_policy_of_pytorch, policy),
            allow_cache_entry_mutation=True,
        )

    def forward(self, x: torch.Tensor) -> Any:
        return checkpoint(self.model, x, use_reentrant=False, context_fn=self.contexts)


def _models(run: Forward, policy: str) -> tuple[nn.Module, nn.Module]:
    """Returns the model without a plan and with one."""
    if policy in _OF_PYTORCH:
        return _Model(run), _ByPyTorch(_Model(run), policy)
    is_run = policy.endswith("run")
    model: nn.Module = _Two(run) if is_run else _Model(run)
    fqn = "_Two.units.0-1" if is_run else "_Model.unit"
    skips = policy.startswith("skip")
    listed = tuple(
        PlannedOperator(name, policy == "save", skips and "exp" not in name)
        for unit in (model.units if is_run else [model.unit])
        for name in operators_of(unit, torch.ones(1, requires_grad=True))
    )
    unit = PlannedModule(fqn, () if policy == "whole" else listed)
    return model, apply(copy.deepcopy(model), Plan((unit,)), strict=True)


def _times(models: list[nn.Module]) -> list[tuple[float, float]]:
    """Returns the best of many times, forward and backward. The models take turns."""
    best = [(float("inf"), float("inf"))] * len(models)
    for _ in range(_REPEATS):
        for index, model in enumerate(models):
            x = torch.ones(1, requires_grad=True)
            start = time.process_time()
            out = model(x)
            middle = time.process_time()
            out.backward()
            end = time.process_time()
            forward, backward = best[index]
            best[index] = (min(forward, middle - start), min(backward, end - middle))
    return best


# Indexed by kind of operator and by decision: forward and backward, in microseconds.
Costs = dict[str, dict[str, tuple[float, float]]]


def _costs() -> Costs:
    costs: Costs = {}
    for kind, run in _KINDS.items():
        costs[kind] = {}
        for policy in _OF_PYTORCH + _POLICIES:
            plain, with_plan = _models(run, policy)
            count = len(operators_of(plain, torch.ones(1, requires_grad=True)))
            before, after = _times([plain, with_plan])
            forward, backward = (
                (b - a) / count * 1e6 for a, b in zip(before, after, strict=True)
            )
            costs[kind][policy] = forward, backward
    return costs


# Real models with tiny tensors, whose steps are the host's work. PyTorch's checkpoints run
# modules again with a cache of keys that forward has filled, so there is none.
_SMALL: dict[str, Callable[[], nn.Module]] = {
    "GPT-2": transformer(
        "GPT2LMHeadModel", n_embd=24, n_layer=12, n_head=12, vocab_size=64, n_positions=16,
        use_cache=False,
    ),
    "BERT": transformer(
        "BertForMaskedLM", hidden_size=24, num_hidden_layers=12, num_attention_heads=12,
        intermediate_size=24, vocab_size=64,
    ),
    "Llama": transformer(
        "LlamaForCausalLM", hidden_size=32, num_hidden_layers=16, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=32, vocab_size=64, use_cache=False,
    ),
    "T5": transformer(
        "T5ForConditionalGeneration", d_model=24, d_kv=4, d_ff=24, num_layers=6, num_heads=6,
        vocab_size=64, decoder_start_token_id=0, pad_token_id=0, use_cache=False,
    ),
    "ViT": transformer(
        "ViTForImageClassification", hidden_size=24, num_hidden_layers=12, image_size=16,
        num_attention_heads=12, intermediate_size=24, patch_size=8, num_labels=10,
    ),
    "ResNet-50": transformer(
        "ResNetForImageClassification", embedding_size=8, hidden_sizes=[8] * 4, num_labels=10
    ),
}  # fmt: skip
_DECISIONS = ("save,recompute", "save,recompute,skip")
# The operators that both selective checkpoints save.
_PRODUCTS = ("addmm", "aten.mm.", "bmm", "convolution", "scaled_dot")
_PEERS = {"every block": "every block, PyTorch's", "products": "products, PyTorch's"}


def _inputs_of(name: str) -> dict[str, Any]:
    return (images(2, 32 if name == "ResNet-50" else 16) if name in ("ViT", "ResNet-50")
            else tokens(2, 4, 64))()  # fmt: skip


def _plans(
    model: nn.Module, traced: Trace, inputs: dict[str, Any]
) -> Iterator[tuple[str, Plan]]:
    blocks = whole_blocks(model)
    yield "none", Plan(())
    yield "every block", Plan(blocks)
    yield "every second block", Plan(blocks[1::2])
    yield "products", Plan(tuple(_with_products_saved(model, blocks, inputs)))
    for decisions in _DECISIONS:
        yield f"{decisions}, min", plan(_without_host(traced), "min", decisions=decisions)


def _with_products_saved(
    model: nn.Module, blocks: Sequence[PlannedModule], inputs: dict[str, Any]
) -> Iterator[PlannedModule]:
    """Yields units that save their products and recompute the rest."""
    model = copy.deepcopy(model)
    names = {block.fqn: Names() for block in blocks}
    for block in blocks:
        module: Any = model.get_submodule(block.fqn.partition(".")[2])
        module.forward = functools.partial(_under, names[block.fqn], module.forward)
    model(**inputs)
    for fqn, mode in names.items():
        operators = (PlannedOperator(n, _is_product(n)) for n in mode.operators)
        yield PlannedModule(fqn, tuple(operators))


def _products_in(traced: Trace, plan_by_hand: Plan) -> Plan:
    """Returns the same units with the operators of a trace, whose device has other kernels."""
    data = traced.data
    places = {module["fqn"]: place for place, module in enumerate(data["modules"])}
    units = []
    for unit in plan_by_hand.modules:
        call = next(c for c in data["calls"] if c["module"] == places[unit.fqn])
        names = (op["name"] for op in data["operators"][call["start"] : call["end"]])
        operators = tuple(PlannedOperator(n, _is_product(n)) for n in names)
        units.append(PlannedModule(unit.fqn, operators))
    return Plan(tuple(units))


def _under(mode: Names, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with mode:
        return forward(*args, **kwargs)


@functools.cache
def _is_product(name: str) -> bool:
    return any(part in name for part in _PRODUCTS)


def _saves_products(_: Any, func: Any, *__: Any, **___: Any) -> Any:
    kinds = CheckpointPolicy
    return kinds.MUST_SAVE if _is_product(str(func)) else kinds.PREFER_RECOMPUTE


def _by_pytorch(model: nn.Module, is_selective: bool) -> nn.Module:
    """Puts every block into a checkpoint of PyTorch."""
    extra: dict[str, Any] = {}
    if is_selective:
        contexts = functools.partial(create_selective_checkpoint_contexts, _saves_products)
        extra["context_fn"] = contexts
    for block in whole_blocks(model):
        module: Any = model.get_submodule(block.fqn.partition(".")[2])
        module.forward = functools.partial(
            checkpoint, module.forward, use_reentrant=False, **extra
        )
    return model


def _without_host(traced: Trace) -> Trace:
    return Trace({key: value for key, value in traced.data.items() if key != "host"})


def _without_launches(traced: Trace) -> Trace:
    host = {**traced.data["host"], "launch_us": 0.0}
    launch = traced.data["host"]["launch_us"]
    for key in ("forward_us", "backward_us"):
        host[key] = {**host[key], "operator": host[key]["operator"] - launch}
    return Trace({**traced.data, "host": host})


def _predicted_ms(traced: Trace, by_hand: Plan) -> float:
    """Returns the host's time for the forward and the backward pass with a plan."""
    figures = simulated(traced, by_hand)["host"]
    data = traced.data
    updates = len(data["operators"]) - data["backward_end"]
    return float(figures["ms"]) - updates * data["host"]["update_us"] / 1e3


def _rounds(models: dict[str, nn.Module], inputs: dict[str, Any]) -> list[dict[str, float]]:
    """Returns milliseconds for a step of each model, which take turns."""
    rounds = []
    for _ in range(_REPEATS + 3):
        rounds.append({})
        for label, model in models.items():
            start = time.process_time()
            model(**inputs).loss.backward()
            rounds[-1][label] = (time.process_time() - start) * 1e3
            model.zero_grad()
    # Units learn from their first calls.
    return rounds[3:]


def _measured_rows() -> Iterator[list[object]]:
    for name, make in _SMALL.items():
        model, inputs = make(), _inputs_of(name)
        with torch.device("meta"):
            traced = trace(make(), device="a100", **_inputs_of(name))
        plans = dict(_plans(model, traced, inputs))
        models = {label: apply(copy.deepcopy(model), p) for label, p in plans.items()}
        models[_PEERS["every block"]] = _by_pytorch(copy.deepcopy(model), False)
        models[_PEERS["products"]] = _by_pytorch(copy.deepcopy(model), True)
        rounds = _rounds(models, inputs)
        best = {label: min(r[label] for r in rounds) for label in models}
        plans["products"] = _products_in(traced, plans["products"])
        predicted = {
            label: _predicted_ms(_without_launches(traced), p) for label, p in plans.items()
        }
        for label in models:
            ratio = ""
            if peer := _PEERS.get(label):
                ratios = [(r[label] - r["none"]) / (r[peer] - r["none"]) for r in rounds]
                ratio = f"{statistics.median(ratios):.2f}"
            columns = (best, predicted)
            cells = [f"{c[label]:.2f}" if label in c else "" for c in columns]
            cells += [f"{c[label] - c['none']:.2f}" if label in c else "" for c in columns]
            yield [name, label, *cells, ratio]


# Their steps on a fast GPU wait for the host as soon as anything is recomputed.
_SMALL_BATCHES: dict[str, Callable[[], nn.Module]] = {
    "gpt2_small, autocast, 4 x 256, H100": transformer("GPT2LMHeadModel", use_cache=False),
    "bert_base, autocast, 4 x 256, H100": transformer("BertForMaskedLM"),
}


def _traces() -> Iterator[tuple[str, Trace]]:
    """Yields traces with the host's times."""
    for path in sorted(_TRACES.glob("*.json.gz")):
        data = {**Trace.load(path).data, **host_times_of(DEVICES["a100"])}
        yield path.name.partition(".")[0], Trace(data)
    for name, make in _SMALL_BATCHES.items():
        with torch.device("meta"):
            model = make()
        yield name, trace(model, device="h100", autocast="bf16", **tokens(4, 256, 30_000)())


def _model_rows() -> Iterator[list[object]]:
    for name, with_host in _traces():
        traced = _without_host(with_host)
        least = plan(traced, "min", decisions="save,recompute").budget_bytes
        budget = least + round(_SHARE * (traced.peak_bytes - least))
        plans = {"none": Plan(())}
        plans |= {d: plan(traced, budget, decisions=d) for d in _DECISIONS}
        plans["with the host"] = plan(with_host, budget)
        for label, its_plan in plans.items():
            figures = simulated(with_host, its_plan)["host"]
            count = sum(len(module.operators) for module in its_plan.modules)
            waits = "host" if figures["ms"] > figures["device_ms"] else "device"
            cells = (f"{figures[key]:.2f}" for key in ("device_ms", "ms", "step_ms"))
            yield [name, label, count, *cells, waits]


def _main() -> None:
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    passes = ("forward us", "backward us")
    kinds = [f"{kind}: {name}" for kind in _KINDS for name in passes]
    table = Table("host_times", ["all operators", *kinds])
    costs = _costs()
    for policy in _OF_PYTORCH + _POLICIES:
        cells = [f"{us:.1f}" for kind in _KINDS for us in costs[kind][policy]]
        table.add(policy, *cells)
    columns = ["measured ms", "predicted ms", "added: measured ms", "added: predicted ms"]
    columns.append("added, in times of PyTorch's")
    measured = Table("host_times_measured", ["model", "plan", *columns])
    for row in _measured_rows():
        measured.add(*row)
    columns = ["operators in units", "device ms", "host ms", "step ms", "waits for"]
    models = Table("host_times_models", ["model", "plan", *columns])
    for row in _model_rows():
        models.add(*row)


if __name__ == "__main__":
    _main()
