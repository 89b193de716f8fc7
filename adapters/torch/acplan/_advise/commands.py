"""The commands `explain`, `what-fits`, `batch` and `snapshot` of python -m acplan."""

import argparse
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from acplan._advise.best_batch import best_batch
from acplan._advise.explain import Explanation, explain
from acplan._advise.levers import LEVERS
from acplan._advise.what_fits import what_fits
from acplan._base.errors import AcplanError
from acplan._files.json_files import require_writable, write_json
from acplan._files.snapshot_file import read_snapshot
from acplan._program.plan import DEVICE_OPTIONS, PLAN_OPTIONS, require_plannable
from acplan._program.visible_device import with_visible_device
from acplan._step.hugging_face import Sizes, most_positions, step_of_config
from acplan._step.training_step import TrainingStep

Steps = Callable[[argparse.Namespace], TrainingStep]


def add_explain(parser: argparse.ArgumentParser, step_of: Steps) -> None:
    """Adds the arguments of `explain`. `step_of` makes a step from the flags of a model."""
    parser.add_argument(
        "file",
        nargs="?",
        metavar="TRACE",
        help="a trace, in place of a model; no levers are measured",
    )
    parser.add_argument(
        "--budget",
        metavar="SIZE",
        help="also print whether the budget is enough, and how many bytes are missing",
    )
    parser.add_argument(
        "--levers",
        metavar="A,B",
        help=f"levers to measure: all (default), none, or some of {', '.join(LEVERS)}",
    )
    parser.add_argument("--top", type=int, default=10, metavar="N")
    parser.add_argument("-o", "--output", metavar="FILE", help="JSON, .json[.gz]")
    _add_plan_flags(parser, (*_PLAN_FLAGS, *DEVICE_OPTIONS))
    parser.set_defaults(run=lambda flags: _explain(flags, step_of))


def add_what_fits(parser: argparse.ArgumentParser, step_of: Steps) -> None:
    """Adds the arguments of `what-fits`, of which --device says the card."""
    parser.add_argument("--budget", metavar="SIZE", help="live bytes, in place of a card")
    parser.add_argument(
        "--gpus", type=int, default=1, metavar="N", help="shard the model over N GPUs"
    )
    parser.add_argument(
        "--seconds", type=float, default=60, metavar="S", help="for traces; default: 60"
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="JSON, .json[.gz]")
    _add_plan_flags(parser, (*_PLAN_FLAGS, *DEVICE_OPTIONS))
    parser.set_defaults(run=lambda flags: _what_fits(flags, step_of))


def _what_fits(flags: argparse.Namespace, step_of: Steps) -> int:
    if flags.output:
        require_writable(flags.output)
    step = step_of(flags)
    fits = what_fits(
        step.model,
        *step.args,
        device=flags.device or "a100",
        budget=flags.budget,
        gpus=flags.gpus,
        seconds=flags.seconds,
        workspaces=not flags.no_workspaces,
        progress=False if flags.no_progress else None,
        **_plan_options(flags),
        **step.options(),
    )
    if flags.output:
        write_json(flags.output, fits.data)
    print(fits, end="")
    return 0 if fits else 3


def add_snapshot(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `snapshot`."""
    parser.add_argument("file", metavar="FILE", help="what _dump_snapshot wrote: a pickle")
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="default: FILE.json; .json or .json.gz"
    )
    parser.add_argument("--debug", action="store_true", help="show tracebacks of errors")
    parser.set_defaults(run=_snapshot)


def _snapshot(flags: argparse.Namespace) -> int:
    output = flags.output or f"{flags.file}.json"
    require_writable(output)
    data = read_snapshot(flags.file)
    write_json(output, data)
    counts = [len(device["events"]) for device in data["devices"]]
    print(f"{output}: {sum(counts):,} events on {len(counts)} devices")
    for number, count in enumerate(counts):
        if count and len(counts) > 1:
            print(f"device {number}: {count:,} events")
    return 0


def add_batch(parser: argparse.ArgumentParser, step_of: Steps) -> None:
    parser.add_argument("--budget", metavar="SIZE", help="or --device-memory")
    parser.add_argument(
        "--over",
        choices=("batch", "seq"),
        default="batch",
        help="size to choose; default: batch",
    )
    parser.add_argument(
        "--multiple-of",
        type=int,
        default=1,
        metavar="N",
        help="the size must be a multiple of N",
    )
    parser.add_argument("--most", type=int, metavar="N", help="largest size to try")
    parser.add_argument("-o", "--output", metavar="FILE", help="file for the best plan")
    parser.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="also print at which sizes memory is not affine in the size",
    )
    _add_plan_flags(parser, (*_PLAN_FLAGS, *DEVICE_OPTIONS))
    parser.set_defaults(run=lambda flags: _batch(flags, step_of))


_PLAN_FLAGS = (
    "decisions",
    "segments",
    "time_limit",
    "ac_units",
    "reserve",
    "world_size",
    "fsdp_units",
)


def _add_plan_flags(
    parser: argparse.ArgumentParser, names: Sequence[str] = _PLAN_FLAGS
) -> None:
    flags = parser.add_argument_group("flags of `acplan plan`")
    for name in names:
        flags.add_argument("--" + name.replace("_", "-"), metavar="VALUE")


def _plan_options(flags: argparse.Namespace) -> dict[str, Any]:
    values = vars(flags)
    return {name: values[name] for name in PLAN_OPTIONS if values.get(name) is not None}


def _explain(flags: argparse.Namespace, step_of: Steps) -> int:
    if flags.output:
        require_writable(flags.output)
    sources = (flags.file, flags.hf_config, flags.factory)
    if sum(source is not None for source in sources) != 1:
        raise AcplanError("explain: expected one of TRACE, --hf-config and --factory")
    options = {"budget": flags.budget, "top": flags.top, **_plan_options(flags)}
    if flags.file:
        if flags.levers not in (None, "none"):
            raise AcplanError("--levers: needs --hf-config or --factory")
        explanation: Explanation = explain(flags.file, **options)
    else:
        step = step_of(flags)
        words = {"all": True, "none": False, None: True}
        levers = words[flags.levers] if flags.levers in words else flags.levers.split(",")
        explanation = explain(
            step.model,
            *step.args,
            levers=levers,
            device=flags.device or "a100",
            workspaces=not flags.no_workspaces,
            source=not flags.no_source,
            progress=False if flags.no_progress else None,
            **options,
            **step.options(),
        )
    if flags.output:
        measured = [dataclasses.asdict(lever) for lever in explanation.levers]
        write_json(flags.output, {**explanation.data, "levers": measured})
    print(explanation, end="")
    return 0


def _batch(flags: argparse.Namespace, step_of: Steps) -> int:
    if flags.output:
        require_writable(flags.output)
    if flags.hf_config is None:
        raise AcplanError("batch: expected --hf-config; in Python acplan.best_batch")
    if flags.multiple_of < 1 or (flags.most is not None and flags.most < 1):
        raise AcplanError("batch: --multiple-of and --most: expected 1 or more")
    if getattr(flags, flags.over) is not None:
        raise AcplanError(f"--{flags.over}: cannot be combined with --over {flags.over}")
    budget, plan_options = with_visible_device(flags.budget, _plan_options(flags))
    require_plannable(budget, plan_options, "batch")
    step = step_of(flags)

    def inputs_of(size: int) -> Any:
        sizes = {"batch": flags.batch or 8, "seq": flags.seq, flags.over: size}
        return step_of_config(
            flags.hf_config,
            Sizes(sizes["batch"], sizes["seq"], flags.image_size),
            flags.set or (),
            dtype=flags.dtype or "float32",
            task=flags.task or "auto",
        ).kwargs

    most = flags.most or flags.multiple_of * 4096
    if flags.over == "seq":
        most = min(most, most_positions(step.model.config) or most)
    if most < flags.multiple_of:
        raise AcplanError(
            f"--multiple-of: expected {most} or less, the largest size that is tried, found "
            f"{flags.multiple_of}"
        )
    options = {k: v for k, v in step.options().items() if k not in step.kwargs}
    result = best_batch(
        step.model,
        inputs_of,
        budget=budget,
        sizes=range(flags.multiple_of, most + 1, flags.multiple_of),
        device=flags.device or "a100",
        workspaces=not flags.no_workspaces,
        source=not flags.no_source,
        progress=not flags.no_progress,
        **plan_options,
        **options,
    )
    if flags.output:
        result.best.plan.save(flags.output)
    print(result, end="")
    for note in result.notes if flags.verbose else ():
        print(f"note: {note}")
    return 0
