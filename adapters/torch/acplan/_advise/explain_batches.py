"""acplan.explain of batches of several lengths: the peak of their run, and what reduces it."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from acplan._base.errors import AcplanError
from acplan._base.question import question_folder
from acplan._files.display import Rows, plain
from acplan._files.json_files import read_json
from acplan._files.plan_file import Plan
from acplan._files.plan_table import PlanTable
from acplan._program.lengths import Batches, Traces
from acplan._program.plan import DEVICE_OPTIONS, plan_options


@dataclasses.dataclass(frozen=True)
class BatchesExplanation:
    """A run of batches on a device, the bytes that are lost at its peak, and the settings with
    which it would end on a smaller device, each simulated. `data` is what `acplan lengths
    explain --json` prints, `text` what it prints else."""

    data: dict[str, Any] = dataclasses.field(repr=False)
    text: str = dataclasses.field(repr=False)

    @property
    def fits(self) -> bool:
        """True if the run ends."""
        return bool(self.data["fits"])

    @property
    def peak(self) -> dict[str, Any]:
        """The batch and the operator at the peak, or where the run fails; its holes, with the
        lines of Python beside them."""
        return dict(self.data["peak"])

    @property
    def levers(self) -> Rows:
        """The settings, the one that brings most first."""
        return list(self.data["levers"])

    def __repr__(self) -> str:
        return (
            f"<BatchesExplanation of {plain(self.data['model'])}: {self.data['batches']} "
            f"batches, least device {self.data['least_device_bytes']}>"
        )

    def __str__(self) -> str:
        return self.text


def explain_batches(
    traces: Traces, plan: Plan | PlanTable | None, top: int, kwargs: Mapping[str, Any]
) -> BatchesExplanation:
    """Returns the explanation; arguments are those of acplan.explain."""
    options = dict(kwargs)
    batches = Batches.from_arguments(
        traces, options.pop("lengths", None), options.pop("evaluations", None)
    )
    for name in options:
        if name not in DEVICE_OPTIONS:
            raise AcplanError(f"explain: {name} is for one step, found several traces")
    device = plan_options(options)
    if options.get("torch_version") is None and isinstance(plan, PlanTable):
        device.pop("torch_version", None)  # that of the table
    with question_folder() as folder:
        question = {
            **batches.question(folder),
            "plan": None if plan is None else folder.add("table", plan),
            "top": top,
            **device,
            "output": "explanation",
        }
        outcome = folder.ask("lengths explain", question).require_success()
        return BatchesExplanation(read_json(folder.path_of("explanation")), outcome.out)
