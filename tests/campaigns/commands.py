"""Runs acplan with random flags and files, and examines how it ends.

    python3 tests/campaigns/commands.py build/release/cli/acplan . [RUNS] [SEED]

Each run is a command with flags that its --help lists, values that are usual or odd, and a
small file that is valid or has some of its JSON changed. For every question acplan must end by
itself within twice its time limit and two seconds, with a documented exit code and less than
1.5 GB; wrong input is one line on stderr, with nothing on stdout and nothing written; --json
prints JSON without NaN, ends with the exit code of the same command without it, and -o writes
the same; check accepts the plans that plan writes.
Prints each run that breaks a rule, then a count of exit codes; exit code 1 if a rule is broken.
"""

import collections
import dataclasses
import gzip
import json
import os
import pathlib
import random
import re
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

# fmt: off
ODD = ["0", "1", "2", "-1", "-0", "64", "1e308", "1e400", "1e-300", "0.5", "nan", "inf", "-inf", "", " ", "9007199254740993",
       "9223372036854775808", "18446744073709551616", "0x10", "1,2", "none", "any", "min", "0%", "100%", "1e9%", "-5%", "nan%", "1GiB",
       "0B", "0.1B", "8388607TiB", "1e30PB", "½", "true", "plan", "full:0", "full:999999", "selective:", "auto", "@", "@nowhere", "*",
       "[", "a" * 5000, "\x1b[31m", "\n", "\u202e", "1 2"]
CHANGES = [0, 1, -1, -0.0, 0.5, 1e308, 1e-300, 2**31, 2**53, 2**53 + 1, 2**63, 2**64, 10**400, True, None, "", "x", "0", "a" * 10000,
           "\ud800", "\x00", "nan", [], {}, [[]], [0], [-1], {"": 0}, [None]]
LIMITS = ["0", "1e-9", "0.05", "0.3", "1"]
PLAN = {
    "--budget": ["min", "1%", "40%", "75%", "100%", "200%", "1B", "100kB", "10MB", "1GiB"], "--time-limit": LIMITS, "--max-units": ["0", "1"],
    "--world-size": ["1", "8", "1000000"], "--granularity": ["operator", "module"], "--decisions": ["save,recompute", "save,recompute,skip"],
    "--memory-model": ["trace", "snapshot", "torch"], "--tradeoff": ["pareto", "fit", "profile"], "--segments": ["auto", "none", "2"],
    "--ac-units": ["@list.txt", "a"], "--fsdp-units": ["@list.txt"], "--engine": ["labels", "cbc"], "--gap": ["0", "0.1", "1"], "--offload": ["25GB/s", "1B/s"], "--host-memory": ["0", "1B"],
    "--points": ["2", "5"], "--reserve": ["0", "1KiB"], "--save": ["*", "aten.mm*", "x"], "--budgets": ["min", "50%,60%", "@list.txt"], "--timeline": ["out.csv", "in.json", "/dev/full"], "--top": ["0", "9"]}
REMAT = {
    "--budget": ["min", "1B", "1%", "50%", "75%", "100%", "200%", "1000"], "--kept": ["0", "1B", "1kB", "1GiB"], "--gap": ["0", "0.1", "1"],
    "--frontier": ["2", "7"], "--time-limit": LIMITS}
TRAIN = {
    "--gpu": ["H100", "A100", "GB200"], "--gpus": ["1", "2", "8", "12", "64", "4096"], "--tp": ["1", "2", "8"], "--pp": ["1", "2", "4", "3"],
    "--vp": ["1", "2"], "--cp": ["1", "2"], "--ep": ["1", "2", "8"], "--etp": ["1", "2"], "--zero": ["0", "1", "2", "3"],
    "--gbs": ["1", "8", "96"], "--mbs": ["1", "4"], "--seq": ["1", "128", "131072"], "--offload-layers": ["0", "1", "any"],
    "--recompute": ["none", "full", "full:1", "selective:core_attn", "selective:mlp+layernorm", "selective:op", "plan"],
    "--pp-schedule": ["1F1B", "Interleaved1F1B", "zero_bubble", "ZBVZeroBubble", "VHalf", "VMin", "DualPipe", "any"], "-t": ["1", "1000"],
    "--cp-comm-type": ["p2p", "all_gather", "a2a"], "--sp": ["true", "false"], "--budget": ["1GiB", "80GiB", "1B", "1PiB"],
    "--implementation": ["fused", "eager"], "--precision": ["fp16", "fp8_delayed", "nvfp4"], "--time-limit": LIMITS,
    "--dispatcher": ["alltoall", "deepep"], "--software": ["torchtitan"], "--stage": ["0", "3"], "--attention": ["flash", "unfused"],
    "--set": ["first_layers=1", "counts_embedding=true", "layout=Et|tL", "layout=" + "(" * 3000, "layout=Et*99999999|L", "layout=||",
              "optimizer_copies=2", "vp_layers=1", "shard_degree=1", "replicate_degree=2", "ac_mode=full", "local_batch=2", "dp=1"]}
LENGTHS = {
    "--device-memory": ["1MiB", "1GiB", "1B"], "--draws": ["1", "100"], "--draw-seed": ["0", "7"], "--plans": ["1", "2"], "--top": ["0", "3"],
    "--switches": ["32", "16,32"], "--ddp": ["default", "bucket_cap_mb:1", "gradient_as_bucket_view:True"], "--allocator": ["native"]}
LISTS = ["", "60%\n90%,min # shares", "Net.fc\nNet.act", "Net.block", "a,b", "N"]
MODELS = ["tests/fuzz/seeds/small_config.json"] + [f"data/training/models/{name}.json" for name in ("llama-3.1-8b", "mixtral-8x7b", "deepseek-v3")]
TRACES = [f"tests/fuzz/seeds/{name}_trace.json" for name in ("small", "tiny")]
PROFILES = ["tests/fuzz/seeds/small_profile.json", "tests/fuzz/seeds/module_info.json"]
COMMANDS = {
    "remat": (["tests/fuzz/seeds/small_joint.json"], REMAT),
    "schedule": (["tests/fuzz/seeds/small_joint.json", "tests/fuzz/seeds/small_node_link.json"], REMAT),
    "module dataflow": (["tests/fuzz/seeds/small_dataflow.json"], {}), "train score": (["tests/fuzz/seeds/small_runs.csv"], {}),
    **dict.fromkeys(["plan", "frontier", "report", "show", "check"], (TRACES + PROFILES, PLAN)),
    **dict.fromkeys(["explain", "profile", "simulate"], (TRACES, PLAN)),
    **dict.fromkeys([f"lengths {name}" for name in ("plan", "explain", "report", "simulate", "check")], (TRACES, PLAN | LENGTHS)),
    **dict.fromkeys([f"train {name}" for name in ("show", "plan", "search", "fit", "compare", "profile")], (MODELS, TRAIN))}
# Given in every run of the commands that have them.
NEEDED_FLAGS = {"--budget": ("remat", "schedule", "plan", "check"), "--gpu": tuple(COMMANDS), "--gpus": tuple(COMMANDS), "--time-limit": tuple(COMMANDS), "--device-memory": ("lengths plan",)}
OUTPUTS = ["out.csv", "in.json", "list.txt", "plan.json", ".", "no/out.json", "/dev/full", ""]
# fmt: on


@dataclasses.dataclass
class Ended:
    code: int
    out: bytes
    err: bytes
    seconds: float  # by the clock or of a core, whichever is less
    megabytes: int
    has_written: bool


class Questions:
    def __init__(self, program: pathlib.Path, root: pathlib.Path, seed: int) -> None:
        self.program, self.root, self.random = program, root, random.Random(seed)
        self.flags = {command: self._flags_of(program, command) for command in COMMANDS}

    @staticmethod
    def _flags_of(program: pathlib.Path, command: str) -> dict[str, bool]:
        """Returns a name of each flag, and whether it takes a value."""
        text = subprocess.run(
            [program, *command.split(), "--help"], capture_output=True, text=True, check=True
        ).stdout
        flags = {}
        for line in text.split("Options:")[1].splitlines():
            if match := re.match(r"  (-\S+)( [A-Z]\S*)?", line):
                name = min(
                    match[1].split(","), key=lambda name: (not name.startswith("--"), len(name))
                )
                flags[name] = bool(match[2])
        others = ("--help", "--color", "--errors", "--verbose", "--output", "-o")
        return {flag: value for flag, value in flags.items() if flag not in others}

    def ask(self, folder: pathlib.Path) -> list[str]:
        """Returns a command, and writes the file that it reads to the folder."""
        r = self.random
        command = r.choice(sorted(COMMANDS))
        files, usual = COMMANDS[command]
        seed = self.root / r.choice(files)
        text = seed.read_text()
        if r.random() < 0.2:
            text = self._changed(text)
        (folder / f"in{seed.suffix}").write_text(text, errors="surrogatepass")
        words = [*command.split(), f"in{seed.suffix}"]
        (folder / "list.txt").write_text(r.choice(LISTS))
        if command.startswith("lengths"):
            (folder / "lengths.txt").write_text(r.choice(["32\n16\n32\n", "32\n", "8\n", ""]))
            words[-1] = f"32={words[-1]}"
            words += ["--lengths", "lengths.txt"]
            if command == "lengths check" or (command != "lengths plan" and r.random() < 0.5):
                (folder / "plan.json").write_text(self._plan_of(folder, f"in{seed.suffix}"))
                words += ["--plan", "plan.json"]
        if command == "check" or (
            command in ("report", "show", "simulate") and r.random() < 0.5
        ):
            (folder / "plan.json").write_text(self._plan_of(folder, words[-1]))
            words.append("plan.json")
        if command == "train compare":
            words += r.choices(
                ["tp=2", "tp=4,pp=2", "pp=2,recompute=plan", "", "=", "in.json:0", "tp=1,tp=1"],
                k=r.randrange(1, 4),
            )
        flags = self.flags[command]
        chosen_flags = {
            flag
            for flag, commands in NEEDED_FLAGS.items()
            if command in commands and flag in flags
        }
        if "--json" in flags and r.random() < 0.5:
            chosen_flags.add("--json")
        chosen_flags |= set(
            r.sample(sorted(flags), min(len(flags), r.choice([0, 1, 1, 2, 3, 5])))
        )
        for flag in sorted(chosen_flags):
            if flags[flag] and flag not in usual and r.random() < 0.8:
                continue
            words.append(flag)
            if flags[flag]:
                is_odd = flag not in usual or r.random() < (
                    0.02 if flag in NEEDED_FLAGS else 0.08
                )
                words.append(r.choice(ODD if is_odd else usual[flag]))
        is_page = command in ("report", "lengths report")
        if is_page or (r.random() < 0.5 and command not in ("show", "check", "lengths check")):
            usual_output = "out.html" if is_page else r.choice(["out.json", "out.json.gz"])
            words += ["-o", r.choice(OUTPUTS) if r.random() < 0.3 else usual_output]
        return words

    def _plan_of(self, folder: pathlib.Path, name: str) -> str:
        """Returns the output of plan for a file, of any kind, sometimes changed."""
        r = self.random
        command = [
            self.program,
            "plan",
            name,
            "--budget",
            r.choice(["min", "60%", "90%", "100%"]),
            "--time-limit",
            "1",
            "--json",
        ]
        if r.random() < 0.3:
            command += ["--decisions", "save,recompute,skip"]
        plan_text = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=False
        ).stdout
        return self._changed(plan_text) if plan_text and r.random() < 0.3 else plan_text

    def _changed(self, text: str) -> str:
        r = self.random
        try:
            document = json.loads(text)
        except ValueError:
            place = r.randrange(len(text))
            return (
                text[:place]
                + r.choice(["", ",", "x", "-", "9" * 30, "\n", '"', "nan"])
                + text[place + 1 :]
            )
        for _ in range(r.choice([1, 1, 1, 2, 5])):
            self._change(document)
        return json.dumps(document)

    def _change(self, node: dict | list) -> None:
        r = self.random
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        if not keys:
            return
        key = r.choice(keys)
        value = node[key]
        if isinstance(value, (dict, list)) and value and r.random() < 0.85:
            self._change(value)
            return
        what = r.randrange(5)
        if what == 0:
            del node[key]
        elif what == 1 and isinstance(node, list):
            node.insert(r.randrange(len(node) + 1), value)
        elif what == 2:
            node[key] = node[r.choice(keys)]
        elif what == 3 and type(value) in (int, float):
            node[key] = r.choice(
                [value + 1, value - 1, value * 2, value * 1000, -value, value * 10**12]
            )
        else:
            node[key] = r.choice(CHANGES)


def files_of(folder: pathlib.Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def run(program: pathlib.Path, words: list[str], folder: pathlib.Path) -> Ended:
    before = files_of(folder)
    begin = time.monotonic()

    def lower() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
        resource.setrlimit(resource.RLIMIT_CPU, (200, 200))

    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        streams = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": err}
        process = subprocess.Popen([program, *words], cwd=folder, preexec_fn=lower, **streams)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        seconds = min(time.monotonic() - begin, usage.ru_utime + usage.ru_stime)
        has_written = files_of(folder) != before
        return Ended(
            process.returncode,
            out.read(),
            err.read(),
            seconds,
            usage.ru_maxrss >> 10,
            has_written,
        )


def limit_of(words: list[str]) -> float:
    try:
        return min(max(float(words[words.index("--time-limit") + 1]), 0), 60)
    except ValueError:
        return 30


def no_number(name: str) -> None:
    raise ValueError(name)


def broken_rules(words: list[str], ended: Ended) -> list[str]:
    complaints = []
    err = ended.err.decode(errors="replace")
    lines = [
        line for line in err.split("\n") if line and not line.startswith("acplan: warning:")
    ]
    # A plan that check refuses was changed, or is for another question.
    if ended.code not in (0, 2, 3, 4) and (name_of(words).split()[-1], ended.code) != (
        "check",
        1,
    ):
        complaints.append(f"exit code {ended.code}")
    # For fit the limit is that of a row.
    if ended.seconds > 2 * limit_of(words) + 2 and words[:2] != ["train", "fit"]:
        complaints.append(f"{ended.seconds:.1f} s")
    if ended.megabytes > 1500:
        complaints.append(f"{ended.megabytes} MB")
    if re.search(r"[\x00-\x08\x0b-\x1f\x7f\u202e\ufffd]", err):
        complaints.append("control characters on stderr")
    if re.search(r"terminate|std::|basic_string|bad_alloc|vector::|exception", err):
        complaints.append("an inner complaint")
    if ended.code == 2 and (len(lines) != 1 or ended.out):
        complaints.append(f"{len(lines)} lines on stderr, {len(ended.out)} bytes on stdout")
    if ended.code == 2 and ended.has_written:
        complaints.append("something written")
    if ended.code == 0 and lines:
        complaints.append("a complaint")
    if "--json" in words and ended.out:
        try:
            complaints += untruths(json.loads(ended.out, parse_constant=no_number))
        except ValueError as error:
            complaints.append(f"no JSON: {error}")
    return complaints


def name_of(words: list[str]) -> str:
    """Returns the name of the command, with that of its folder."""
    is_in_folder = words[0] in ("module", "train", "lengths")
    return " ".join(words[:2]) if is_in_folder else words[0]


def output_of(words: list[str]) -> str:
    return words[words.index("-o") + 1] if "-o" in words else ""


def untruths(node: object) -> Iterator[str]:
    """Yields statements of an answer that cannot be true."""
    if isinstance(node, list):
        for value in node:
            yield from untruths(value)
    if not isinstance(node, dict):
        return
    for less, more in (("bound_ms", "recompute_ms"), ("bound", "recomputed"), ("least_bound_bytes", "least_bytes"),
                       ("peak_bytes", "budget_bytes"), ("bound_s", "iteration_s")):  # fmt: skip
        numbers = [node.get(less), node.get(more)]
        # For a plan that does not fit, and in compare, which says so, a peak is above the
        # budget.
        is_judged = less == "peak_bytes" and (
            "holds" in node or node.get("status") == "baseline"
        )
        if all(type(number) in (int, float) for number in numbers) and not is_judged:
            if numbers[0] > numbers[1] * (1 + 1e-9) + 1e-12:
                yield f"{less} {numbers[0]} above {more} {numbers[1]}"
    for key, value in node.items():
        if key == "gap" and isinstance(value, (int, float)) and not -1e-9 <= value <= 1 + 1e-9:
            yield f"gap {value}"
        yield from untruths(value)


def disagreements(
    program: pathlib.Path, words: list[str], folder: pathlib.Path, ended: Ended
) -> list[str]:
    """Returns complaints if the file differs from the output, or is a plan that check
    refuses."""
    output = output_of(words)
    if ended.code != 0 or output not in ("out.json", "out.json.gz"):
        return []
    packed = (folder / output).read_bytes()
    file_bytes = gzip.decompress(packed) if output.endswith(".gz") else packed
    complaints = []
    if "--json" in words and words[:2] != ["train", "score"] and file_bytes != ended.out:
        complaints.append("stdout and the file differ")
    if words[0] == "plan":
        budget = str(json.loads(file_bytes)["budget_bytes"])
        check = run(program, ["check", words[1], output, "--budget", budget], folder)
        if check.code != 0:
            complaints.append(
                f"check ends with {check.code}: {(check.out + check.err)[-200:]!r}"
            )
    return complaints


def other_codes(
    program: pathlib.Path, words: list[str], folder: pathlib.Path, ended: Ended
) -> list[str]:
    """Returns a complaint if a command ends in another way without --json."""
    if "--json" not in words:
        return []
    of_text = run(program, [word for word in words if word != "--json"], folder)
    # A limit of time may come before a plan, or after it.
    is_chance = {ended.code, of_text.code} <= {0, 3, 4} and "--time-limit" in words
    is_about_json = b"--json" in of_text.err + ended.err
    if ended.code == of_text.code or is_chance or is_about_json:
        return []
    return [f"exit code {ended.code}, without --json {of_text.code}"]


def main(program: str, root: str, runs: str = "1000", seed: str = "1") -> int:
    path = pathlib.Path(program).resolve()
    questions = Questions(path, pathlib.Path(root).resolve(), int(seed))
    codes: dict[str, collections.Counter[int]] = collections.defaultdict(collections.Counter)
    is_broken = False
    for number in range(int(runs)):
        with tempfile.TemporaryDirectory() as folder_name:
            folder = pathlib.Path(folder_name)
            words = questions.ask(folder)
            ended = run(path, words, folder)
            codes[name_of(words)][ended.code] += 1
            complaints = broken_rules(words, ended)
            complaints += disagreements(path, words, folder, ended)
            complaints += other_codes(path, words, folder, ended)
            if complaints:
                is_broken = True
                print(
                    number,
                    "; ".join(complaints),
                    "|",
                    shlex.join(word[:80] for word in words),
                    "|",
                    ended.err[-300:],
                    flush=True,
                )
    for command, counts in sorted(codes.items()):
        print(command, ", ".join(f"{code}: {count}" for code, count in sorted(counts.items())))
    return 1 if is_broken else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
