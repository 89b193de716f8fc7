"""Beside PyTorch's own functions, on models that its estimators were run on."""

import copy
import dataclasses
import gzip
import json
import math
import pathlib
import random
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools import ilp_utils
from torch.distributed._tools.sac_estimator import SACStats
from torch.utils._pytree import tree_leaves

from acplan import (
    AcplanError,
    Profile,
    from_torch,
    get_optimal_checkpointing_policy_per_module,
    plan,
    sac_milp,
)

_GIB = 2**30
_ROOT = pathlib.Path(__file__).parents[3]
_TRANSFORMER = _ROOT / "data" / "profiles" / "transformer4.json.gz"


def _torch_planner() -> Any:
    pytest.importorskip("pulp")
    from torch.distributed._tools import sac_ilp

    return sac_ilp


def _module_info(profile: Profile) -> dict[str, Any]:
    """Returns what aggregate_stats would have returned."""
    stats = []
    for module in profile.modules:
        fit = dict(
            module.get("torch_fit")
            or {
                "sac_runtime": 0,
                "sac_memory": 0,
                "n_segments": 0,
                "slopes": [],
                "intercepts": [],
                "breakpoints": [],
                "tradeoff_curve": [],
            }
        )
        fit["tradeoff_curve"] = dict(map(tuple, fit["tradeoff_curve"]))
        scalars = {k: v for k, v in module.items() if not isinstance(v, (dict, list))}
        stats.append({**scalars, **fit})
    order = {f"{key}_order": names for key, names in profile.data["order"].items()}
    return {"mod_order": order, "mod_stats": stats}


@pytest.fixture(scope="module")
def transformer() -> Profile:
    return Profile.load(_TRANSFORMER)


@pytest.fixture
def graph(transformer: Profile) -> ilp_utils.Graph:
    return ilp_utils.parse_module_info(copy.deepcopy(_module_info(transformer)))


def test_from_torch_plans_as_the_profile_does(transformer: Profile) -> None:
    info = _module_info(transformer)
    before = copy.deepcopy(info)
    options = {"memory_model": "torch", "tradeoff": "profile"}
    for budget in ("2GiB", "1.6GiB", "min"):
        expected = plan(transformer, budget, **options)
        actual = plan(from_torch(info), budget)
        assert actual.data["modules"] == expected.data["modules"]
        assert actual.peak_bytes == expected.peak_bytes
        assert actual.data["model"] == "Transformer"
    assert info == before


def test_from_torch_takes_what_torch_computes(tmp_path: pathlib.Path, monkeypatch: Any) -> None:
    info = _aggregated(monkeypatch)
    profile = from_torch(info)
    profile.save(tmp_path / "info.json")
    assert Profile.load(tmp_path / "info.json") == profile
    module_plan = plan(tmp_path / "info.json", "90%")
    assert module_plan.data["granularity"] == "module" and module_plan.modules
    theirs = _torch_planner().sac_milp
    graph = ilp_utils.parse_module_info(info)
    for share in (0.95, 0.9, 0.5):
        budget = share * module_plan.baseline_peak_bytes / _GIB
        torch_decisions, torch_ms, torch_peak = theirs(copy.deepcopy(graph), budget)
        decisions, ms, peak = sac_milp(graph, budget)
        assert (peak == -1) == (torch_peak == -1)
        assert ms <= torch_ms + 0.01
        _Model(graph, 1).require_valid(decisions)
        if peak != -1:
            assert decisions and _Model(graph, 1).peak(decisions) <= budget * _GIB


def test_from_torch_writes_null_for_nan(transformer: Profile) -> None:
    info = _module_info(transformer)
    unit = info["mod_stats"][4]
    unit["slopes"] = [math.nan, torch.tensor(0.5).numpy()]
    unit["tradeoff_curve"] = {0.5: math.nan, math.inf: 1.0, 0.25: 0.125}
    stats = from_torch(info).data["mod_stats"][4]
    assert stats["slopes"] == [None, 0.5]
    assert stats["tradeoff_curve"] == [[0.25, 0.125]]
    assert plan(from_torch(info), "2GiB").status == "optimal"


@pytest.mark.parametrize("info", [{}, {"mod_order": {}}, None, []])
def test_from_torch_tells_what_is_missing(info: Any) -> None:
    with pytest.raises(AcplanError, match="expected the key 'mod_"):
        from_torch(info)


class _Model:
    """PyTorch's model of a plan, sac_milp's constraints evaluated one by one."""

    def __init__(self, graph: ilp_utils.Graph, world_size: int) -> None:
        self.graph = graph
        self.world_size = world_size

    def require_valid(self, decisions: dict[str, float]) -> None:
        nodes, matrix = self.graph.nodes, self.graph.ad_matrix
        units = [node["index"] for node in nodes if node["fqn"] in decisions]
        assert len(units) == len(decisions)
        for i in units:
            assert not nodes[i]["is_leaf"]
            assert all(matrix[i][j] == 0 for j in units if j > i)
            acm, ia = self._memory(nodes[i])
            assert (acm - ia) / acm <= decisions[nodes[i]["fqn"]] <= 1

    def _memory(self, node: Any) -> tuple[int, int]:
        ia = node["act_fw_per_module"]
        return max(node["sac_memory"], ia), ia

    def peak(self, decisions: dict[str, float]) -> float:
        root = self.graph.nodes[0]["param_per_module"]
        peaks = []
        for node in self.graph.nodes:
            discarded = 0.0
            for fqn in self.graph.fw_post_order[: node["pos_fw_post_order"]]:
                acm, ia = self._memory(self.graph.name2node[fqn])
                discarded += acm * decisions.get(fqn, 0)
                discarded -= (acm - ia) * (fqn in decisions)
            states = (root + node["grad_total"]) / self.world_size
            activations = node["act_total"] + node["act_grad_per_module"] - discarded
            peaks.append(max(0.0, activations) + states)
        return max(peaks)

    def recomputation(self, decisions: dict[str, float]) -> float:
        total = 0.0
        for fqn, ratio in decisions.items():
            node = self.graph.name2node[fqn]
            lines = zip(node["slopes"], node["intercepts"])
            share = max(0.0, *(slope * ratio + at for slope, at in lines))
            total += node["sac_runtime"] * share
        return total


_QUESTIONS = [
    (budget, world_size, units)
    for budget in (1.9, 1.6, 1.2, 0.9, 0.85)
    for world_size, units in [
        (1, {}),
        (4, {}),
        (2, {"fsdp_units": [f"Transformer.layers.{k}" for k in range(4)]}),
        (2, {"ac_units": [f"Transformer.layers.{k}.feed_forward" for k in range(4)]}),
        (1, {"fsdp_units": ["Transformer.layers.1.attention.unknown"]}),
    ]
]


@pytest.mark.parametrize(("budget", "world_size", "units"), _QUESTIONS)
def test_sac_milp_is_at_least_as_good_as_torch(
    graph: ilp_utils.Graph, budget: float, world_size: int, units: dict[str, Any]
) -> None:
    torch_decisions, torch_ms, torch_peak = _torch_planner().sac_milp(
        copy.deepcopy(graph), budget, world_size, **units
    )
    before = copy.deepcopy(graph.nodes)
    decisions, ms, peak = sac_milp(graph, budget, world_size, **units)
    assert graph.nodes == before
    assert isinstance(peak, int) and isinstance(decisions, dict)
    assert (peak == -1) == (torch_peak == -1)
    if peak == -1:
        assert (decisions, ms) == ({}, 0)
        return
    model = _Model(graph, world_size)
    model.require_valid(decisions)
    assert model.peak(decisions) <= budget * _GIB
    assert model.peak(decisions) == pytest.approx(peak, rel=1e-3)
    assert peak <= budget * _GIB
    # PyTorch rounds its objective to two digits, and its constraints hold to 1e-6.
    assert ms <= torch_ms + 0.01
    assert model.recomputation(decisions) == pytest.approx(ms, abs=0.02)
    assert all(ratio == round(ratio, 4) for ratio in decisions.values())
    for unit in decisions:
        assert not units.get("ac_units") or unit in units["ac_units"]
        assert not any(f.startswith(unit + ".") for f in units.get("fsdp_units", []))


def test_sac_milp_takes_profiles(graph: ilp_utils.Graph, transformer: Profile) -> None:
    expected = sac_milp(graph, 1.6, 2)
    assert expected[0]
    assert sac_milp(transformer, 1.6, 2) == expected
    assert sac_milp(from_torch(_module_info(transformer)), 1.6, 2) == expected


def test_sac_milp_as_in_torchs_own_test() -> None:
    """Bounds of test_sac_ilp.py, which is on this model."""
    name = "transformer4_torchtest.json.gz"
    profile = Profile.load(_ROOT / "data" / "profiles" / name)
    layers = [f"Transformer.layers.{k}" for k in range(4)]
    decisions, ms, peak = sac_milp(profile, 1.6, 4)
    assert list(decisions) == layers and 0 < peak <= 1.6 * _GIB
    ratios = sorted(decisions.values())
    assert sum(ratios) == pytest.approx(2.35, abs=0.05)
    assert all(ratio == pytest.approx(0.55, abs=0.05) for ratio in ratios[:3])
    assert ms > 0
    assert sac_milp(profile, 2.4, 4)[:2] == ({}, 0)
    assert sac_milp(profile, 2.4, 4)[2] > 1
    assert sac_milp(profile, 0.8, 4) == ({}, 0, -1)


def test_sac_milp_with_nothing_allowed(graph: ilp_utils.Graph) -> None:
    for units in ({"ac_units": ["Nothing"]}, {"ac_units": ["Transformer.dropout"]}):
        assert sac_milp(graph, 1.6, **units) == ({}, 0, -1)
        assert sac_milp(graph, 4.0, **units)[:2] == ({}, 0)
    for budget in (0.0, -1.0):
        assert sac_milp(graph, budget) == ({}, 0, -1)
    assert sac_milp(graph, math.inf)[:2] == ({}, 0)
    with pytest.raises(AcplanError, match="found nan"):
        sac_milp(graph, math.nan)


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(64)
        self.up = nn.Linear(64, 256)
        self.drop = nn.Dropout(0.1)
        self.down = nn.Linear(256, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.drop(nn.functional.gelu(self.up(self.norm(x)))))


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(_Block() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def _aggregated(monkeypatch: Any) -> Any:
    """Returns what PyTorch's own estimators say of a model, with run-times by bytes, as there
    is no device."""
    pytest.importorskip("pwlf")
    from torch.distributed._tools.mem_tracker import MemTracker
    from torch.distributed._tools.runtime_estimator import RuntimeEstimator
    from torch.distributed._tools.sac_estimator import SACEstimator

    def estimate(func: Any, args: Any, kwargs: Any) -> tuple[Any, float]:
        out = func(*args, **(kwargs or {}))
        tensors = [t for t in tree_leaves(out) if isinstance(t, torch.Tensor)]
        return out, sum(t.nbytes for t in tensors) / 1e6

    monkeypatch.setattr(RuntimeEstimator, "_roofline_estimate", estimate)
    device = torch.device("cpu")
    tracker, runtimes, operators = MemTracker(), RuntimeEstimator(), SACEstimator()
    with FakeTensorMode():
        model = _Net()
        optimizer = torch.optim.Adam(model.parameters())
        tracker.track_external(model, optimizer)
        x = torch.randn(512, 64)
        with tracker as tracking:
            for step in range(2):
                model(x).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                if step == 0:
                    tracking.reset_mod_stats()
        with runtimes("operator-level-cost-model"):
            model(x).sum().backward()
        with operators("operator-level-cost-model"):
            model(x)
    return ilp_utils.aggregate_stats(model, tracker, runtimes, operators, device)


def _stats_of(profile: Profile, fqn: str) -> SACStats:
    module = next(m for m in profile.modules if m["fqn"] == fqn)
    return SACStats(**module["sac"])


def _require_legal(stats: SACStats, policy: list[int], memory_budget: float) -> None:
    assert len(policy) == len(stats.func_names)
    assert set(policy) <= {0, 1}
    assert all(policy[op] == 0 for op in stats.view_like_ops)
    assert len({policy[op] for op in stats.rand_ops}) <= 1
    if stats.force_store_random:
        assert all(policy[op] == 1 for op in stats.rand_ops)
    for op, parent in stats.inplace_ops:
        assert policy[op] == (1 if op == parent else policy[parent])
    saved = sum(m for m, save in zip(stats.memory, policy) if save)
    assert saved <= math.ceil(memory_budget * sum(stats.memory))


def _saved_ms(stats: SACStats, policy: list[int]) -> float:
    return sum(ms for ms, save in zip(stats.runtimes, policy) if save)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.35, 0.5, 0.8, 1.0])
@pytest.mark.parametrize(
    "module", ["Transformer.layers.0", "Transformer.layers.2.attention", "Transformer"]
)
def test_policies_are_at_least_as_good_as_torchs(
    transformer: Profile, module: str, share: float
) -> None:
    stats = _stats_of(transformer, module)
    before = copy.deepcopy(stats)
    theirs = _torch_planner().get_optimal_checkpointing_policy_per_module(stats, share)
    ours = get_optimal_checkpointing_policy_per_module(stats, share)
    assert stats == before
    _require_legal(stats, theirs, share)
    _require_legal(stats, ours, share)
    assert _saved_ms(stats, ours) >= _saved_ms(stats, theirs) - 1e-9


def _random_stats(chance: random.Random) -> SACStats:
    count = chance.randint(1, 9)
    views = [op for op in range(count) if chance.random() < 0.2]
    others = [op for op in range(count) if op not in views]
    pairs = [
        (op, chance.choice([o for o in others if o <= op]))
        for op in others
        if chance.random() < 0.2
    ]
    return SACStats(
        func_names=[f"op{op}" for op in range(count)],
        runtimes=[0.0 if op in views else chance.randint(0, 8) / 4 for op in range(count)],
        memory=[0 if op in views else 512 * chance.randint(0, 8) for op in range(count)],
        view_like_ops=views,
        rand_ops=[op for op in others if chance.random() < 0.3],
        saved_autograd_ops=[],
        inplace_ops=pairs,
        force_store_random=chance.random() < 0.3,
    )


def _best_ms(stats: SACStats, share: float) -> float | None:
    """Returns the most that a policy saves, found by trying every one."""
    best = None
    for bits in range(2 ** len(stats.func_names)):
        policy = [bits >> op & 1 for op in range(len(stats.func_names))]
        try:
            _require_legal(stats, policy, share)
        except AssertionError:
            continue
        best = max(best or 0.0, _saved_ms(stats, policy))
    return best


def test_policies_are_optimal() -> None:
    chance = random.Random(1)
    outcomes = set()
    for _ in range(25):
        stats, share = _random_stats(chance), chance.choice([0.0, 0.25, 0.5, 1.0])
        policy = get_optimal_checkpointing_policy_per_module(stats, share)
        best = _best_ms(stats, share)
        assert (policy == []) == (best is None)
        outcomes.add(policy == [])
        if best is not None:
            _require_legal(stats, policy, share)
            assert _saved_ms(stats, policy) == pytest.approx(best)
    assert outcomes == {True, False}


@pytest.mark.parametrize("share", [-0.1, 1.1, math.nan, 5])
def test_budgets_outside_of_0_to_1_are_refused(share: float) -> None:
    stats = SACStats(["mm"], [1.0], [512], [], [], [], [], False)
    with pytest.raises(ValueError, match="`memory_budget` must be a float between 0"):
        get_optimal_checkpointing_policy_per_module(stats, share)


def test_rules_that_contradict_each_other_have_no_policy() -> None:
    stats = SACStats(["relu_"], [1.0], [512], [0], [], [], [(0, 0)], False)
    assert get_optimal_checkpointing_policy_per_module(stats, 1.0) == []
    none = dataclasses.replace(stats, view_like_ops=[])
    assert get_optimal_checkpointing_policy_per_module(none, 0.5) == []
    assert get_optimal_checkpointing_policy_per_module(none, 1.0) == [1]
    empty = SACStats([], [], [], [], [], [], [], False)
    assert get_optimal_checkpointing_policy_per_module(empty, 0.5) == []


def test_statistics_that_are_wrong_are_told() -> None:
    stats = SACStats(["mm"], [1.0], [512, 3], [], [], [], [], False)
    with pytest.raises(AcplanError, match="sac.memory: expected 1 entries"):
        get_optimal_checkpointing_policy_per_module(stats, 0.5)


def test_recorded_plans_of_torch_are_not_better() -> None:
    """On larger models, where PyTorch's sac_milp took minutes."""
    recorded = json.loads(
        gzip.decompress((_ROOT / "tests/data/torch_plans.json.gz").read_bytes())
    )
    compared = 0
    for case in recorded["cases"]:
        if case["profile"] not in ("gpt2_small", "llama8b", "unet"):
            continue
        path = _ROOT / "data" / "profiles" / f"{case['profile']}.json.gz"
        _, ms, peak = sac_milp(Profile.load(path), case["budget_bytes"] / _GIB)
        assert 0 < peak <= case["budget_bytes"]
        assert ms <= case["recompute_ms"] + 0.01
        compared += 1
    assert compared == 9
