"""A plan, and its file."""

import dataclasses
import os
from typing import Any

from acplan._base.errors import AcplanError
from acplan._files import display
from acplan._files.charts import figure, made_of
from acplan._files.json_files import read_json, write_json
from acplan._files.plan_host import PlanHost, PlanStreams
from acplan._files.times_off import TimesOff


@dataclasses.dataclass(frozen=True)
class PlannedOperator:
    """An operator of a module to checkpoint: saved, or else recomputed, or skipped if nothing
    that is recomputed, and no gradient, needs its results.

    If an operator is saved, all its results are kept, or, if `results` is given, those of the
    tensors that it makes whose places are in `results`. If it is offloaded, they are kept in
    the host's memory.
    """

    name: str
    save: bool
    skip: bool = False
    results: tuple[int, ...] | None = None
    offload: bool = False
    # A hook of fully_shard runs it once, within the unit, and no policy sees it.
    once: bool = False

    def __post_init__(self) -> None:
        if self.save and self.skip:
            raise AcplanError(f"plan: {self.name} is both saved and skipped")
        if self.offload and not self.save:
            raise AcplanError(f"plan: {self.name} is offloaded, but not saved")
        if self.results is None:
            return
        places = list(self.results)
        if not self.save or places != sorted({*places}) or min(places, default=0) < 0:
            raise AcplanError(
                f"plan: {self.name}: expected places of results of a saved operator, ascending "
                f"from 0, found {places}"
            )

    @property
    def decision(self) -> str:
        if self.save:
            return "offload" if self.offload else "save"
        return "skip" if self.skip else "recompute"

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> "PlannedOperator":
        """Returns the operator that an entry of a plan file describes."""
        name, decision, results = data["name"], data["decision"], data.get("results")
        if not isinstance(name, str):
            raise AcplanError(f"plan: expected an operator's name, found {name!r}")
        if decision not in ("save", "recompute", "skip", "offload"):
            raise AcplanError(
                f"plan: {name}: expected a decision of save, recompute, skip, offload, "
                f"found {decision!r}"
            )
        if results is not None:
            is_list = isinstance(results, list)
            if not is_list or any(type(place) is not int for place in results):
                raise AcplanError(
                    f"plan: {name}: results: expected whole numbers, found {results!r}"
                )
            results = tuple(results)
        is_offloaded = decision == "offload"
        is_saved = is_offloaded or decision == "save"
        is_once = data.get("once") is True
        return cls(name, is_saved, decision == "skip", results, is_offloaded, is_once)

    def data(self, index: int) -> dict[str, Any]:
        entry = {"index": index, "name": self.name, "decision": self.decision}
        if self.results is not None:
            entry["results"] = list(self.results)
        if self.once:
            entry["once"] = True
        return entry


@dataclasses.dataclass(frozen=True)
class PlannedModule:
    """A module to checkpoint, or a run of modules, named by their parent, the first and the
    last: `GPT.h.0-2`. Without operators, all of it is recomputed. `offloaded_arguments`: the
    places of arguments that wait in the host's memory: among the tensors that a call is given
    by position, and after them among the memory of other tensors that it is given."""

    fqn: str
    operators: tuple[PlannedOperator, ...] = ()
    discard_ratio: float = 1.0
    offloaded_arguments: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        places = self.offloaded_arguments
        if any(type(place) is not int or place < 0 for place in places) or any(
            first >= second for first, second in zip(places, places[1:])
        ):
            raise AcplanError(
                f"plan: {self.fqn}: expected ascending places of offloaded arguments, found "
                f"{list(places)}"
            )

    def __deepcopy__(self, memo: dict[int, Any]) -> "PlannedModule":
        return self  # nobody can change it, and it may be long

    @property
    def operators_seen(self) -> tuple[PlannedOperator, ...]:
        """The operators that a policy sees."""
        return tuple(operator for operator in self.operators if not operator.once)

    @property
    def offloads(self) -> bool:
        return bool(self.offloaded_arguments) or any(
            operator.offload for operator in self.operators
        )


@dataclasses.dataclass(frozen=True)
class PlanDevice:
    """The device that a plan is for, and how training runs there on PyTorch's allocator, as
    simulated.

    allocator, torch_version: the text of PYTORCH_ALLOC_CONF ("native": none is needed), and the
        version of PyTorch whose allocator ran.
    optimizer_state_first: True if acplan.make_optimizer_state must make the optimizer's state
        before the first step.
    allocated_bytes, reserved_bytes: the most that is allocated and reserved.
    least_device_bytes: the smallest device on which training ends.
    retries: how often in the iterations that repeat the cache is emptied for a request.
    ddp: the arguments of DistributedDataParallel, such as "bucket_cap_mb:10" or "default"; "":
        the model is in none.
    """

    allocator: str
    torch_version: str
    optimizer_state_first: bool
    allocated_bytes: int
    reserved_bytes: int
    least_device_bytes: int
    retries: int = 0
    ddp: str = ""

    @classmethod
    def from_data(cls, data: Any) -> "PlanDevice":
        """Returns the device in the data of a plan file."""
        values: dict[str, Any] = {}
        for field in dataclasses.fields(cls):
            absent = "" if field.name == "ddp" else None
            value = data.get(field.name, absent) if isinstance(data, dict) else None
            if type(value) is not field.type:
                raise AcplanError(f"plan: device: {field.name}: found {value!r}")
            values[field.name] = value
        return cls(**values)

    @property
    def needs(self) -> str:
        """The settings and calls that training needs beside the plan, or ""."""
        setting = f"PYTORCH_ALLOC_CONF={self.allocator}" if self.allocator != "native" else ""
        call = "acplan.make_optimizer_state" if self.optimizer_state_first else ""
        return ", ".join(filter(None, (setting, call)))

    def facts(self) -> dict[str, str]:
        needs = {"needs": self.needs} if self.needs else {}
        return {"reserved": display.size(self.reserved_bytes), **needs}

    def __str__(self) -> str:
        return (
            f"on the device: {self.reserved_bytes:,} bytes reserved (PyTorch "
            f"{display.plain(self.torch_version)}); needs "
            f"{display.plain(self.needs) or 'no setting'}"
        )


@dataclasses.dataclass(frozen=True)
class Plan:
    """The modules to checkpoint, and the plan file that lists them (docs/file_formats.md)."""

    modules: tuple[PlannedModule, ...]
    data: dict[str, Any] = dataclasses.field(default_factory=dict, repr=False)
    text: str = dataclasses.field(default="", repr=False, compare=False)

    @classmethod
    def from_data(cls, data: dict[str, Any], text: str = "") -> "Plan":
        """Returns the plan in the data of a plan file. `text` is what `acplan plan` printed
        about it."""
        if not isinstance(data, dict):
            raise AcplanError(f"plan: expected a dict, found {type(data).__name__}")
        if data.get("format") == "acplan.plan_table":
            raise AcplanError(
                "plan: expected a plan, found a table of plans, which acplan.PlanTable.load "
                "reads"
            )
        if data.get("format") != "acplan.plan" or data.get("version") != 1:
            raise AcplanError(
                "plan: expected format acplan.plan, version 1, found "
                f"{data.get('format')!r}, {data.get('version')!r}"
            )
        if data.get("status") not in ("optimal", "feasible"):
            raise AcplanError(f"plan: expected a plan, found the status {data.get('status')!r}")
        try:
            modules = tuple(_module_from_data(module) for module in data["modules"])
        except (KeyError, TypeError, ValueError) as error:
            raise AcplanError(f"plan: modules: {error!r}") from None
        return cls(modules, data, text)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Plan":
        return cls.from_data(read_json(path))

    def save(self, path: str | os.PathLike[str], model: str | None = None) -> None:
        """Writes a plan file. A plan made by hand is written for the model named `model`."""
        if not self.data and model is None:
            raise AcplanError("plan: a plan made by hand needs the name of its model")
        write_json(path, self.data or _data_by_hand(self.modules, str(model)))

    def _figure(self, *keys: str) -> Any:
        value: Any = self.data
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        if value is None:
            raise AcplanError(f"plan: it does not say its {' '.join(keys)}")
        return value

    def _number(self, *keys: str) -> int | float:
        """Returns a figure as the file has it: bytes are whole numbers. Raises AcplanError if
        it is not a number, or too large."""
        value = self._figure(*keys)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            if abs(value) <= _MOST:
                return value
        raise AcplanError(
            f"plan: {' '.join(keys)}: expected a number, found " + repr(value)[:40]
        )

    @property
    def status(self) -> str:
        """`optimal`, or `feasible` if a limit was hit first."""
        return str(self._figure("status"))

    @property
    def budget_bytes(self) -> int:
        return int(self._number("budget_bytes"))

    @property
    def peak_bytes(self) -> int:
        return int(self._number("peak_bytes"))

    @property
    def baseline_peak_bytes(self) -> int:
        """The peak without the plan, on one device."""
        return int(self._number("baseline", "peak_bytes"))

    @property
    def recompute_ms(self) -> float:
        return float(self._number("recompute_ms"))

    @property
    def stall_ms(self) -> float | None:
        """The time that the step waits for the host, or None if offload was not asked for."""
        if self.data.get("offload") is None:
            return None
        return float(self._number("offload", "stall_ms"))

    @property
    def device(self) -> PlanDevice | None:
        """The device, or None if the plan is for a budget."""
        device = self.data.get("device")
        return None if device is None else PlanDevice.from_data(device)

    @property
    def times_off(self) -> TimesOff | None:
        """The regret if run-times are wrong; None without a trace, with offload, and where
        steps wait for the host."""
        return TimesOff.from_optional(self.data.get("times_off"))

    @property
    def host(self) -> PlanHost | None:
        """The host's time for a step; None if the trace has no such times."""
        return PlanHost.from_optional(self.data.get("host"))

    @property
    def streams(self) -> PlanStreams | None:
        """The step on the device's streams; None if the trace has one stream, as those of
        models on one device have."""
        return PlanStreams.from_optional(self.data.get("streams"))

    @property
    def bound_ms(self) -> float:
        """A number that no plan's recomputation is below, proven."""
        return float(self._number("bound_ms"))

    @property
    def gap(self) -> float:
        """The difference of recomputation and bound, relative to the recomputation."""
        return float(self._number("gap"))

    @property
    def overhead(self) -> float:
        """The recomputation relative to the step without it; with streams what they do not
        hide, relative to the step."""
        return float(self._number("overhead"))

    def to_pandas(self) -> Any:
        """Returns a table of the units: name, operators, and how many of them are saved."""
        return display.to_pandas(self._rows())

    def _rows(self) -> list[dict[str, Any]]:
        entries = {m["fqn"]: m for m in self.data.get("modules", ())}
        return [
            {
                "unit": module.fqn,
                "operators": len(module.operators),
                "saved": sum(operator.save for operator in module.operators),
                "skipped": sum(operator.skip for operator in module.operators),
                "offloaded": sum(operator.offload for operator in module.operators),
                "offloaded_arguments": len(module.offloaded_arguments),
                "recompute_ms": entries.get(module.fqn, {}).get("recompute_ms"),
            }
            for module in self.modules
        ]

    def _facts(self) -> dict[str, str]:
        units = {"units": str(len(self.modules))}
        if "recompute_ms" not in self.data:
            return units
        wrong = self._wrong_figure()
        if wrong:
            return {**units, "figures": wrong}
        return {
            "status": self.status,
            **units,
            "peak": f"{display.size(self.peak_bytes)} of {display.size(self.budget_bytes)}",
            "recomputes": f"{self.recompute_ms:.3f} ms",
            **({} if self.device is None else self.device.facts()),
        }

    def _wrong_figure(self) -> str:
        """Returns the error in the figures of a file that others have written to, or "", among
        those figures that are shown: the error is shown to the user, and nothing is raised."""
        try:
            for key in ("peak_bytes", "budget_bytes", "recompute_ms", "overhead"):
                self._number(key)
            self._number("baseline", "peak_bytes")
            _ = self.device
        except AcplanError as error:
            return str(error)
        return ""

    def __repr__(self) -> str:
        suffix = display.plain(f" for {self.data['model']}" if "model" in self.data else "")
        facts = ", ".join(f"{name} {value}" for name, value in self._facts().items())
        return f"<Plan{suffix}: {display.plain(facts)}>"

    def _repr_html_(self) -> str:
        suffix = f" for {self.data['model']}" if "model" in self.data else ""
        step = made_of(self)
        charts = figure(["memory"], step[0], plan=self) if step else ""
        return display.page(f"Plan{suffix}", self._facts(), charts, display.table(self._rows()))

    def __str__(self) -> str:
        if self.text:
            return self.text
        names = display.plain(", ".join(module.fqn for module in self.modules))
        text = f"{len(self.modules)} modules to checkpoint: {names or 'none'}"
        if "recompute_ms" not in self.data or self._wrong_figure():
            return text
        if self.device is not None:
            text = f"{self.device}\n{text}"
        return (
            f"{self.status}: peak {self.peak_bytes:,} bytes of {self.budget_bytes:,} "
            f"(without a plan {self.baseline_peak_bytes:,}), recomputes "
            f"{self.recompute_ms:.3f} ms ({self.overhead:+.2%})\n{text}"
        )


_MOST = 1e300  # the largest number that a plan may have


def _data_by_hand(modules: tuple[PlannedModule, ...], model: str) -> dict[str, Any]:
    """Returns the data of the file of a plan that was made by hand."""
    return {
        "format": "acplan.plan",
        "version": 1,
        "model": model,
        "budget_bytes": 1 << 53,
        "world_size": 1,
        "memory_model": "snapshot",
        "status": "feasible",
        "modules": [
            {
                "fqn": module.fqn,
                "discard_ratio": 1,
                "memory_budget": 0,
                "offloaded_arguments": list(module.offloaded_arguments),
                "ops": [
                    operator.data(index) for index, operator in enumerate(module.operators)
                ],
            }
            for module in modules
        ],
    }


def _module_from_data(module: dict[str, Any]) -> PlannedModule:
    if not isinstance(module["fqn"], str):
        raise ValueError(f"fqn: expected a name, found {module['fqn']!r}")
    return PlannedModule(
        module["fqn"],
        tuple(map(PlannedOperator.from_data, module.get("ops", ()))),
        float(module.get("discard_ratio", 1)),
        _places_from_data(module),
    )


def _places_from_data(module: dict[str, Any]) -> tuple[int, ...]:
    places = module.get("offloaded_arguments", [])
    if not isinstance(places, list):
        raise ValueError(f"offloaded_arguments: expected a list, found {places!r}")
    return tuple(places)


def plan_given(plan: Any) -> Plan:
    """Returns the plan itself, or the plan in the file with this path."""
    if isinstance(plan, Plan):
        return plan
    if isinstance(plan, (str, os.PathLike)):
        return Plan.load(plan)
    raise AcplanError(f"plan: expected a Plan or the path of one, found {type(plan).__name__}")
