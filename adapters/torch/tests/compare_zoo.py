"""Plans for tiny models of many architectures of transformers and diffusers: each is
traced, planned at three budgets, and held against its step traced again and against a
real step without the plan.

    ACPLAN=... PYTHONPATH=. python tests/compare_zoo.py

writes docs/measured/zoo.csv; with names of models after it, it prints only those. Needs transformers
and diffusers, and no network.
"""

import concurrent.futures
import dataclasses
import logging
import multiprocessing
import multiprocessing.connection
import os
import pathlib
import random
import resource
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Sequence
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy
import torch
import transformers
from torch.utils._pytree import tree_map_only

import acplan
from acplan import AcplanError, Plan, Trace
from acplan._step.training_step import default_loss
from acplan._verify.verify import verifying
from architectures import Architecture
from measured import same_ms
from tables import Table, print_versions
from zoo_models import EXCEPTIONS, ZOO

# Shares of the way from the least that any plan needs to what the step needs without one.
SHARES = (0.75, 0.5)
_TIME_LIMIT = 2.0  # seconds, of one search
_MOST_SECONDS = 200  # of one model, on the processor


@dataclasses.dataclass(frozen=True)
class Planned:
    """One budget's plan; `wrong` is what did not hold, "" where all did."""

    share: float
    overhead: float
    is_optimal: bool
    wrong: str


@dataclasses.dataclass(frozen=True)
class Result:
    kind: str
    operators: int = 0
    peak_bytes: int = 0
    plans: tuple[Planned, ...] = ()
    error: str = ""

    @property
    def wrong(self) -> str:
        """All that did not hold, in one line."""
        failures = [f"{plan.share:.0%}: {plan.wrong}" for plan in self.plans if plan.wrong]
        return "; ".join([self.error] * bool(self.error) + failures)


def batch_of(architecture: Architecture) -> dict[str, Any]:
    """Returns a batch, padded on the right if the model takes a mask."""
    variants = architecture.variants
    return variants.get("padded right", next(iter(variants.values())))()


def result_of(architecture: Architecture) -> Result:
    """Traces, plans and verifies one model."""
    model = architecture.make()
    kind = type(model).__name__
    inputs = batch_of(architecture)
    with tempfile.TemporaryDirectory(prefix="acplan-") as folder:
        traced = acplan.trace(model, progress=False, **inputs)
        path = pathlib.Path(folder) / "trace.json"
        traced.save(path)
        least = acplan.plan(path, "min", time_limit=_TIME_LIMIT, without_host=True)
        least_bytes, most = least.budget_bytes, traced.peak_bytes
        budgets = [least_bytes + round(share * (most - least_bytes)) for share in SHARES]
        plans = [
            acplan.plan(path, b, time_limit=_TIME_LIMIT, without_host=True) for b in budgets
        ] + [least]
    traced_again = _wrong_when_traced(architecture, traced, plans)
    run = _wrong_when_run(architecture, plans)
    wrong = ["; ".join(filter(None, both)) for both in zip(traced_again, run, strict=True)]
    return Result(
        kind,
        len(traced.data["operators"]),
        most,
        tuple(
            Planned(
                share,
                plan.overhead,
                plan.status == "optimal",
                what,
            )
            for share, plan, what in zip((*SHARES, 0.0), plans, wrong, strict=True)
        ),
    )


def _wrong_when_traced(
    architecture: Architecture, traced: Trace, plans: Sequence[Plan]
) -> list[str]:
    inputs = batch_of(architecture)
    step_ms = sum(op["runtime_ms"] for op in traced.data["operators"])
    failures = []
    with verifying(architecture.make(), model_trace=traced, **inputs) as verified:
        for plan in plans:
            verification = verified(plan)
            if verification.first_difference() is not None:
                failures.append(" ".join(str(verification).split("\n")))
            elif verification.measured_bytes != plan.peak_bytes:
                failures.append(
                    f"peak {verification.measured_bytes:,}, planned {plan.peak_bytes:,}"
                )
            elif verification.measured_bytes > plan.budget_bytes:
                failures.append("over the budget")
            elif not same_ms(verification.measured_ms - step_ms, plan.recompute_ms):
                failures.append(
                    f"recomputes {verification.measured_ms - step_ms:.6g} ms, planned "
                    f"{plan.recompute_ms:.6g}"
                )
            else:
                failures.append("")
    return failures


def _wrong_when_run(architecture: Architecture, plans: Sequence[Plan]) -> list[str]:
    expected = _real_step(architecture, None)
    if _first_difference(expected, _real_step(architecture, None)):
        return ["the step itself is not deterministic"] * len(plans)
    differences = (
        _first_difference(expected, _real_step(architecture, plan)) for plan in plans
    )
    return [
        f"real step: {difference} differs" if difference else "" for difference in differences
    ]


def _real_step(architecture: Architecture, plan: Plan | None) -> dict[str, torch.Tensor | None]:
    """Loss, gradients and buffers after a forward and a backward pass."""
    model = architecture.make().train()
    if plan is not None:
        model = acplan.apply(model, plan)
    inputs = tree_map_only(torch.Tensor, torch.Tensor.clone, batch_of(architecture))
    random.seed(0)
    numpy.random.seed(0)
    torch.manual_seed(0)
    loss = default_loss(model(**inputs))
    loss.backward()
    values: dict[str, torch.Tensor | None] = {"the loss": loss.detach()}
    acplan.remove(model)
    for name, parameter in model.named_parameters():
        values[f"the gradient of {name}"] = parameter.grad
    return values | {f"the buffer {name}": value for name, value in model.named_buffers()}


def _first_difference(
    expected: dict[str, torch.Tensor | None], actual: dict[str, torch.Tensor | None]
) -> str:
    if expected.keys() != actual.keys():
        return "the list of parameters"
    for name, value in expected.items():
        other = actual[name]
        if (value is None) != (other is None):
            return name
        if value is not None and other is not None and not _is_same(value, other):
            return name
    return ""


def _is_same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Returns whether tensors are equal bit for bit, also where they are not a number."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    a, b = a.contiguous(), b.contiguous()
    return torch.equal(a.view(-1).view(torch.uint8), b.view(-1).view(torch.uint8))


def _send_result(
    architecture: Architecture, out: multiprocessing.connection.Connection
) -> None:
    """Sends the result, from a process of its own that the system ends if it takes too long."""
    resource.setrlimit(resource.RLIMIT_CPU, (_MOST_SECONDS, _MOST_SECONDS + 5))
    _be_quiet()
    try:
        out.send(result_of(architecture))
    except AcplanError as error:
        out.send(Result("", error=str(error).split("\n")[0]))
    except BaseException as error:  # Whatever it is, it is this model's result.
        if os.environ.get("DEBUG"):
            traceback.print_exc()
        lines = str(error).strip().splitlines() or [""]
        out.send(Result("", error=f"{type(error).__name__}: {lines[0][:160]}"))


def _result_in_own_process(architecture: Architecture) -> Result:
    """Returns the result of a process of its own, so that no model ends the others."""
    ours, theirs = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(
        target=_send_result, args=(architecture, theirs)
    )
    process.start()
    theirs.close()
    try:
        result: Result = ours.recv()
        return result
    except EOFError:
        process.join()
        return Result("", error=f"its process ended: {_ending(process.exitcode)}")
    finally:
        process.kill()
        process.join()


def _ending(code: int | None) -> str:
    if code == -signal.SIGXCPU:
        return f"more than {_MOST_SECONDS} s on the processor"
    return f"exit code {code}"


def _be_quiet() -> None:
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    for name in ("torch._subclasses.fake_tensor", "acplan"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    torch.set_num_threads(1)


def _cells(plan: Planned) -> str:
    mark = "" if plan.is_optimal else "*"
    return f"{plan.overhead:.1%}{mark}"


def _row(name: str, group: str, result: Result) -> list[object]:
    wrong = result.wrong and EXCEPTIONS.get(name, result.wrong)
    figures: list[object] = [""] * 5
    if result.plans:
        figures = [result.operators, result.peak_bytes, *map(_cells, result.plans)]
    return [name, group, result.kind, *figures, f"no: {wrong}" if wrong else "yes"]


_COLUMNS = ["model", "group", "class", "operators", "peak bytes"] + [
    "75%",
    "50%",
    "min",
    "verified",
]


def _main(names: list[str]) -> int:
    _be_quiet()
    print_versions("transformers", "diffusers")
    table = Table("zoo", _COLUMNS, is_partial=bool(names))
    results = []
    left_out = [name for name in ZOO if names and name not in names]
    names = names or list(ZOO)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as waiting:
        for name, result in zip(
            names, waiting.map(_result_in_own_process, (ZOO[n] for n in names))
        ):
            results.append(result)
            table.add(*_row(name, ZOO[name].group, result))
    verified = sum(not result.wrong for result in results)
    plans = sum(len(result.plans) for result in results)
    print(f"{len(results)} models, {plans} plans; {verified} models verified at all budgets")
    if left_out:
        print(f"Not among the names given, and not run: {', '.join(left_out)}")
    return int(any(r.wrong and n not in EXCEPTIONS for n, r in zip(names, results)))


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
