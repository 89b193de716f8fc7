import json
import os
import pathlib
from typing import Any

import pytest
import torch
import transformers
from torch import nn
from torch._functorch.aot_autograd import aot_export_joint_simple
from torch.utils.flop_counter import FlopCounterMode

from acplan import AcplanError
from acplan.__main__ import main
from acplan._base.program import run_acplan
from acplan._files.json_files import read_json, write_json
from acplan._peers.dataflow import dataflow_graph

Graph = dict[str, Any]


def _by_the_rules(graph: Graph) -> dict[str, int]:
    """Follows ColossalAI's rules, word by word."""
    info = dict.fromkeys(
        (
            "fwd_flop",
            "bwd_flop",
            "fwd_mem_in",
            "fwd_mem_tmp",
            "bwd_mem_tmp",
            "bwd_mem_out",
        ),
        0,
    )
    nodes = {node["name"]: node for node in graph["nodes"]}
    users: dict[str, list[Graph]] = {name: [] for name in nodes}
    for node in graph["nodes"]:
        for read in set(node["inputs"]):
            users[read].append(node)
    live: dict[str, int] = {}
    for name, node in nodes.items():
        is_backward = node["stage"] == "backward"
        info["bwd_flop" if is_backward else "fwd_flop"] += node.get("flops", 0)
        feeds_loss = any(user["stage"] == "loss" for user in users[name])
        if node["saved"] and not feeds_loss:
            if node["stage"] == "placeholder":
                info["fwd_mem_in"] += node["bytes"]
            if node["stage"] == "forward":
                info["fwd_mem_tmp"] += node["bytes"]
        elif is_backward and users[name]:
            live[name] = len(users[name])
            in_use = sum(nodes[k]["bytes"] for k, uses in live.items() if uses > 0)
            info["bwd_mem_tmp"] = max(info["bwd_mem_tmp"], in_use)
            for read in set(node["inputs"]):
                if read in live:
                    live[read] -= 1
        elif is_backward:
            info["bwd_mem_out"] += node["bytes"]
    return info


def _by_acplan(graph: Graph, folder: pathlib.Path) -> dict[str, int]:
    path = str(folder / "graph.json.gz")
    write_json(path, graph)
    answer = json.loads(run_acplan(["module", "dataflow", path, "--json"]))
    return {name: answer[name] for name in _by_the_rules({"nodes": []})}


def _perceptron() -> Graph:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    return dataflow_graph(model, torch.randn(3, 4), loss_fn=lambda y: y.sum())


def _marks(graph: Graph, stage: str) -> dict[str, tuple[int, bool]]:
    return {
        node["name"]: (node["bytes"], node["saved"])
        for node in graph["nodes"]
        if node["stage"] == stage
    }


def test_a_perceptron_is_what_a_hand_finds() -> None:
    graph = _perceptron()
    assert (graph["format"], graph["version"]) == ("acplan.dataflow", 1)
    assert graph["model"]["name"] == "Sequential"
    # Backward reads the second weight, not the first: x needs no gradient.
    assert _marks(graph, "placeholder") == {
        "Sequential.0.weight": (128, False),
        "Sequential.0.bias": (32, False),
        "Sequential.2.weight": (64, True),
        "Sequential.2.bias": (8, False),
        "input:0": (48, True),
        "gradient:loss": (4, False),
    }
    assert _marks(graph, "forward") == {
        "t": (128, False),
        "addmm": (96, False),
        "relu": (96, True),
        "t_1": (64, False),
        "addmm_1": (24, False),
    }
    assert _marks(graph, "loss") == {"sum_1": (4, False)}
    backward = _marks(graph, "backward")
    assert not any(saved for _, saved in backward.values())
    assert backward["threshold_backward"] == (96, False)
    flops = {n["name"]: n["flops"] for n in graph["nodes"] if "flops" in n}
    # 2 m n k each.
    assert flops["addmm"] == 192 and flops["addmm_1"] == 96
    assert sorted(flops.values()) == [96, 96, 96, 192, 192]
    inputs = {node["name"]: node["inputs"] for node in graph["nodes"]}
    assert inputs["addmm"] == ["Sequential.0.bias", "input:0", "t"]
    assert inputs["sum_1"] == ["addmm_1"]
    assert inputs["threshold_backward"][-1] == "relu"


def test_info_of_a_perceptron(tmp_path: pathlib.Path) -> None:
    info = _by_acplan(_perceptron(), tmp_path)
    assert info == _by_the_rules(_perceptron())
    assert info["fwd_flop"] == 288 and info["bwd_flop"] == 384
    assert info["fwd_mem_in"] == 64 + 48
    assert info["fwd_mem_tmp"] == 96
    assert info["bwd_mem_out"] == 128 + 32 + 64 + 8


def test_the_nodes_are_those_of_aotautograd() -> None:
    def net(w: Any, b: Any, x: Any) -> tuple[torch.Tensor]:
        return (torch.tanh(nn.functional.linear(x, w, b)).mean(),)

    class Net(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return net(self.weight, self.bias, x)[0]

    w, b, x = torch.randn(8, 4), torch.randn(8), torch.randn(3, 4)
    arguments = (w.requires_grad_(), b.requires_grad_(), x)
    joint = aot_export_joint_simple(net, arguments, trace_joint=True).graph
    # In this one all of backward depends on the gradient of the loss.
    *_, tangent = joint.find_nodes(op="placeholder")
    backward = {tangent}
    expected = []
    for node in joint.nodes:
        if node.op == "call_function" and "detach" not in node.name:
            is_backward = not backward.isdisjoint(node.all_input_nodes)
            backward |= {node} if is_backward else set()
            expected.append((node.name, "backward" if is_backward else "forward"))
    nodes = dataflow_graph(Net(4, 8), x, loss_fn=lambda loss: loss)["nodes"]
    assert expected == [
        (node["name"], "forward" if node["stage"] == "loss" else node["stage"])
        for node in nodes
        if node["stage"] != "placeholder"
    ]


def _gpt2(**changes: Any) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    config = transformers.GPT2Config(use_cache=False, **changes)
    with torch.device("meta"):
        tokens = torch.zeros(2, 64, dtype=torch.long)
        model = transformers.GPT2LMHeadModel(config)
    return model, {"input_ids": tokens, "labels": tokens}


def _resnet() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    config = transformers.ResNetConfig(depths=[1, 1, 1, 1])
    with torch.device("meta"):
        model = transformers.ResNetForImageClassification(config)
        images, labels = torch.zeros(2, 3, 64, 64), torch.zeros(2, dtype=torch.long)
    return model, {"pixel_values": images, "labels": labels}


def _t5() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    config = transformers.T5Config(
        num_layers=1, num_decoder_layers=1, decoder_start_token_id=0, use_cache=False
    )
    with torch.device("meta"):
        model = transformers.T5ForConditionalGeneration(config).bfloat16()
        tokens = torch.zeros(2, 16, dtype=torch.long)
    return model, {"input_ids": tokens, "labels": tokens}


@pytest.mark.parametrize(
    ("make", "autocast"),
    [(_gpt2, None), (_gpt2, torch.bfloat16), (_resnet, None), (_t5, None)],
)
def test_real_models(make: Any, autocast: Any, tmp_path: pathlib.Path) -> None:
    model, inputs = make()
    graph = dataflow_graph(model, autocast=autocast, **inputs)
    info = _by_acplan(graph, tmp_path)
    assert info == _by_the_rules(graph)
    parameters = sum(p.numel() * p.element_size() for p in model.parameters())
    assert info["bwd_mem_out"] == parameters
    assert info["bwd_flop"] > 1.5 * info["fwd_flop"] > 0

    # Stages run in turn, and what depends on the loss's gradient is backward.
    nodes = graph["nodes"]
    stages = [node["stage"] for node in nodes if node["stage"] != "placeholder"]
    start = stages.index("backward")
    assert set(stages[start:]) == {"backward"} and stages.count("loss") == 1
    depends = {"gradient:loss"}
    for node in nodes:
        if depends & set(node["inputs"]):
            depends.add(node["name"])
            assert node["stage"] == "backward"
    assert depends > {node["name"] for node in nodes[-3:]}
    # Backward reads nothing of forward that is neither saved nor a view of it.
    by_name = {node["name"]: node for node in nodes}
    for node in nodes:
        if node["stage"] != "backward":
            continue
        for name in node["inputs"]:
            read = by_name[name]
            if read["stage"] == "forward" and not read["saved"]:
                assert _views_saved(read, by_name)


def _views_saved(node: Graph, by_name: dict[str, Graph]) -> bool:
    sources = (by_name[name] for name in node["inputs"])
    return any(before["saved"] or _views_saved(before, by_name) for before in sources)


def test_flops_are_those_of_the_flop_counter(tmp_path: pathlib.Path) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 5))
    x = torch.randn(2, 3, 8, 8)
    info = _by_acplan(dataflow_graph(model, x, loss_fn=lambda y: y.sum()), tmp_path)
    counts = []
    with FlopCounterMode(display=False) as counter:
        loss = model(x).sum()
        counts.append(counter.get_total_flops())
        loss.backward()
        counts.append(counter.get_total_flops() - counts[0])
    assert [info["fwd_flop"], info["bwd_flop"]] == counts


def test_what_lives_in_one_storage_is_saved_once() -> None:
    class Net(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            first, second = super().forward(x).chunk(2, -1)
            return (first * second).sum()

    graph = dataflow_graph(Net(4, 8), torch.randn(3, 4))
    saved = [node["name"] for node in graph["nodes"] if node["saved"]]
    assert saved == ["input:0", "addmm"]


def test_writes_in_place_and_constants() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(
                nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True)
            )
            self.frozen = nn.Parameter(torch.ones(4, 1, 1), requires_grad=False)
            self.unused = nn.Parameter(torch.ones(2))
            self.constant = torch.ones(6)

        def forward(self, x: torch.Tensor, scale: float) -> torch.Tensor:
            return (self.layers(x) * self.frozen * self.constant + scale).sum()

    model = Net()
    graph = dataflow_graph(model, torch.randn(2, 3, 8, 8), 2.0)
    placeholders = _marks(graph, "placeholder")
    assert placeholders["Net.frozen"] == (16, True)
    assert placeholders["Net.unused"] == (8, False)
    assert placeholders["_tensor_constant0"] == (24, True)
    assert placeholders["Net.layers.1.running_mean"][0] == 16
    trained = sum(p.numel() * 4 for p in model.layers.parameters())
    assert _by_the_rules(graph)["bwd_mem_out"] == trained
    assert all(p.grad is None for p in model.parameters())
    assert torch.equal(model.layers[1].running_mean, torch.zeros(4))


def test_an_input_given_twice_is_one_placeholder() -> None:
    class Net(nn.Linear):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return (super().forward(x) * y).sum()

    x = torch.randn(3, 4)
    graph = dataflow_graph(Net(4, 4), x, x)
    assert [n["name"] for n in graph["nodes"] if n["saved"]] == ["input:0"]


def test_a_loss_without_trained_parameters_is_refused() -> None:
    class Net(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x).sum()

    with pytest.raises(AcplanError, match="^no parameter of the model requires"):
        dataflow_graph(Net(2, 2).requires_grad_(False), torch.randn(1, 2))


_FLAGS = ["--hf-config", "gpt2", "--set", "n_layer=1", "--batch", "2", "--seq", "16"]


def test_the_command_writes_the_graph(
    tmp_path: pathlib.Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["dataflow", *_FLAGS, "-o", "g.json.gz"]) == 0
    graph = read_json("g.json.gz")
    assert graph["model"] == {
        "name": "GPT2LMHeadModel",
        "root_class": "GPT2LMHeadModel",
        "batch": 2,
        "seq": 16,
        "dtype": "float32",
    }
    saved = sum(node["saved"] for node in graph["nodes"])
    said = capsys.readouterr()
    assert said.out == f"g.json.gz: {len(graph['nodes']):,} nodes, {saved:,} saved\n"
    assert said.err == ""


def test_the_command_takes_factories(tmp_path: pathlib.Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "made_for_dataflow.py").write_text(
        "import torch\n"
        "def make():\n"
        "    return {'model': torch.nn.Linear(4, 2), 'args': (torch.ones(3, 4),),\n"
        "            'loss_fn': lambda y: y.square().sum()}\n"
    )
    command = ["dataflow", "--factory", "made_for_dataflow:make", "-o", "g.json"]
    assert main(command) == 0
    plain = read_json("g.json")
    assert plain == dataflow_graph(
        nn.Linear(4, 2), torch.ones(3, 4), loss_fn=lambda y: y.square().sum()
    )
    assert main([*command, "--autocast", "bfloat16"]) == 0
    addmm = next(n for n in read_json("g.json")["nodes"] if n["name"] == "addmm")
    assert addmm["bytes"] == 3 * 2 * 2


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--device", "h100", "-o", "g.json"], "--device: needs trace, plan"),
        (["--optimizer", "sgd", "-o", "g.json"], "--optimizer: needs trace, plan"),
        (["-o", "none/g.json"], "there is no folder 'none'"),
    ],
)
def test_the_command_refuses(
    flags: list[str], said: str, tmp_path: pathlib.Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["dataflow", *_FLAGS, *flags]) == 2
    assert said in capsys.readouterr().err
    assert os.listdir() == []
