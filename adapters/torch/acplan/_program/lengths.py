"""Batches of several lengths, and tables of plans for them."""

import contextlib
import dataclasses
import operator
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from acplan._base.errors import AcplanError
from acplan._base.progress import progress_bar
from acplan._base.question import QuestionFolder, question_folder
from acplan._files.fingerprint import KEY, made_for
from acplan._files.json_files import read_json
from acplan._files.plan_table import SWITCH, PlanTable, Switch
from acplan._files.trace_file import DIFFERENTIATES, Trace

Traces = Mapping[int, Trace] | Sequence[Trace]


class Lengths:
    """The lengths of a run's batches.

    lengths: the lengths of the batches in the order of training, of which ("eval", length)
             stands for an evaluation; or a histogram, a mapping from lengths to how many
             batches have them.
    steps:   the batches that are drawn from a histogram.
    seed:    the seed of the draw.
    """

    def __init__(
        self,
        lengths: Iterable[int | tuple[str, int]] | Mapping[int, int],
        *,
        steps: int | None = None,
        seed: int | None = None,
    ) -> None:
        self.is_drawn = isinstance(lengths, Mapping)
        if not self.is_drawn and (steps is not None or seed is not None):
            raise AcplanError("lengths: steps and seed need a histogram to draw from")
        self.steps = steps
        self.seed = seed
        entries = lengths.items() if isinstance(lengths, Mapping) else lengths
        self._lines = [self._line(entry) for entry in entries]
        if not self._lines:
            raise AcplanError("lengths: expected at least one length, found none")

    def _line(self, entry: Any) -> str:
        is_pair = isinstance(entry, tuple) and len(entry) == 2
        if self.is_drawn:
            return f"{_whole(entry[0])} {_whole(entry[1])}"
        if is_pair and entry[0] == "eval":
            return f"eval {_whole(entry[1])}"
        return str(_whole(entry))

    @property
    def longest(self) -> int:
        """The longest length, of training or evaluation."""
        return max(self.distinct)

    @property
    def distinct(self) -> list[int]:
        """The different lengths, ascending."""
        place = 0 if self.is_drawn else -1
        return sorted({int(line.split()[place]) for line in self._lines})

    @property
    def text(self) -> str:
        """The file of `acplan lengths --lengths`."""
        return "".join(line + "\n" for line in self._lines)

    def save(self, path: str | os.PathLike[str]) -> None:
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.text)

    def __repr__(self) -> str:
        kind = "drawn" if self.is_drawn else "in order"
        return f"<Lengths {kind}: {len(self._lines)} entries, up to {self.longest}>"


def _whole(value: Any) -> int:
    with contextlib.suppress(TypeError):
        number = operator.index(value)
        if number > 0:
            return number
    raise AcplanError(f"lengths: expected whole numbers above 0, found {value!r}")


def plan_table(
    traces: Traces,
    lengths: Any,
    plans: int,
    progress: bool | None,
    options: Mapping[str, Any],
) -> PlanTable:
    """Returns a table of at most `plans` plans for batches of several lengths. `options`: as a
    question has them."""
    by_length, switch = traces_by_length(traces)
    run = lengths_of(lengths, switch)
    with question_folder() as folder, progress_bar(progress, unit="s") as phase:
        question = {
            **run_question(folder, by_length, run),
            **options,
            "plans": plans,
            "output": "table",
        }
        outcome = folder.ask("lengths plan", question, phase("plan", None)).require_success()
        data = {**read_json(folder.path_of("table")), **_entry_of(switch)}
        for entry in data["entries"]:
            entry["plan"].update(_made_for(next(iter(by_length.values()))))
        return PlanTable.from_data(data, outcome.out)


def run_question(
    folder: QuestionFolder, by_length: Mapping[int, Trace], run: Lengths
) -> dict[str, Any]:
    """Returns the part of a question to `acplan lengths` that says what runs."""
    names = []
    for length, trace in by_length.items():
        folder.add(f"trace_{length}.json", trace)
        names.append(f"{length}=trace_{length}.json")
    folder.add("lengths", run)
    return {
        "trace": names,
        "lengths": "lengths",
        **({} if run.steps is None else {"draws": run.steps}),
        **({} if run.seed is None else {"draw_seed": run.seed}),
    }


def _entry_of(switch: Switch | None) -> dict[str, Any]:
    return {} if switch is None else {SWITCH: dataclasses.asdict(switch)}


def _made_for(trace: Trace) -> dict[str, Any]:
    modules = trace.data.get("modules", ())
    if any(isinstance(module.get(DIFFERENTIATES), bool) for module in modules):
        raise AcplanError(
            "plan: the model computes gradients within forward; plans for it cannot be switched"
        )
    fingerprint = made_for(modules)
    return {} if fingerprint is None else {KEY: fingerprint}


def traces_by_length(traces: Traces) -> tuple[dict[int, Trace], Switch | None]:
    """Returns the traces by length, ascending, and the input whose size is the length. Raises
    AcplanError if traces without lengths do not differ in the size of one dimension."""
    if isinstance(traces, Mapping):
        by_length = {_whole(length): traces[length] for length in sorted(traces)}
    else:
        by_length = dict(sorted(zip(_varying_sizes(traces), traces), key=lambda pair: pair[0]))
        if len(by_length) < len(traces):
            raise AcplanError("plan: expected traces of different lengths, found one twice")
    if not by_length or not all(isinstance(trace, Trace) for trace in by_length.values()):
        raise AcplanError("plan: expected traces, one for each length")
    return by_length, _switch_of(by_length)


def _varying_sizes(traces: Sequence[Trace]) -> list[int]:
    dimensions = _dimensions(traces)
    if len(traces) == 1:
        raise AcplanError("plan: one trace does not show its length; expected {length: trace}")
    varying = {sizes for sizes in dimensions.values() if len({*sizes}) > 1}
    if len(varying) != 1:
        raise AcplanError(
            f"plan: expected traces whose inputs differ in one size, found {len(varying)}; "
            "give the lengths, as {length: trace}"
        )
    return list(varying.pop())


def _switch_of(by_length: Mapping[int, Trace]) -> Switch | None:
    lengths = tuple(by_length)
    for switch, sizes in _dimensions(list(by_length.values())).items():
        if sizes == lengths and len(lengths) > 1:
            return switch
    return None


def _dimensions(traces: Sequence[Trace]) -> dict[Switch, tuple[int, ...]]:
    """Returns the sizes of the traces, for each dimension of each input that all have."""
    inputs = [trace.inputs for trace in traces]
    if not inputs:
        raise AcplanError("plan: expected traces, found none")
    result = {}
    for name, shape in inputs[0].items():
        if all(len(other.get(name, ())) == len(shape) for other in inputs):
            for dimension in range(len(shape)):
                sizes = tuple(other[name][dimension] for other in inputs)
                result[Switch(name, dimension)] = sizes
    return result


def lengths_of(lengths: Any, switch: Switch | None) -> Lengths:
    """Returns the lengths that a user gives: Lengths, a list of lengths or of the model's
    inputs, or a histogram."""
    if isinstance(lengths, Lengths):
        return lengths
    if isinstance(lengths, Mapping):
        return Lengths(lengths)
    if lengths is None or isinstance(lengths, str) or not isinstance(lengths, Iterable):
        raise AcplanError(
            f"lengths: expected lengths, inputs or a histogram, found {lengths!r}"
        )
    return Lengths([_length_of(entry, switch) for entry in lengths])


def _length_of(entry: Any, switch: Switch | None) -> Any:
    if not isinstance(entry, Mapping):
        return entry
    value = None if switch is None else entry.get(switch.argument)
    if switch is None or not isinstance(value, torch.Tensor) or value.dim() <= switch.dimension:
        raise AcplanError(
            "lengths: expected inputs that have the one whose size is the length, found "
            f"{', '.join(map(str, entry))}"
        )
    return value.shape[switch.dimension]
