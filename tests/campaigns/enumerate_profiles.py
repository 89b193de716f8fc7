"""Compares plans of random tiny profiles with an enumeration of all plans.

    python3 tests/campaigns/enumerate_profiles.py build/release/cli/acplan FOLDER [RUNS] [FIRST]

The enumeration is written from docs/memory_models.md and docs/formulation.md alone: all sets of
units that are not nested, with all policies of their operators; with module granularity a linear
program for each set, solved by HiGHS through scipy. Prints each answer of acplan that differs, then
counts; exit code 1 if any differs.
"""

import collections
import dataclasses
import itertools
import json
import math
import pathlib
import random
import subprocess
import sys
from typing import Any

Profile = dict[str, Any]
Policy = tuple[float, float]  # bytes discarded, ms
STATES = ("param", "buffer", "grad", "act", "temp", "opt", "other")


@dataclasses.dataclass
class Question:
    model: str = "torch"
    ranks: int = 1
    without_states: bool = False
    granularity: str = "operator"
    tradeoff: str = "pareto"
    ac_units: list[str] = dataclasses.field(default_factory=list)
    fsdp_units: list[str] = dataclasses.field(default_factory=list)
    max_units: int | None = None
    reserve: int = 0

    def flags(self) -> list[str]:
        flags = ["--memory-model", self.model, "--world-size", str(self.ranks), "--granularity", self.granularity]
        flags += ["--tradeoff", self.tradeoff, "--reserve", str(self.reserve)]
        if self.without_states:
            flags += ["--without-states"]
        if self.ac_units:
            flags += ["--ac-units", ",".join(self.ac_units)]
        if self.fsdp_units:
            flags += ["--fsdp-units", ",".join(self.fsdp_units)]
        if self.max_units is not None:
            flags += ["--max-units", str(self.max_units)]
        return flags


def operators(r: random.Random) -> dict[str, Any]:
    n = r.randint(1, 4)
    memory = [r.choice([0, 1, 2, 3, 5, 8, 13]) * r.choice([1, 1, 64]) for _ in range(n)]
    rand = [k for k in range(n) if r.random() < 0.25]
    inplace = [[k, r.randrange(k + 1)] for k in range(n) if r.random() < 0.2]
    views = [k for k in range(n) if r.random() < 0.2 and k not in rand and k not in sum(inplace, [])]
    return {
        "func_names": [f"op{k}" for k in range(n)],
        "runtimes": [r.choice([0, 0.5, 1, 1.5, r.random()]) for _ in range(n)],
        "memory": memory,
        "view_like_ops": views,
        "rand_ops": rand,
        "saved_autograd_ops": [],
        "inplace_ops": inplace,
        "force_store_random": r.random() < 0.3,
    }


def fit(r: random.Random) -> dict[str, Any]:
    slopes = [r.choice([0, 0.25, 0.5, 1, 2, -0.5]) for _ in range(r.randint(1, 3))]
    return {
        "sac_runtime": r.choice([0, 1, 2.5, 200]),
        "sac_memory": r.randint(0, 300),
        "n_segments": len(slopes),
        "slopes": slopes,
        "intercepts": [r.choice([0, -0.25, 0.1, -1]) for _ in slopes],
        "breakpoints": [0.0] + [1.0] * len(slopes),
        "tradeoff_curve": [[0.0, 0.0], [1.0, 1.0]],
    }


def snapshot(r: random.Random) -> list[int]:
    parts = [r.randint(0, 30) * r.choice([0, 1]) for _ in STATES]
    parts[3] += r.randint(0, 200)
    return [*parts, sum(parts)]


def profile(r: random.Random) -> Profile:
    """Returns a random profile whose forest has up to four modules that may be units."""
    names: list[str] = []

    def grow(name: str, depth: int) -> None:
        if len(names) < 6 and depth < 3 and (depth == 0 or r.random() < 0.6):
            for k in range(r.randint(1, 2)):
                grow(f"{name}.{k}", depth + 1)
        names.append(name)

    grow("N", 0)
    pre = sorted(names, key=lambda name: [int(part) for part in name.split(".")[1:]])
    modules = []
    for name in names:
        leaf = not any(other.startswith(name + ".") for other in names)
        module = {
            "fqn": name,
            "is_leaf": leaf,
            "param_per_module": r.randint(0, 40),
            "grad_per_module": 0,
            "grad_total": r.randint(0, 40),
            "act_fw_per_module": r.choice([0, r.randint(0, 40), r.randint(0, 300)]),
            "act_bw_per_module": 0,
            "act_grad_per_module": r.randint(-10, 30),
            "act_total": r.randint(0, 400),
            "input_per_module": 0,
            "output_per_module": 0,
            "fw_runtime_per_module": 1.0,
            "bw_runtime_per_module": 2.0,
            "snap": {key: snapshot(r) for key in ("pre_fw", "post_fw", "peak_fw", "pre_bw", "post_bw", "peak_bw")},
        }
        if r.random() < 0.2:
            module["snap"].update(pre_bw=None, peak_bw=None)
        if not leaf and r.random() < 0.9:
            module["sac"] = operators(r)
        if not leaf and r.random() < 0.9:
            module["torch_fit"] = fit(r)
        if r.random() < 0.3:
            module["held_per_module"] = r.randint(0, 20)
        modules.append(module)
    end = snapshot(r)
    return {
        "format": "acplan.profile",
        "version": 1,
        "model": {"name": "n", "root_class": "N", "batch": 1, "seq": 1, "dtype": "f", "optimizer": "o"},
        "measured": {"peak_bytes": 1, "opt_step_peak_bytes": end[-1], "param_bytes": 0, "grad_bytes": 0, "optimizer_bytes": 0, "buffer_bytes": 0, "input_bytes": 0}
        | {"opt_step_peak_categories": dict(zip((*STATES, "total"), end, strict=True))},
        "order": {"fw_pre": pre, "bw_pre": pre, "fw_post": names, "bw_post": names},
        "modules": modules,
    }


class Enumeration:
    def __init__(self, source: Profile, asked: Question) -> None:
        self.asked = asked
        self.modules = {module["fqn"]: module for module in source["modules"]}
        self.time = {fqn: k for k, fqn in enumerate(source["order"]["fw_post"])}
        root = self.modules["N"]
        self.records: list[tuple[str | None, float]] = []
        for fqn in self.time:
            module = self.modules[fqn]
            if asked.model == "torch":
                states = (root["param_per_module"] + module["grad_total"]) / asked.ranks
                self.records.append((fqn, states + module["act_total"] + module["act_grad_per_module"]))
            else:
                for key in ("peak_fw", "peak_bw"):
                    if module["snap"][key] is not None:
                        self.records.append((fqn, self.snapshot_bytes(dict(zip(STATES, module["snap"][key][:7], strict=True)))))
        if asked.model == "snapshot" and not asked.without_states:
            self.records.append((None, self.snapshot_bytes(source["measured"]["opt_step_peak_categories"])))
        self.units = [fqn for fqn, module in self.modules.items() if self.may_be_unit(fqn, module)]

    def snapshot_bytes(self, parts: dict[str, float]) -> float:
        total = (parts["param"] + parts["grad"]) / self.asked.ranks + parts["act"] + parts["temp"]
        if not self.asked.without_states:
            total += parts["opt"] / self.asked.ranks + parts["buffer"] + parts["other"]
        return total

    def may_be_unit(self, fqn: str, module: Profile) -> bool:
        if module["is_leaf"] or (self.asked.ac_units and fqn not in self.asked.ac_units):
            return False
        if any(unit.startswith(fqn + ".") for unit in self.asked.fsdp_units):
            return False
        return ("torch_fit" if self.asked.tradeoff == "profile" else "sac") in module

    def held(self, fqn: str) -> int:
        return self.modules[fqn].get("held_per_module", 0) if self.asked.model == "snapshot" else 0

    def antichains(self) -> list[tuple[str, ...]]:
        most = len(self.units) if self.asked.max_units is None else self.asked.max_units
        return [
            chosen
            for n in range(min(most, len(self.units)) + 1)
            for chosen in itertools.combinations(self.units, n)
            if not any(a != b and b.startswith(a + ".") for a in chosen for b in chosen)
        ]

    def legal_policies(self, fqn: str) -> list[tuple[int, float]]:
        """Returns saved bytes and recomputed ms of every policy that keeps PyTorch's rules."""
        sac = self.modules[fqn]["sac"]
        result = []
        for saved in itertools.product((0, 1), repeat=len(sac["memory"])):
            if any(saved[k] for k in sac["view_like_ops"]):
                continue
            if any((not saved[k]) if k == parent else saved[k] != saved[parent] for k, parent in sac["inplace_ops"]):
                continue
            draws = [saved[k] for k in sac["rand_ops"]]
            if len(set(draws)) > 1 or (sac["force_store_random"] and 0 in draws):
                continue
            kept = sum(bytes_ for bytes_, s in zip(sac["memory"], saved, strict=True) if s)
            result.append((kept, sum(ms for ms, s in zip(sac["runtimes"], saved, strict=True) if not s)))
        return result

    def internal(self, fqn: str) -> int:
        return int(min(self.modules[fqn]["act_fw_per_module"], sum(self.modules[fqn]["sac"]["memory"])))

    def policies(self, fqn: str) -> list[Policy]:
        """Returns the policies that no other one beats."""
        points = sorted((-(self.internal(fqn) - kept - self.held(fqn)), ms) for kept, ms in self.legal_policies(fqn))
        best: list[Policy] = []
        for discarded, ms in points:
            if not best or ms < best[-1][1]:
                best.append((-discarded, ms))
        return best

    def needs(self, chosen: tuple[str, ...]) -> list[tuple[list[int], float]]:
        """Returns for each record the units that have discarded then, and the bytes in use before."""
        rows = []
        for fqn, base in self.records:
            inside = [u for u in chosen if fqn is not None and (fqn + ".").startswith(u + ".")]
            before = [k for k, u in enumerate(chosen) if fqn is not None and self.time[u] < self.time[fqn]]
            rows.append((before, base + sum(self.held(u) for u in inside)))
        return rows

    def plans(self) -> list[tuple[float, float]]:
        """Returns peak and ms of the plans at operator granularity."""
        found = []
        for chosen in self.antichains():
            rows = self.needs(chosen)
            for picked in itertools.product(*(self.policies(u) for u in chosen)):
                peak = max(base - sum(picked[k][0] for k in before) for before, base in rows)
                found.append((peak, sum(ms for _, ms in picked)))
        return found

    def lines(self, fqn: str) -> tuple[list[tuple[float, float]], float, float]:
        """Returns the lines (ms a byte, ms) over the discarded bytes, and the least and the most of these."""
        module = self.modules[fqn]
        if self.asked.tradeoff == "profile":
            curve = module["torch_fit"]
            inner = module["act_fw_per_module"]
            all_bytes = max(curve["sac_memory"], inner)
            forced = 0
            if self.asked.model != "torch" and "sac" in module:
                kept = [kept for kept, _ in self.legal_policies(fqn)]
                forced = min(kept, default=all_bytes + 1)
            if all_bytes == 0:
                return [], 0, -1
            lines = [(0.0, 0.0)]
            for slope, intercept in zip(curve["slopes"], curve["intercepts"], strict=True):
                # The ratio is (d + all - inner) / all.
                scale = curve["sac_runtime"]
                lines.append((scale * slope / all_bytes, scale * (slope * (all_bytes - inner) / all_bytes + intercept)))
            return lines, 0, inner - forced
        points = sorted(set(self.legal_policies(fqn)))
        if not points:
            return [], 0, -1
        inner = self.internal(fqn)
        hull: list[tuple[float, float]] = []
        for kept, ms in points:
            if hull and ms >= hull[-1][1]:
                continue
            while len(hull) > 1 and (hull[-1][1] - hull[-2][1]) * (kept - hull[-2][0]) >= (ms - hull[-2][1]) * (hull[-1][0] - hull[-2][0]):
                hull.pop()
            hull.append((kept, ms))
        lines = [(0.0, hull[-1][1])]
        for (k0, m0), (k1, m1) in itertools.pairwise(hull):
            slope = (m0 - m1) / (k1 - k0)
            lines.append((slope, m0 - slope * (inner - k0)))
        return lines, 0, inner - hull[0][0]

    def program(self, budget: float | None) -> float | None:
        """Returns the least ms within the budget at module granularity, or the least budget."""
        import scipy.optimize

        best: float | None = None
        for chosen in self.antichains():
            n = len(chosen)
            # Columns: discarded bytes, ms of each, and the peak.
            rows, right, bounds = [], [], []
            for k, unit in enumerate(chosen):
                lines, low, high = self.lines(unit)
                if high < low:
                    break
                bounds.append((low, high))
                for slope, intercept in lines:
                    row = [0.0] * (2 * n + 1)
                    row[k], row[n + k] = slope, -1
                    rows.append(row)
                    right.append(-intercept)
            else:
                for before, base in self.needs(chosen):
                    row = [0.0] * (2 * n + 1)
                    for k in before:
                        row[k] = -1
                    row[-1] = -1
                    rows.append(row)
                    right.append(-base - sum(self.held(chosen[k]) for k in before))
                goal = [0.0] * (2 * n + 1)
                if budget is None:
                    goal[-1] = 1
                else:
                    goal[n : 2 * n] = [1] * n
                bounds += [(0, None)] * n + [(None, budget)]
                answer = scipy.optimize.linprog(goal, rows, right, bounds=bounds)
                if answer.status == 0 and (best is None or answer.fun < best):
                    best = float(answer.fun)
        return best


def ask(r: random.Random, source: Profile) -> Question:
    names = [module["fqn"] for module in source["modules"]]
    asked = Question(model=r.choice(["torch", "snapshot"]), ranks=r.choice([1, 1, 2, 3]), reserve=r.choice([0, 0, 5]))
    asked.without_states = asked.model == "snapshot" and r.random() < 0.4
    asked.granularity, asked.tradeoff = r.choice([("operator", "pareto"), ("operator", "pareto"), ("module", "pareto"), ("module", "profile")])
    inner = [module["fqn"] for module in source["modules"] if not module["is_leaf"]]
    if r.random() < 0.2:
        asked.ac_units = r.sample(inner, r.randint(1, len(inner)))
    if r.random() < 0.2:
        asked.fsdp_units = [r.choice(names)]
    if r.random() < 0.3:
        asked.max_units = r.randint(0, 3)
    return asked


class Campaign:
    def __init__(self, program: str, folder: str) -> None:
        self.program, self.folder = program, pathlib.Path(folder)
        self.counts: collections.Counter[str] = collections.Counter()
        self.wrong = 0

    def run(self, seed: int) -> None:
        r = random.Random(seed)
        source = profile(r)
        asked = ask(r, source)
        model = Enumeration(source, asked)
        path = self.folder / f"{seed}.json"
        path.write_text(json.dumps(source))
        if asked.granularity == "operator":
            plans = model.plans()
            least: float | None = min(peak for peak, _ in plans)
            peaks = sorted({math.ceil(peak) for peak, _ in plans})
            budgets = [*r.sample(peaks, min(4, len(peaks))), peaks[0], peaks[-1] + 1]
        else:
            least = model.program(None)
            assert least is not None
            top = max(base for _, base in model.records)
            budgets = [math.ceil(least + share * (top - least) + 1e-6) for share in (0, 0.2, 0.5, 0.9, r.random())]
        budgets += [math.ceil(min(budgets)) - 1]
        budgets = sorted({b for b in budgets if b > 0})
        if not budgets:
            return
        texts = ",".join(str(b + asked.reserve) for b in budgets)
        command = [self.program, "frontier", str(path), "--budgets", texts, "--json", "-q", *asked.flags()]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode not in (0, 3):
            self.complain(seed, asked, f"rc {done.returncode}: {done.stderr.strip()}")
            return
        for budget, plan in zip(budgets, json.loads(done.stdout)["plans"], strict=True):
            if asked.granularity == "operator":
                expected = min((ms for peak, ms in plans if peak <= budget + 1e-9), default=None)
            else:
                expected = model.program(budget)
            found = plan.get("recompute_ms")
            kind = f"{asked.granularity} {asked.tradeoff} {asked.model}" + (" infeasible" if expected is None else "")
            self.counts[kind] += 1
            same = (expected is None) == (found is None)
            if expected is not None and found is not None:
                same = abs(expected - found) <= 1e-6 * max(1, abs(expected))
            if not same or plan["status"] not in ("optimal", "infeasible"):
                self.complain(seed, asked, f"budget {budget}: enumeration {expected}, acplan {plan['status']} {found}")
            stated = plan.get("minimum_budget_bytes")
            if stated is not None and least is not None and abs(stated - asked.reserve - math.ceil(least - 1e-6)) > 1e-6:
                self.complain(seed, asked, f"least {least}, acplan {stated} with a reserve of {asked.reserve}")
        path.unlink()

    def complain(self, seed: int, asked: Question, what: str) -> None:
        self.wrong += 1
        print(f"seed {seed}: {what}\n    {asked}", flush=True)


def main() -> int:
    campaign = Campaign(sys.argv[1], sys.argv[2])
    campaign.folder.mkdir(parents=True, exist_ok=True)
    first = int(sys.argv[4]) if len(sys.argv) > 4 else 0
    for seed in range(first, first + int(sys.argv[3] if len(sys.argv) > 3 else "1000")):
        campaign.run(seed)
    for kind, count in sorted(campaign.counts.items()):
        print(f"{count:7} {kind}")
    print(f"{campaign.wrong} wrong")
    return int(campaign.wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
