"""Plans of a model as it is, beside plans of the same model compiled, at the same budget."""

import pathlib
from collections import Counter
from typing import Any

import torch
from torch._functorch import partitioners

import acplan
from acplan._device.devices import DEVICES
from acplan._files.json_files import read_json, write_json
from acplan._graphs.joint_graph import JointGraph
from acplan._graphs.pytorch_partitioner import choosing
from acplan._graphs.remat import plan_graph
from joint_cases import joint_of
from models_compiled import MODELS

NAMES = ("GPT-2 small, 8 x 1024", "BERT base, 16 x 512", "ResNet-50, 16 x 224")
_SHARE = 0.6
_TIME_LIMIT = 30.0


def rows_of(name: str, folder: pathlib.Path) -> list[dict[str, Any]]:
    """Returns a row for each way. Makes them if the folder has none."""
    file = folder / ("".join(c if c.isalnum() else "_" for c in name) + ".eager.json")
    if not file.exists():
        write_json(file, _new_rows(name))
    return list(read_json(file))


def _new_rows(name: str) -> list[dict[str, Any]]:
    make, inputs = MODELS[name]

    with torch.device("meta"):
        model, arguments = make(), inputs()
    traced = acplan.trace(model, optimizer="sgd", workspaces=False, **arguments)
    eager = acplan.plan(traced, f"{_SHARE:.0%}")
    reruns = Counter(
        _short(operator.name)
        for module in eager.modules
        for operator in module.operators
        if not operator.save and not operator.skip
    )
    rows = [
        _row("as it is", eager.peak_bytes, eager.recompute_ms, eager.data["status"], reruns)
    ]
    for is_inductors in (False, True):
        plan, graph = _compiled(name, eager.budget_bytes, is_inductors)
        op_of = {node["name"]: _short(node["op"]) for node in graph["nodes"]}
        reruns = Counter(op_of[node] for node in plan["recomputed"])
        way = "compiled, Inductor's kernels" if is_inductors else "compiled, operators alone"
        figures = (plan["peak_bytes"], plan["recompute_ms"], plan["status"])
        rows.append(_row(way, *figures, reruns))
    return rows


def _short(operator: str) -> str:
    """Returns the bare name of an operator: `add` of aten.add.Tensor."""
    parts = operator.split(".")
    return parts[1] if len(parts) > 1 else operator


def _row(
    way: str, peak_bytes: int, ms: float, status: str, reruns: Counter[str]
) -> dict[str, Any]:
    names = ", ".join(f"{name} × {count}" for name, count in reruns.most_common(5))
    return {
        "way": way,
        "peak_bytes": peak_bytes,
        "ms": ms,
        "status": status,
        "count": reruns.total(),
        "named": names,
    }


def _compiled(
    name: str, budget: int, is_inductors: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    with joint_of(*MODELS[name], is_inductors=is_inductors) as joint:
        graphs: list[dict[str, Any]] = []

        def choose(joint_graph: Any, node_info: Any) -> None:
            count = joint.options["num_fwd_outputs"]
            graph = JointGraph(
                joint.module, node_info, count, DEVICES["a100"], is_fused=is_inductors
            )
            graphs.append(graph.data(name))

        with choosing(choose):
            partitioners.min_cut_rematerialization_partition(
                joint.module, joint.inputs, **joint.options
            )
        return plan_graph(graphs[0], budget, _TIME_LIMIT), graphs[0]
