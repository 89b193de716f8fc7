"""A plan that is made once, on the meta device, and applied anywhere from its file; and
what else may be done with a model that has a plan."""

import copy
import functools
import gzip
import io
import json
import pathlib
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import nn

import acplan
from acplan import AcplanError, Plan, PlanMismatchWarning, PlannedModule
from acplan._files.fingerprint import KEY
from acplan._files.snapshot_file import read_snapshot
from segments_of_traces import longest_runs, name_of, with_segment
from sharding_cases import Net
from skipping import Unit, recorded_step
from test_training_runs import _gpt2

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("one_thread"),
]


class Block(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.mlp(self.norm(x))


class Tower(nn.Module):
    def __init__(self, depth: int = 3, width: int = 64) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Linear(width, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


@functools.cache
def _plan_text() -> str:
    """Returns the text of a plan that is made on the meta device."""
    with torch.device("meta"):
        model, x = Tower(), torch.empty(64, 64, 64)
    traced = acplan.trace(model, x, workspaces=False)
    plan = acplan.plan(traced, "70%")
    assert plan.modules
    return json.dumps(plan.data)


@pytest.fixture
def plan_file(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "plan.json"
    path.write_text(_plan_text())
    return path


def _gradients(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    return [loss.detach(), *(p.grad for p in model.parameters())]


def test_a_plan_made_on_meta_is_applied_from_its_file(plan_file: pathlib.Path) -> None:
    torch.manual_seed(0)
    model, x = Tower(), torch.randn(64, 64, 64)
    planned_model = acplan.apply(copy.deepcopy(model), plan_file, strict=True)
    assert acplan._apply.apply.has_plan(planned_model)
    expected, actual = _gradients(model, x), _gradients(planned_model, x)
    assert all(map(torch.equal, actual, expected)) and len(actual) == len(expected)
    assert acplan._apply.apply.has_plan(acplan.apply(Tower(), str(plan_file)))


def test_a_trace_that_was_saved_makes_the_same_plan(tmp_path: pathlib.Path) -> None:
    with torch.device("meta"):
        tower, x = Tower(), torch.empty(64, 64, 64)
    traced = acplan.trace(tower, x, workspaces=False)
    traced.save(tmp_path / "trace.json.gz")
    plans = [acplan.plan(source, "70%") for source in (traced, tmp_path / "trace.json.gz")]
    assert plans[0].data[KEY] == plans[1].data[KEY] == json.loads(_plan_text())[KEY]


def _frozen() -> nn.Module:
    model = Tower()
    model.blocks[1].norm.weight.requires_grad_(False)
    return model


def _replaced() -> nn.Module:
    model = Tower()
    model.blocks[0].mlp[1] = nn.ReLU()
    return model


def _without_bias() -> nn.Module:
    model = Tower()
    model.head = nn.Linear(64, 4, bias=False)
    return model


def _with_more() -> nn.Module:
    model = Tower()
    model.blocks[0].add_module("dropout", nn.Dropout())
    return model


DIFFERENCES: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "class": (Net, "expected a Tower, found a Net"),
    "wrapped": (
        lambda: nn.DataParallel(Tower()),
        "expected a Tower, found a DataParallel; apply plans before",
    ),
    "fewer": (lambda: Tower(2), "expected a module Tower.blocks.2, a Block, found none"),
    "more": (lambda: Tower(4), "expected no module Tower.blocks.3, found a Block"),
    "inserted": (_with_more, "expected no module Tower.blocks.0.dropout, found a Dropout"),
    "kind": (_replaced, "Tower.blocks.0.mlp.1: expected a GELU, found a ReLU"),
    "shape": (
        lambda: Tower(width=32),
        r"Tower.blocks.0.norm.weight: expected float32\[64\], found float32\[32\]",
    ),
    "frozen": (
        _frozen,
        r"blocks.1.norm.weight: expected float32\[64\], found float32\[64\], frozen",
    ),
    "missing": (_without_bias, r"Tower.head.bias: expected float32\[4\], found none"),
    "type": (
        lambda: Tower().bfloat16(),
        r"expected float32\[64\], found bfloat16\[64\]; .* param_dtype=torch.float32",
    ),
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_the_first_difference_is_named(name: str, plan_file: pathlib.Path) -> None:
    make, message = DIFFERENCES[name]
    model = make()
    with pytest.raises(AcplanError, match=message):
        acplan.apply(model, plan_file)
    assert not acplan._apply.apply.has_plan(model)


def test_what_does_no_harm_is_no_difference(plan_file: pathlib.Path) -> None:
    with torch.device("meta"):
        assert acplan._apply.apply.has_plan(acplan.apply(Tower(), plan_file))
    model = acplan.apply(Tower(), plan_file)
    assert acplan._apply.apply.has_plan(acplan.apply(acplan.remove(model), plan_file))
    # As a mixed precision policy of fully_shard has it.
    planned_model = acplan.apply(Tower().bfloat16(), plan_file, param_dtype=torch.float32)
    assert acplan._apply.apply.has_plan(planned_model)
    with pytest.raises(AcplanError, match=r"expected float32\[64\], found bfloat16"):
        acplan.apply(Tower(), plan_file, param_dtype=torch.bfloat16)


def test_versions() -> None:
    data = json.loads(_plan_text())
    data[KEY]["torch"] = "1.13.1"
    with pytest.warns(PlanMismatchWarning, match="made with PyTorch 1.13.1"):
        acplan.apply(Tower(), Plan.from_data(data))
    with pytest.raises(AcplanError, match="expected format acplan.plan, version 1"):
        Plan.from_data(data | {"version": 2})
    weight = {"fqn": "Tower", "class": "Tower", "weights": {"weight": 1}}
    for wrong in (
        [],
        {},
        {"torch": "2"},
        {"torch": "2", "modules": [{"fqn": "Tower"}]},
        {"torch": "2", "modules": [weight | {"fqn": ["Tower"]}]},
        {"torch": "2", "modules": [weight]},
    ):
        with pytest.raises(AcplanError, match=f"plan: {KEY}"):
            acplan.apply(Tower(), Plan.from_data(data | {KEY: wrong}))


@pytest.mark.parametrize("name", [0, None, ["mm"], {}])
def test_an_operator_needs_a_name(name: object) -> None:
    data = json.loads(_plan_text())
    data["modules"][0]["ops"][0]["name"] = name
    with pytest.raises(AcplanError, match="expected an operator's name"):
        acplan.apply(Tower(), Plan.from_data(data))


@pytest.mark.parametrize("offload", [5, [], {"stall_ms": "1"}])
def test_figures_of_offload_are_numbers(offload: object) -> None:
    plan = Plan.from_data(json.loads(_plan_text()) | {"offload": offload})
    with pytest.raises(AcplanError, match="stall_ms"):
        _ = plan.stall_ms


def test_gzip_data_that_is_corrupt_or_too_long(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "plan.json.gz"
    packed = gzip.compress(_plan_text().encode())
    path.write_bytes(packed[:20] + b"\xff" * 20 + packed[40:])
    with pytest.raises(AcplanError, match="plan.json.gz"):
        Plan.load(path)
    path.write_bytes(packed)
    assert Plan.load(path).modules
    monkeypatch.setattr("acplan._files.json_files._MOST", len(_plan_text()) - 1)
    with pytest.raises(AcplanError, match="expected at most"):
        Plan.load(path)


def test_files_without_an_end_are_refused_at_their_start(tmp_path: pathlib.Path) -> None:
    with pytest.raises(AcplanError, match="/dev/zero: Expecting value: line 1 column 1"):
        Plan.load("/dev/zero")
    with pytest.raises(AcplanError, match="/dev/zero: expected a pickle of plain values"):
        read_snapshot("/dev/zero")
    path = tmp_path / "plan.json"
    path.write_bytes(_plan_text().encode() + b"\0")
    with pytest.raises(AcplanError, match="expected JSON, found a zero byte"):
        Plan.load(path)


def test_plans_that_do_not_say_for_which_model(plan_file: pathlib.Path) -> None:
    data = json.loads(_plan_text())
    del data[KEY]
    assert acplan._apply.apply.has_plan(acplan.apply(Tower(), Plan.from_data(data)))


def _of_tower() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return Tower(), torch.randn(64, 64, 64)


def _with_units(offloads: bool) -> tuple[nn.Module, nn.Module, torch.Tensor]:
    """Returns a model, a copy with a plan of acplan's own that skips, and an input."""
    model, x = _of_tower()
    data = json.loads(_plan_text())
    if offloads:
        for module in data["modules"]:
            for operator in module["ops"]:
                if operator["decision"] == "save":
                    operator["decision"] = "offload"
    return model, acplan.apply(copy.deepcopy(model), Plan.from_data(data)), x


def _with_a_run() -> tuple[nn.Module, nn.Module, torch.Tensor]:
    model, x = _of_tower()
    step = recorded_step(model, lambda net: net(x).square().mean())
    run = longest_runs(step)[0]
    unit = Unit(with_segment(step, run), name_of(step, run))
    saved = {k for k, name in enumerate(unit.names) if "addmm" in name}
    plan = Plan((unit.planned_module(saved),))
    return model, acplan.apply(copy.deepcopy(model), plan, strict=True), x


def _with_whole_units() -> tuple[nn.Module, nn.Module, torch.Tensor]:
    model, x = _of_tower()
    plan = Plan(tuple(PlannedModule(f"Tower.blocks.{k}") for k in range(3)))
    return model, acplan.apply(copy.deepcopy(model), plan), x


MODELS = {
    "units": lambda: _with_units(offloads=False),
    "offload": lambda: _with_units(offloads=True),
    "run": _with_a_run,
    "whole": _with_whole_units,
}


def _pickled(model: nn.Module) -> nn.Module:
    result: nn.Module = pickle.loads(pickle.dumps(model))
    return result


def _saved_and_loaded(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    result: nn.Module = torch.load(file, weights_only=False)
    return result


COPIES = {"pickle": _pickled, "torch.save": _saved_and_loaded, "deepcopy": copy.deepcopy}


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("kind", MODELS)
def test_copies_have_the_plan(kind: str, how: str) -> None:
    """Before and after the model has trained, and apart from it."""
    model, planned_model, x = MODELS[kind]()
    expected = _gradients(model, x)
    for _ in range(2):
        copied = COPIES[how](planned_model)
        assert acplan._apply.apply.has_plan(copied)
        for net in (planned_model, copied):
            assert all(map(torch.equal, _gradients(net, x), expected))
    # The same operators run again in the copy.
    assert _backward_operators(copied, x) == _backward_operators(planned_model, x)
    assert _backward_operators(copied, x) > _backward_operators(model, x)
    acplan.remove(planned_model)
    assert acplan._apply.apply.has_plan(copied) and not acplan._apply.apply.has_plan(
        planned_model
    )
    plain = acplan.remove(copied)
    assert str(plain) == str(model)
    assert all(map(torch.equal, _gradients(plain, x), expected))


def _backward_operators(model: nn.Module, x: torch.Tensor) -> int:
    from sharding_cases import Names

    model.zero_grad()
    loss = model(x).square().mean()
    with Names() as names:
        loss.backward()
    return len(names.operators)


@pytest.mark.parametrize("kind", MODELS)
def test_evaluation_and_export_are_those_without(kind: str) -> None:
    model, planned_model, x = MODELS[kind]()
    model.eval(), planned_model.eval()
    expected = model(x)
    assert torch.equal(planned_model(x), expected)
    with torch.no_grad():
        assert torch.equal(planned_model(x), expected)
        exported = torch.export.export(planned_model, (x,))
        assert torch.equal(exported.module()(x), expected)
    with torch.inference_mode():
        assert torch.equal(planned_model(x), expected)
    exported = torch.export.export(planned_model, (x,))  # with gradients
    assert list(exported.state_dict) == list(model.state_dict())
    assert "checkpoint" not in exported.graph_module.code
    assert torch.equal(exported.module()(x), expected)


def _names_by_children(module: nn.Module) -> list[str]:
    """Returns the names of parameters as transformers finds those that are decayed."""
    inner_names = [
        f"{name}.{inner}"
        for name, child in module.named_children()
        for inner in _names_by_children(child)
    ]
    return inner_names + list(module._parameters)


@pytest.mark.parametrize("kind", MODELS)
def test_names_are_those_without(kind: str) -> None:
    model, planned_model, _ = MODELS[kind]()
    for names in (
        lambda net: [name for name, _ in net.named_parameters()],
        lambda net: [name for name, _ in net.named_parameters(remove_duplicate=False)],
        lambda net: [name for name, _ in net.named_buffers()],
        lambda net: list(net.state_dict()),
        _names_by_children,
    ):
        assert names(planned_model) == names(model)
    of_modules = dict(planned_model.named_modules())
    for name, module in model.named_modules():
        assert type(of_modules[name]) is type(module)
        planned_model.get_submodule(name)
    for part in planned_model.double().modules():
        assert all(p.dtype is torch.float64 for p in part._parameters.values())
    other = {name: torch.zeros_like(value) for name, value in model.state_dict().items()}
    planned_model.load_state_dict(other)
    assert not any(value.any() for value in planned_model.parameters())
    with pytest.raises(RuntimeError, match="Missing key"):
        planned_model.load_state_dict(dict(list(other.items())[1:]))


def test_generation_is_that_without() -> None:
    model = _gpt2()
    planned_model = acplan.apply(
        copy.deepcopy(model),
        Plan(tuple(PlannedModule(f"GPT2LMHeadModel.transformer.h.{k}") for k in range(3))),
    )
    tokens = torch.arange(8).view(1, 8)
    outputs = [
        net.eval().generate(tokens, max_new_tokens=4, do_sample=False, use_cache=cached)
        for net in (model, planned_model)
        for cached in (True, False)
    ]
    assert outputs[0].shape == (1, 12)
    assert all(torch.equal(tokens, outputs[0]) for tokens in outputs)


def test_removal_gives_the_modules_back() -> None:
    for make in MODELS.values():
        _, planned_model, x = make()
        modules = [m for m in planned_model.modules() if not hasattr(m, "checkpoint_fn")]
        _gradients(planned_model, x)
        assert acplan.remove(planned_model) is planned_model
        assert list(map(id, planned_model.modules())) == list(map(id, modules))
        assert acplan.remove(planned_model) is planned_model  # nothing happens
