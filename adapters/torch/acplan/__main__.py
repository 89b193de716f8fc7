"""python -m acplan: traces, plans and verifies from the shell."""

import argparse
import contextlib
import dataclasses
import logging
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from acplan._advise.commands import add_batch, add_explain, add_snapshot, add_what_fits
from acplan._base.errors import AcplanError, first_line
from acplan._device.devices import DEVICES
from acplan._files.json_files import require_writable, write_json
from acplan._files.plan_file import Plan
from acplan._files.trace_file import Capacity, Trace
from acplan._peers.dataflow import dataflow_graph
from acplan._program.plan import PLAN_OPTIONS, plan
from acplan._step.autocast import AUTOCASTS, DTYPES
from acplan._step.hugging_face import TASKS, Sizes, step_of_config
from acplan._step.optimizers import OPTIMIZERS
from acplan._step.trace import VALUES, trace
from acplan._step.training_step import TrainingStep, step_of_factory
from acplan._verify.gpu_check import add_parser as add_gpu_check
from acplan._verify.measure_system import add_parser as add_measure_system
from acplan._verify.verify import verify
from acplan._verify.within_budget import require_within_budget

# How `acplan torch` starts this module.
_AS_COMMAND = "acplan torch"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise AcplanError(f"{message} (see '{self.prog} --help')")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line. Returns its exit code."""
    debug = False
    try:
        flags = _parser().parse_args(arguments)
        debug = flags.debug
        logging.basicConfig(format="%(name)s: warning: %(message)s")
        code: int = flags.run(flags)
        return code
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if debug:
            raise
        if isinstance(error, AcplanError):
            lines = (" ".join(line.split()) for line in str(error).splitlines())
            return _complain("\n  ".join(filter(None, lines)), error.exit_code)
        # The error is the model's own, or PyTorch's.
        return _complain(f"{type(error).__name__}: {first_line(error)}", 2)


def _complain(message: str, exit_code: int) -> int:
    print(f"acplan: {message}", file=sys.stderr)
    return exit_code


def _program_name() -> str:
    """Returns how the user called this program; says so if that name is an old one."""
    name = os.path.basename(sys.argv[0])
    if name == "acplan-torch":
        print(
            f"acplan: warning: '{name}' is now '{_AS_COMMAND}'; the next release removes the "
            "old name",
            file=sys.stderr,
        )
    return _AS_COMMAND if name in (_AS_COMMAND, "acplan-torch") else "python -m acplan"


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog=_program_name(),
        description="Optimal activation checkpointing of PyTorch models.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")

    tracing = commands.add_parser("trace", help="trace a training step of a model")
    _add_model_flags(tracing, is_required=True)
    tracing.add_argument(
        "-o", "--output", required=True, metavar="FILE", help="trace file, .json[.gz]"
    )
    tracing.set_defaults(run=_trace)

    planning = commands.add_parser("plan", help="plan a model, a trace or a profile")
    planning.add_argument(
        "file", nargs="?", metavar="FILE", help="a trace or a profile, in place of a model"
    )
    _add_model_flags(planning, is_required=False)
    planning.add_argument("--budget", metavar="SIZE", help="or --device-memory")
    planning.add_argument("-o", "--output", metavar="FILE", help="plan file, .json[.gz]")
    flags = planning.add_argument_group("flags of `acplan plan`")
    for name in PLAN_OPTIONS:
        flag = "--" + name.replace("_", "-")
        if name == "without_states":
            flags.add_argument(flag, action="store_true")
        else:
            flags.add_argument(flag, metavar="VALUE")
    planning.set_defaults(run=_plan)

    exporting = commands.add_parser(
        "dataflow", help="export the graph that `acplan module dataflow` reads"
    )
    _add_model_flags(exporting, is_required=True)
    exporting.add_argument(
        "-o", "--output", required=True, metavar="FILE", help="graph file, .json[.gz]"
    )
    exporting.set_defaults(run=_dataflow)

    verifying = commands.add_parser("verify", help="trace again with a plan and compare")
    _add_model_flags(verifying, is_required=True)
    verifying.add_argument("plan", metavar="PLAN", help="plan file")
    verifying.add_argument("--trace", metavar="FILE", help="the model's trace")
    verifying.set_defaults(run=_verify)

    _add_advice(commands)
    add_gpu_check(commands)
    add_measure_system(commands)
    return parser


def _add_advice(commands: Any) -> None:
    explaining = commands.add_parser(
        "explain", help="show what uses the memory of a step, and what would reduce it"
    )
    _add_model_flags(explaining, is_required=False)
    add_explain(explaining, _step)

    fitting = commands.add_parser(
        "what-fits", help="find the settings with which a step fits a GPU, and their plans"
    )
    _add_model_flags(fitting, is_required=True)
    add_what_fits(fitting, _step)

    choosing = commands.add_parser(
        "batch",
        help="find the batch with the highest throughput within a budget or on a device",
    )
    _add_model_flags(choosing, is_required=False)
    add_batch(choosing, _step)

    converting = commands.add_parser(
        "snapshot", help="convert a memory snapshot for `acplan simulate --snapshot`"
    )
    add_snapshot(converting)


def _add_model_flags(parser: argparse.ArgumentParser, is_required: bool) -> None:
    model = parser.add_argument_group("the model")
    sources = model.add_mutually_exclusive_group(required=is_required)
    sources.add_argument(
        "--hf-config",
        metavar="CONFIG",
        help="configuration of transformers: a folder, a JSON file, JSON, a model type such "
        "as gpt2 (with its defaults), or a name of the hub",
    )
    sources.add_argument(
        "--factory",
        metavar="FUNCTION",
        help="module:function, which returns (model, args, kwargs), or a dict with model and "
        "any of args, kwargs, loss_fn, optimizer, autocast, accumulate, ...",
    )
    model.add_argument(
        "--set",
        action="append",
        metavar="KEY=VALUE",
        help="change the configuration, for example num_hidden_layers=4",
    )
    model.add_argument("--task", **_one_of(["auto", *TASKS], "auto"))
    model.add_argument("--batch", type=_count, metavar="N", help="default: 8")
    model.add_argument(
        "--seq",
        type=_count,
        metavar="N",
        help="default: 1024, or the number of positions of the model if that is smaller",
    )
    model.add_argument(
        "--image-size", type=_count, metavar="N", help="default: the configuration's"
    )
    model.add_argument(
        "--dtype", choices=DTYPES, help="data type of the weights; default: float32"
    )
    _add_step_flags(model)
    parser.add_argument("--no-progress", action="store_true", help="show no progress bar")
    parser.add_argument("--debug", action="store_true", help="show tracebacks of errors")


def _add_step_flags(model: argparse._ArgumentGroup) -> None:
    model.add_argument(
        "--autocast", choices=AUTOCASTS, help="data type of autocast in the forward pass"
    )
    model.add_argument("--optimizer", **_one_of(OPTIMIZERS, "adamw"))
    model.add_argument(
        "--accumulate",
        type=_count,
        metavar="N",
        help="microbatches of --batch before each update; default: 1",
    )
    model.add_argument(
        "--clip-grad-norm", type=float, metavar="NORM", help="clip the gradients"
    )
    model.add_argument("--grad-scaler", action="store_const", const=True, help="scale the loss")
    model.add_argument("--ema", type=float, metavar="DECAY", help="average the weights")
    model.add_argument(
        "--device",
        **_one_of(DEVICES, "a100", "GPU whose kernels and run-times the trace has: "),
    )
    model.add_argument(
        "--no-workspaces",
        action="store_true",
        help="do not count workspaces of kernels",
    )
    model.add_argument(
        "--no-source",
        action="store_true",
        help="do not record the line of Python of each operator",
    )
    model.add_argument(
        "--values",
        choices=VALUES,
        help="real: also compute the values of the step on the CPU, as they decide which "
        "operators run; known: compute no values; auto, the default: compute them if "
        "the step needs them and that takes seconds",
    )
    model.add_argument(
        "--capacity",
        type=_capacity,
        metavar="TIMES",
        help="trace with this multiple of the rows that values select, or all",
    )


def _one_of(names: Iterable[str], default: str, what: str = "") -> dict[str, Any]:
    """Returns the arguments of a flag with choices: they are too many for one line of help."""
    names = list(names)
    help_text = f"{what}one of {', '.join(names)}; default: {default}"
    return {"choices": names, "metavar": "NAME", "help": help_text}


def _count(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected a number above 0, found {text!r}")
    return value


def _capacity(text: str) -> Capacity:
    with contextlib.suppress(ValueError):
        return float(text)
    return text


_CONFIG_FLAGS = ("set", "task", "batch", "seq", "image_size", "dtype")
_UPDATE_FLAGS = ("optimizer", "accumulate", "clip_grad_norm", "grad_scaler", "ema")
_STEP_FLAGS = ("autocast", "values", "capacity")


def _step(flags: argparse.Namespace) -> TrainingStep:
    if flags.hf_config is not None:
        step = step_of_config(
            flags.hf_config,
            Sizes(flags.batch or 8, flags.seq, flags.image_size),
            flags.set or (),
            dtype=flags.dtype or "float32",
            task=flags.task or "auto",
            has_weights=flags.values == "real",
        )
        step.model_facts["optimizer"] = flags.optimizer or "adamw"
    else:
        _refuse(flags, _CONFIG_FLAGS, "--hf-config")
        step = step_of_factory(flags.factory)
    values = {name: getattr(flags, name) for name in (*_UPDATE_FLAGS, *_STEP_FLAGS)}
    changes = {name: value for name, value in values.items() if value is not None}
    return dataclasses.replace(step, **changes)


def _refuse(flags: argparse.Namespace, names: Sequence[str], other: str) -> None:
    for name in names:
        if getattr(flags, name) is not None:
            flag = "--" + name.replace("_", "-")
            raise AcplanError(f"{flag}: needs {other}")


def _traced(flags: argparse.Namespace, step: TrainingStep) -> Trace:
    traced = trace(
        step.model,
        *step.args,
        device=flags.device or "a100",
        workspaces=not flags.no_workspaces,
        source=not flags.no_source,
        progress=False if flags.no_progress else None,
        **step.options(),
    )
    return Trace({**traced.data, "model": {**traced.data["model"], **step.model_facts}})


def _trace(flags: argparse.Namespace) -> int:
    require_writable(flags.output)
    traced = _traced(flags, _step(flags))
    traced.save(flags.output)
    print(
        f"{flags.output}: {len(traced.data['operators']):,} operators, peak "
        f"{traced.peak_bytes:,} bytes"
    )
    for note in traced.notes:
        print(f"note: {note}")
    return 0


def _plan(flags: argparse.Namespace) -> int:
    if flags.output:
        require_writable(flags.output)
    sources = (flags.file, flags.hf_config, flags.factory)
    if sum(source is not None for source in sources) != 1:
        raise AcplanError("plan: expected one of FILE, --hf-config and --factory")
    if flags.file:
        traced_by = (*_CONFIG_FLAGS, *_UPDATE_FLAGS, *_STEP_FLAGS, "device")
        _refuse(flags, traced_by, "--hf-config or --factory")
    step_source = flags.file or _traced(flags, _step(flags))
    options = {name: getattr(flags, name) for name in PLAN_OPTIONS}
    new_plan = plan(step_source, flags.budget, **options)
    if flags.output:
        new_plan.save(flags.output)
    print(new_plan, end="")
    return 0


def _dataflow(flags: argparse.Namespace) -> int:
    refused = (*_UPDATE_FLAGS, "device", "values", "capacity")
    _refuse(flags, refused, "trace, plan and verify")
    require_writable(flags.output)
    step = _step(flags)
    graph = dataflow_graph(
        step.model,
        *step.args,
        loss_fn=step.loss_fn,
        autocast=step.autocast,
        **step.kwargs,
    )
    facts = {k: v for k, v in step.model_facts.items() if k != "optimizer"}
    graph["model"] |= facts
    write_json(flags.output, graph)
    saved = sum(node["saved"] for node in graph["nodes"])
    print(f"{flags.output}: {len(graph['nodes']):,} nodes, {saved:,} saved")
    return 0


def _verify(flags: argparse.Namespace) -> int:
    loaded_plan = Plan.load(flags.plan)
    model_trace = Trace.load(flags.trace) if flags.trace else None
    step = _step(flags)
    model_trace = model_trace or _traced(flags, step)
    verification = verify(
        step.model, loaded_plan, *step.args, trace=model_trace, **step.options()
    )
    print(verification)
    require_within_budget(loaded_plan, verification)
    return 0


if __name__ == "__main__":
    sys.exit(main())
