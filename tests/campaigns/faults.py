"""Runs acplan while something goes wrong, and examines the files that it leaves.

    python3 tests/campaigns/faults.py build/release/cli/acplan data [RUNS]

Each fault is tried RUNS times (100), with a random command, trace or profile and moment. In
every case the file is the old one or a complete new one, there is no other file beside it, and
the exit code is a documented one. Prints a table; exit code 1 if a rule is broken.
"""

import collections
import json
import os
import pathlib
import random
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable

OLD = '{"old": true}'
# Besides these: a signal that is not handled.
DOCUMENTED = {0, 1, 2, 3, 4}

Folder = pathlib.Path
Broken = list[str]


class Campaign:
    def __init__(self, program: Folder, data: Folder, seed: int) -> None:
        self.program, self.data = program.resolve(), data.resolve()
        self.random = random.Random(seed)
        with tempfile.NamedTemporaryFile("w", suffix=".txt", delete=False) as file:
            file.write("32\n32\n")
        self.lengths = file.name

    def command(self) -> list[str]:
        """Returns a command that writes plan.json."""
        traces = ["gpt2_tiny", "gpt2_small", "t5_small", "swin_tiny", "vit_base"]
        share = self.random.choice(["min", "60%", "75%", "90%"])
        choices = [
            ["plan", self._trace(self.random.choice(traces)), "--budget", share],
            ["frontier", self._trace("gpt2_tiny"), "--points", "5", "--json"],
            ["profile", self._trace(self.random.choice(traces))],
            ["simulate", self._trace(self.random.choice(traces))],
            ["simulate", self._trace("gpt2_tiny"), "--ddp", "default"],
            self._of_lengths("explain"),
            self._of_lengths("simulate"),
            self._of_lengths("plan"),
            ["plan", f"{self.data}/profiles/transformer4.json.gz", "--budget", "70%"],
            ["plan", f"{self.data}/profiles/unet.json.gz", "--budget", "70%"],
            ["remat", self._joint(), "--budget", share],
            ["remat", self._joint(), "--frontier", "4", "--time-limit", "2"],
            ["schedule", self._joint(), "--budget", "80%", "--time-limit", "2"],
            [
                "train",
                "search",
                self._model("deepseek-v3"),
                "--gpu",
                "H800",
                "--gpus",
                "256",
                "--gbs",
                "512",
            ],
            [
                "train",
                "search",
                self._model("qwen3-30b-a3b"),
                "--gpu",
                "GB200",
                "--gpus",
                "12",
                "--time-limit",
                "2",
            ],
            ["train", "fit", self._model("llama-3.1-8b"), "--gpu", "H100"],
            [
                "train",
                "plan",
                self._model("llama-3.1-70b"),
                "--gpu",
                "H100",
                "--gpus",
                "16",
                "--tp",
                "8",
            ],
        ]
        arguments = self.random.choice(choices)
        return [str(self.program), *arguments, "-o", "plan.json"]

    def _of_lengths(self, name: str) -> list[str]:
        trace = f"32={self._trace('gpt2_tiny')}"
        command = ["lengths", name, trace, "--lengths", self.lengths]
        return [*command, "--device-memory", "1GiB"]

    def _trace(self, name: str) -> str:
        return f"{self.data}/traces/{name}.json.gz"

    def _joint(self) -> str:
        return (
            f"{self.data}/joint/{self.random.choice(['gpt2_tiny', 'llama_4_layers'])}.json.gz"
        )

    def _model(self, name: str) -> str:
        return f"{self.data}/training/models/{name}.json"

    # Each returns the exit code.

    def interrupted(self, folder: Folder) -> int:
        return self._signalled(folder, signal.SIGINT)

    def terminated(self, folder: Folder) -> int:
        return self._signalled(folder, signal.SIGTERM)

    def killed(self, folder: Folder) -> int:
        return self._signalled(folder, signal.SIGKILL)

    def _signalled(self, folder: Folder, number: int) -> int:
        process = subprocess.Popen(self.command(), cwd=folder, **_QUIET)
        try:
            process.wait(self.random.uniform(0, 0.4))
        except subprocess.TimeoutExpired:
            process.send_signal(number)
        return process.wait()

    def out_of_memory(self, folder: Folder) -> int:
        most = self.random.randrange(40, 400) << 20
        return self._limited(folder, resource.RLIMIT_AS, most)

    def out_of_descriptors(self, folder: Folder) -> int:
        return self._limited(folder, resource.RLIMIT_NOFILE, self.random.randrange(4, 12))

    def file_too_large(self, folder: Folder) -> int:
        return self._limited(folder, resource.RLIMIT_FSIZE, self.random.randrange(0, 20_000))

    def _limited(self, folder: Folder, limit: int, most: int) -> int:
        def lower() -> None:
            resource.setrlimit(limit, (most, most))
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

        return subprocess.run(self.command(), cwd=folder, preexec_fn=lower, **_QUIET).returncode

    def full_output(self, folder: Folder) -> int:
        with open("/dev/full", "w") as full:
            return subprocess.run(
                self.command(), cwd=folder, stdout=full, stderr=full
            ).returncode

    def closed_output(self, folder: Folder) -> int:
        shell = ["sh", "-c", 'exec "$@" >&- 2>&-', "sh", *self.command()]
        return subprocess.run(shell, cwd=folder).returncode

    def reader_gone(self, folder: Folder) -> int:
        read, write = os.pipe()
        os.close(read)
        with os.fdopen(write, "w") as pipe:
            return subprocess.run(
                self.command(), cwd=folder, stdout=pipe, stderr=pipe
            ).returncode

    def two_writers(self, folder: Folder) -> int:
        both = [subprocess.Popen(self.command(), cwd=folder, **_QUIET) for _ in range(2)]
        return max(process.wait() for process in both)

    def other_locale(self, folder: Folder) -> int:
        names = ["de_DE.UTF-8", "tr_TR.UTF-8", "ar_EG", "C", "nonsense"]
        environment = {**os.environ, "LC_ALL": self.random.choice(names)}
        return subprocess.run(self.command(), cwd=folder, env=environment, **_QUIET).returncode

    def gone_folder(self, folder: Folder) -> int:
        command = self.command()
        command[-1] = "nowhere/plan.json"
        return subprocess.run(command, cwd=folder, **_QUIET).returncode


_QUIET = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
_SIGNALS = {
    "interrupted": signal.SIGINT,
    "terminated": signal.SIGTERM,
    "killed": signal.SIGKILL,
    "reader_gone": signal.SIGPIPE,
}


def broken_rules(name: str, folder: Folder, had_old: bool, code: int) -> Broken:
    complaints: Broken = []
    ends_so = name in _SIGNALS and code == -_SIGNALS[name]
    if code not in DOCUMENTED and not ends_so:
        complaints.append(f"exit code {code}")
    others = sorted(path.name for path in folder.iterdir() if path.name != "plan.json")
    if others:
        complaints.append(f"left {', '.join(others)}")
    path = folder / "plan.json"
    if not path.exists():
        return [*complaints, "the old file is gone"] if had_old else complaints
    text = path.read_text()
    if had_old and text == OLD:
        return complaints
    try:
        json.loads(text)
    except ValueError as error:
        complaints.append(f"a torn file: {error}")
    return complaints


def main(program: str, data: str, runs: str = "100") -> int:
    campaign = Campaign(Folder(program), Folder(data), seed=1)
    faults: dict[str, Callable[[Folder], int]] = {
        name: getattr(campaign, name)
        for name, kind in vars(Campaign).items()
        if callable(kind) and not name.startswith("_") and name != "command"
    }
    is_broken = False
    print("| fault | runs | exit codes | rules broken |\n|---|---:|---|---|")
    for name, fault in faults.items():
        codes: collections.Counter[int] = collections.Counter()
        broken: Broken = []
        for _ in range(int(runs)):
            with tempfile.TemporaryDirectory() as folder_name:
                folder = Folder(folder_name)
                had_old = campaign.random.random() < 0.5
                if had_old:
                    (folder / "plan.json").write_text(OLD)
                code = fault(folder)
                codes[code] += 1
                broken += broken_rules(name, folder, had_old, code)
        code_counts = ", ".join(f"{code}: {count}" for code, count in sorted(codes.items()))
        print(
            f"| {name.replace('_', ' ')} | {runs} | {code_counts} "
            f"| {'; '.join(broken[:3]) or 'none'} |",
            flush=True,
        )
        is_broken |= bool(broken)
    return 1 if is_broken else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
