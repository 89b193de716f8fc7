"""Plans of the models of any_schedule.csv over a link, beside those without one.

    ACPLAN=... PYTHONPATH=. python tests/compare_offload_models.py FOLDER

writes docs/measured/offload_models.csv: least budgets with and without offload of results and
of arguments, and what plans recompute and wait for at shares of the way from the least budget
without offload to what the step needs without a plan. With names of models after the folder it
prints only those. The folder keeps the traces. No plan is applied here: compare_schedules.py
traces such plans again.
"""

import pathlib
import resource
import sys
from collections.abc import Iterator

import torch

from acplan import AcplanError, Plan, plan
from measured import subject
from models import MODELS
from models_further import FURTHER
from tables import Table, print_versions

_SHARES = (0.4, 0.2, 0.0)
_LINK = "25GB/s"
_DEVICE_ONLY = {"decisions": "save,recompute,skip", "segments": "auto", "time_limit": "2"}
_OFFLOADING = _DEVICE_ONLY | {"offload": _LINK, "time_limit": "4"}


def _traced(name: str, folder: pathlib.Path) -> pathlib.Path:
    """Returns the path of the model's trace, which it makes if the folder has none."""
    path = folder / "".join(c if c.isalnum() else "_" for c in name)
    path = path.with_name(f"{path.name}.json.gz")
    if not path.exists():
        make, autocast = (MODELS | FURTHER)[name]
        with subject(make(), autocast, path):
            pass
    return path


def _plan_and_seconds(
    path: pathlib.Path, budget: int | str, **options: str
) -> tuple[Plan | None, float]:
    """Returns the plan, None if there is none, and the processor time of the program."""
    before = _seconds()
    try:
        found_plan = plan(path, budget, progress=False, **options)
    except AcplanError:
        found_plan = None
    return found_plan, _seconds() - before


def _seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _row(path: pathlib.Path, budget: int | str) -> tuple[list[str], Plan | None]:
    """Returns the cells of a budget, and the plan without offload."""
    device_plan, device_seconds = _plan_and_seconds(path, budget, **_DEVICE_ONLY)
    offload_plan, seconds = _plan_and_seconds(path, budget, **_OFFLOADING)
    cells = []
    for each in (device_plan, offload_plan):
        if each is None:
            cells += ["none", "", ""]
        else:
            cells += [str(each.budget_bytes), f"{each.recompute_ms:.5g}"]
            cells.append(f"{each.stall_ms or 0:.5g}")
    link_use = None if offload_plan is None else offload_plan.data.get("offload")
    cells += [str(link_use["host_bytes"]) if link_use else "", str(_arguments(offload_plan))]
    cells += [f"{device_seconds:.2f}", f"{seconds:.2f}"]
    return cells, device_plan


def _arguments(offload_plan: Plan | None) -> int:
    """Returns how many arguments of units a plan moves."""
    units = offload_plan.modules if offload_plan else ()
    return sum(len(unit.offloaded_arguments) for unit in units)


def rows(name: str, folder: pathlib.Path) -> Iterator[list[str]]:
    """Yields the rows of a model, that of the least budgets first."""
    path = _traced(name, folder)
    cells, least = _row(path, "min")
    yield [name, "least", *cells]
    if least is None:
        return
    for share in _SHARES:
        room = least.baseline_peak_bytes - least.budget_bytes
        cells, _ = _row(path, least.budget_bytes + round(share * room))
        yield [name, f"{share:.0%}", *cells]


def main(folder: str, *names: str) -> None:
    print_versions("transformers", "diffusers")
    torch.set_num_threads(1)
    table = Table(
        "offload_models",
        ["model", "budget", "bytes", "recomputed ms", "waited ms", f"{_LINK}: bytes",
         "recomputed ms", "waited ms", "host bytes", "arguments moved", "seconds without",
         "seconds"],
        is_partial=bool(names),
    )  # fmt: skip
    pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
    for name in names or MODELS | FURTHER:
        for row in rows(name, pathlib.Path(folder)):
            table.add(*row)


if __name__ == "__main__":
    main(*sys.argv[1:])
