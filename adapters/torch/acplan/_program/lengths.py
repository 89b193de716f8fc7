"""Batches of several lengths, and tables of plans for them."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from acplan._base.errors import AcplanError
from acplan._base.progress import progress_bar
from acplan._base.question import QuestionFolder, question_folder
from acplan._files.fingerprint import KEY, made_for
from acplan._files.json_files import read_json
from acplan._files.lengths_file import Lengths, whole_length
from acplan._files.plan_table import SWITCH, PlanTable, Switch
from acplan._files.trace_file import DIFFERENTIATES, Trace

Traces = Mapping[int, Trace] | Sequence[Trace]


def plan_table(
    batches: "Batches",
    plans: int,
    progress: bool | None,
    options: Mapping[str, Any],
) -> PlanTable:
    """Returns a table of at most `plans` plans for batches of several lengths. `options`: as a
    question has them."""
    with question_folder() as folder, progress_bar(progress, unit="s") as phase:
        question = {
            **batches.question(folder),
            **options,
            "plans": plans,
            "output": "table",
        }
        outcome = folder.ask("lengths plan", question, phase("plan", None)).require_success()
        data = {**read_json(folder.path_of("table")), **_entry_of(batches.switch)}
        for entry in data["entries"]:
            entry["plan"].update(_made_for(next(iter(batches.traces.values()))))
        return PlanTable.from_data(data, outcome.out)


@dataclasses.dataclass(frozen=True)
class Batches:
    """The batches of a run: traces by length, ascending; the lengths; the input whose size is
    the length, if the traces show it; and traces for evaluations, if their inputs are others
    than those of training."""

    traces: dict[int, Trace]
    lengths: Lengths
    switch: Switch | None
    evaluations: dict[int, Trace]

    @classmethod
    def from_arguments(
        cls, traces: Traces, lengths: Any, evaluations: Mapping[int, Trace] | None = None
    ) -> "Batches":
        """Returns the batches that a user gives."""
        by_length, switch = traces_by_length(traces)
        evaluated = {} if evaluations is None else traces_by_length(evaluations)[0]
        return cls(by_length, lengths_of(lengths, switch), switch, evaluated)

    def question(self, folder: QuestionFolder) -> dict[str, Any]:
        """Returns the part of a question to `acplan lengths` that says what runs."""
        folder.add("lengths", self.lengths)
        steps, seed = self.lengths.steps, self.lengths.seed
        return {
            "trace": _files_of(folder, "trace", self.traces),
            "evaluation": _files_of(folder, "evaluation", self.evaluations) or None,
            "lengths": "lengths",
            **({} if steps is None else {"draws": steps}),
            **({} if seed is None else {"draw_seed": seed}),
        }


def _files_of(folder: QuestionFolder, kind: str, traces: Mapping[int, Trace]) -> list[str]:
    names = {length: folder.add(f"{kind}_{length}.json", t) for length, t in traces.items()}
    return [f"{length}={name}" for length, name in names.items()]


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
        by_length = {whole_length(length): traces[length] for length in sorted(traces)}
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
