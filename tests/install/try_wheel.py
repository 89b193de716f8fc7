#!/usr/bin/env python3
"""try_wheel.py WHEEL README: installs the wheel into an empty environment that sees the
packages of the one that runs this, including PyTorch, and uses it there from an empty folder,
without the source tree. Fails if something is missing or out of step; else prints the results.
"""

import os
import pathlib
import re
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv

# The variables that the example of README.md presupposes.
_MODEL = """
import acplan, torch, transformers

with torch.device("meta"):
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(use_cache=False))
    tokens = torch.zeros(8, 1024, dtype=torch.long)
"""
_FACTS = """
import importlib.metadata, pathlib, acplan
from acplan._base.program import find_program

about = importlib.metadata.metadata("acplan")
print(acplan.__version__, about["Version"])
print(pathlib.Path(acplan.__file__).parent)
print(find_program())
print(pathlib.Path(acplan.__file__).with_name("py.typed").exists())
print(sorted(about.get_all("Provides-Extra")))
"""


class _Environment:
    def __init__(self, folder: pathlib.Path) -> None:
        self.root = folder / "environment"
        self._empty = folder / "empty"
        self._empty.mkdir()
        venv.create(self.root)
        self.scripts = self.root / "bin"
        self.packages = pathlib.Path(
            sysconfig.get_path("purelib", "posix_prefix", {"base": str(self.root)})
        )
        (self.packages / "torch.pth").write_text(sysconfig.get_path("purelib") + "\n")

    def run(self, *command: str) -> str:
        """Returns the output of the command, with only the variables of an activated
        environment set."""
        paths = f"{self.scripts}{os.pathsep}/usr/bin{os.pathsep}/bin"
        inherited = {k: v for k, v in os.environ.items() if k in ("HOME", "LANG", "TMPDIR")}
        quiet = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
        process = subprocess.run(
            command,
            cwd=self._empty,
            env=inherited | quiet | {"PATH": paths, "VIRTUAL_ENV": str(self.root)},
            capture_output=True,
            text=True,
        )
        _require(process.returncode == 0, f"{command}: {process.stdout}{process.stderr}")
        return process.stdout


def _require(holds: bool, message: str) -> None:
    if not holds:
        sys.exit(f"try_wheel.py: {message}")


def _install(wheel: str, environment: _Environment) -> None:
    # Nothing is downloaded: PyTorch is there.
    pip = [sys.executable, "-m", "pip", "--python", str(environment.scripts / "python")]
    options = ["--quiet", "--disable-pip-version-check", "--no-index", "--no-deps"]
    subprocess.run([*pip, "install", *options, str(pathlib.Path(wheel).resolve())], check=True)


def _check_facts(environment: _Environment, expected_version: str) -> None:
    facts = environment.run("python", "-c", _FACTS).splitlines()
    expected = [
        f"{expected_version} {expected_version}",
        str(environment.packages / "acplan"),
        str(environment.scripts / "acplan"),
        "True",
        "['hf', 'lightning', 'pandas', 'progress', 'test', 'transformers']",
    ]
    _require(facts == expected, f"expected {expected}, found {facts}")
    printed = environment.run("acplan", "version").strip()
    _require(printed == f"acplan {expected_version}", f"acplan version printed {printed!r}")


def _check_commands(environment: _Environment) -> None:
    for command in (["acplan-torch"], ["acplan", "torch"], ["python", "-m", "acplan"]):
        _require("gpu-check" in environment.run(*command, "--help"), f"{command}: no help")
    data = environment.root / "share" / "acplan"
    profile = data / "profiles" / "gpt2_small.json.gz"
    plan_output = environment.run("acplan", "plan", str(profile), "--budget", "10GiB")
    _require("optimal: no plan" in plan_output, plan_output)
    # The program finds the data beside it.
    environment.run("acplan", "calculon", "llm-validation")


def _check_example(environment: _Environment, readme: str) -> str:
    block = re.search(r"^```python\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
    _require(block is not None, "README.md shows no Python")
    assert block
    printed = environment.run("python", "-c", _MODEL + block.group(1) + "print(check)")
    _require("(+0.0000%), equal at all" in printed, printed)
    return printed.strip()


def _main(wheel: str, readme: str) -> int:
    start = time.monotonic()
    text = pathlib.Path(readme).read_text()
    version = pathlib.Path(readme).with_name("VERSION").read_text().strip()
    with tempfile.TemporaryDirectory() as folder:
        environment = _Environment(pathlib.Path(folder).resolve())
        _install(wheel, environment)
        summary = _check_example(environment, text)
        planned_at = time.monotonic() - start
        _check_facts(environment, version)
        _check_commands(environment)
    print(f"{pathlib.Path(wheel).name}: {summary}")
    print(f"{planned_at:.0f} s from an empty environment to the plan that was traced again")
    return 0


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
