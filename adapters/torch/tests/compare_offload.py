"""Plans that offload, beside the settings that people use, on the same traces and links.

    ACPLAN=... PYTHONPATH=. python tests/compare_offload.py

writes docs/measured/offload_flags.csv and offload_least.csv; with names of bundled traces after
it, it prints only those. No model runs: each setting is a plan that `acplan simulate` plays.
Beside each plan over a link is the one without it for the same budget, and the CPU seconds of
both; it prints how many times as long the former take.
"""

import dataclasses
import json
import pathlib
import re
import resource
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from acplan import AcplanError, Plan, PlannedModule, Trace, plan
from acplan import PlannedOperator as Op
from acplan._base.question import question_folder
from acplan._files.json_files import read_json
from tables import Table

_TRACES = pathlib.Path(__file__).parents[3] / "data" / "traces"
_MODELS = (
    "gpt2_small", "gpt2_small_autocast", "bert_base", "llama3_8b", "mixtral_4_layers",
    "t5_small", "vit_base", "swin_tiny", "resnet50", "resnet50_autocast",
)  # fmt: skip
# Bytes a second each way: PCIe 3 and 4 of 16 lanes as copies get them, and a quarter of
# NVLink-C2C.
_LINKS = {"12GB/s": 12e9, "25GB/s": 25e9, "100GB/s": 100e9}
_OPTIONS = {"decisions": "save,recompute,skip", "segments": "auto", "time_limit": "20"}
# The largest class of numbered modules, or one that is called more often and nearly as large.
_NEARLY = 0.8


@dataclasses.dataclass(frozen=True)
class Played:
    """The figures of a step with a plan."""

    peak_bytes: int
    recompute_ms: float
    stall_ms: float
    host_bytes: int
    bound_ms: float = 0.0
    seconds: float = 0.0  # of computing, to plan it

    @property
    def cost_ms(self) -> float:
        return self.recompute_ms + self.stall_ms


def blocks_of(data: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the calls of the blocks of a model: numbered modules of the class that runs most
    of the forward pass."""
    by_class: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for call in data["calls"]:
        module = data["modules"][call["module"]]
        if re.fullmatch(r"\d+", module["fqn"].rpartition(".")[2]):
            by_class[module["class"]].append(call)
    sizes = {k: sum(c["end"] - c["start"] for c in calls) for k, calls in by_class.items()}
    most = max(sizes.values())
    large = [calls for k, calls in by_class.items() if sizes[k] >= _NEARLY * most]
    return max(large, key=len)


def _fqn(data: dict[str, Any], call: dict[str, Any]) -> str:
    name: str = data["modules"][call["module"]]["fqn"]
    return name


def recomputed(data: dict[str, Any], arguments: tuple[int, ...]) -> Plan:
    """Returns the plan that runs all blocks again, with some of their arguments offloaded."""
    blocks = blocks_of(data)
    return Plan(
        tuple(PlannedModule(_fqn(data, c), offloaded_arguments=arguments) for c in blocks)
    )


def everything_moved(data: dict[str, Any]) -> Plan:
    """Returns the plan that moves the inputs of blocks, and all that autograd saves there."""
    return Plan(
        tuple(_keeping_unit(data, call, lambda _: True, (0,)) for call in blocks_of(data))
    )


def fraction_moved(data: dict[str, Any], fraction: float) -> Plan:
    """Returns the plan of Megatron-LM's fine-grained offload for all modules in a block, with
    `activation_offload_fraction`.

    A group is what autograd saves in a call of a module directly in a block, of tensors of
    2**20 elements of two bytes or more. The last group of each module's name stays, and of
    the others the last ones, so that the fraction moves. The rest is saved; nothing runs
    again."""
    blocks = blocks_of(data)
    groups: list[tuple[str, set[int]]] = []
    for call in data["calls"]:
        if call["parent"] >= 0 and data["calls"][call["parent"]] in blocks:
            large = {s for s in _saved_in(data, call) if _is_large(data["storages"][s])}
            if large:
                groups.append((_fqn(data, call).rpartition(".")[2], large))
    last = {name: number for number, (name, _) in enumerate(groups)}
    others = [group for number, group in enumerate(groups) if last[group[0]] != number]
    staying = int(len(others) * (1 - fraction))
    moved_storages = {
        storage for _, large in others[: len(others) - staying] for storage in large
    }
    return Plan(
        tuple(
            _keeping_unit(
                data,
                block,
                moved_storages.__contains__,
                _places_of(data, block, moved_storages),
            )
            for block in blocks
        )
    )


def _is_large(storage: dict[str, Any]) -> bool:
    return storage["category"] == "activation" and storage["bytes"] >= 2 * 2**20


def _places_of(
    data: dict[str, Any], call: dict[str, Any], storages: set[int]
) -> tuple[int, ...]:
    """Returns the places of a call's arguments in some storages."""
    argument_storages = [data["tensors"][tensor]["storage"] for tensor in call["arguments"]]
    return tuple(
        place for place, storage in enumerate(argument_storages) if storage in storages
    )


def _saved_in(data: dict[str, Any], call: dict[str, Any]) -> set[int]:
    """Returns the storages of what autograd saves in a call."""
    return {
        saved["storage"]
        for saved in data["saved"]
        if call["start"] < saved["packed"] <= call["end"]
    }


def _keeping_unit(
    data: dict[str, Any],
    call: dict[str, Any],
    moves: Callable[[int], bool],
    arguments: tuple[int, ...],
) -> PlannedModule:
    """Returns the block as a unit that keeps all that autograd saves there."""
    kept_storages = _saved_in(data, call)
    operators = []
    for operator in data["operators"][call["start"] : call["end"]]:
        creates = set(operator["outputs"]) - set(operator["reads"])
        name = operator["name"]
        results = creates & kept_storages
        if operator.get("view"):
            operators.append(Op(name, False))
        elif results:
            operators.append(Op(name, True, offload=any(map(moves, results))))
        else:
            operators.append(Op(name, False, skip=True))
    return PlannedModule(_fqn(data, call), tuple(operators), offloaded_arguments=arguments)


def play(trace: Trace, setting_plan: Plan, rate: float) -> Played:
    """Plays a step with a plan. Raises AcplanError for a plan that is refused."""
    with question_folder() as folder:
        setting_plan.save(folder.path_of("plan"), model=trace.data["model"]["name"])
        data = read_json(folder.path_of("plan"))
        data["offload"] = {
            "bytes_per_second": rate, "host_bytes": 0, "sent_bytes": 0, "storages": 0,
            "stall_ms": 0,
        }  # fmt: skip
        Plan.from_data(data).save(folder.path_of("plan"))
        question = {"trace": folder.add("trace", trace), "plan": "plan", "json": True}
        out = folder.ask("simulate", question).require_success().out
    step = json.loads(out)["planned"]
    offload = step.get("offload", {})
    return Played(
        step["peak_bytes"], step["recompute_ms"], offload.get("stall_ms", 0),
        offload.get("host_bytes", 0),
    )  # fmt: skip


def _of_plan(own_plan: Plan, seconds: float) -> Played:
    offload = own_plan.data.get("offload") or {}
    return Played(
        own_plan.peak_bytes,
        own_plan.recompute_ms,
        own_plan.stall_ms or 0,
        offload.get("host_bytes", 0),
        own_plan.bound_ms,
        seconds,
    )


def _best(trace: Trace, budget: int | str, **options: str) -> Played | None:
    """Returns what the plan of acplan does within a budget."""
    before = _computed_seconds()
    try:
        own_plan = plan(trace, budget, progress=False, **_OPTIONS, **options)
    except AcplanError:
        return None
    return _of_plan(own_plan, _computed_seconds() - before)


def _computed_seconds() -> float:
    """Returns the seconds that programs have computed for this process."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def compare(name: str, flags: Table, least: Table) -> list[float]:
    """Adds the rows of a trace. Returns how many times as long plans with offload take."""
    ratios: list[float] = []
    trace = Trace.load(_TRACES / f"{name}.json.gz")
    data = trace.data
    settings = {
        "none": Plan(()),
        "blocks run again": recomputed(data, ()),
        "block inputs moved": recomputed(data, (0,)),
        "everything moved": everything_moved(data),
        "Megatron, 50%": fraction_moved(data, 0.5),
        "Megatron, 100%": fraction_moved(data, 1.0),
    }
    alone_at: dict[int, Played | None] = {}
    for link, rate in _LINKS.items():
        for setting, setting_plan in settings.items():
            try:
                theirs = play(trace, setting_plan, rate)
            except AcplanError:
                flags.add(name, link, setting, "refused")
                continue
            ours = _best(trace, theirs.peak_bytes, offload=link)
            if theirs.peak_bytes not in alone_at:
                alone_at[theirs.peak_bytes] = _best(trace, theirs.peak_bytes)
            alone = alone_at[theirs.peak_bytes]
            cells = [f"{x:.3f}" for x in (theirs.recompute_ms, theirs.stall_ms)]
            if ours is not None:
                cells += [str(theirs.host_bytes), f"{ours.recompute_ms:.3f}"]
                cells += [f"{ours.stall_ms:.3f}", str(ours.host_bytes)]
                cells += [f"{ours.bound_ms:.3f}", f"{ours.seconds:.2f}"]
                cells += ["", ""] if alone is None else [f"{alone.recompute_ms:.3f}"]
                if alone is not None:
                    cells.append(f"{alone.seconds:.2f}")
                    ratios += [ours.seconds / alone.seconds] if theirs.cost_ms else []
                is_no_worse = ours.cost_ms <= theirs.cost_ms + 1e-6
                cells.append("yes" if is_no_worse else "no")
            flags.add(name, link, setting, theirs.peak_bytes, *cells)
    least_plan = _best(trace, "min")
    assert least_plan is not None
    cells = [str(least_plan.peak_bytes), f"{least_plan.recompute_ms:.3f}"]
    for link in _LINKS:
        offload_plan = _best(trace, "min", offload=link)
        at_same = _best(trace, least_plan.peak_bytes, offload=link)
        assert offload_plan is not None and at_same is not None
        cells += [
            str(offload_plan.peak_bytes),
            f"{offload_plan.cost_ms:.3f}",
            f"{at_same.cost_ms:.3f}",
        ]
    least.add(name, *cells)
    return ratios


def main(names: list[str]) -> None:
    flags = Table(
        "offload_flags",
        ["trace", "link", "setting", "peak bytes", "recomputed ms", "waited ms", "host bytes",
         "acplan: recomputed ms", "acplan: waited ms", "acplan: host bytes", "bound ms",
         "seconds", "without the link: ms", "without: seconds", "no worse"],
        is_partial=bool(names),
    )  # fmt: skip
    columns = ["trace", "least budget without offload", "recomputed ms"]
    for link in _LINKS:
        columns += [
            f"{link}: least budget",
            f"{link}: ms there",
            f"{link}: ms without's budget",
        ]
    least = Table("offload_least", columns, is_partial=bool(names))
    ratios = [ratio for name in names or _MODELS for ratio in compare(name, flags, least)]
    middle, most = statistics.median(ratios), max(ratios)
    print(f"planning takes {middle:.1f} times as long, at most {most:.1f}")


if __name__ == "__main__":
    main(sys.argv[1:])
