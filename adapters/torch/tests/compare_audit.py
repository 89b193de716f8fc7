"""Audits configurations as trainers' public repositories have them.

    ACPLAN=... PYTHONPATH=.:tests python tests/compare_audit.py FOLDER [REPOSITORY...]

FOLDER has a folder OWNER+NAME@COMMIT for each repository, with its files. Writes
docs/measured/audit.csv, or with names of repositories prints their rows: for each configuration,
the model of compare_emit.py that fits it best, what the configuration recomputes there, and what
the best policy of its language, the plan of acplan and the best single change would at the same
peak.

The decoder layers that a configuration names are those of its own model, so they are replaced by
those of the model here.
"""

import dataclasses
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from typing import Any

import acplan
from compare_emit import MODELS, _on_meta
from tables import Table, print_versions

_COLUMNS = (
    "repository", "commit", "path", "function", "trainer", "model", "peak_bytes",
    "baseline_bytes", "recompute_ms", "overhead", "language_ms", "plan_ms", "change",
    "change_ms", "refused",
)  # fmt: skip
# The time limit of each search of `acplan audit`.
_SECONDS = "1"
_LAYERS = {
    "dense LLM": "LlamaDecoderLayer", "LoRA": "LlamaDecoderLayer", "MoE": "MixtralDecoderLayer",
}  # fmt: skip
_LORA = re.compile(r"^adapter: *q?lora|^\[.*lora\]|lora_r\b", re.MULTILINE)
_MOE = re.compile(
    r"moe|mixtral|dbrx|deepseek|jamba|a\d+b|gpt[-_]oss|glm-?[45]|kimi|llama-?4|minimax|nemotron-3",
    re.IGNORECASE,
)
_CLASSES = re.compile(r"(transformer_layer_cls_to_wrap: *)(\S.*)")
# The words without which a file of a repository is no configuration of its trainer's model.
_WORDS = {
    "accelerate": r"^distributed_type:",
    "axolotl": r"^base_model:",
    "prime-rl": r"\.ac\]|^ac *=",
    "torchtitan": r"-> .*Config:",
    "trl": r"^distributed_type:|from trl import|^gradient_checkpointing:",
}


@dataclasses.dataclass(frozen=True)
class Source:
    """A configuration; `function` is that of a Python file which makes it, or ""."""

    folder: pathlib.Path
    path: pathlib.Path
    text: str
    function: str = ""

    @property
    def repository(self) -> str:
        return self.folder.name.partition("@")[0].replace("+", "/")

    @property
    def trainer(self) -> str:
        return self.repository.partition("/")[2]

    @property
    def model(self) -> str:
        if _LORA.search(self.text):
            return "LoRA"
        return "MoE" if _MOE.search(f"{self.path}{self.function}") else "dense LLM"


def sources(folder: pathlib.Path) -> Iterator[Source]:
    trainer = folder.name.partition("@")[0].partition("+")[2]
    for path in sorted(folder.rglob("*")):
        is_registry = path.name == "config_registry.py"
        if path.suffix not in (".yaml", ".yml", ".toml", ".py") or not path.is_file():
            continue
        text = path.read_text(errors="replace")
        if not re.search(_WORDS[trainer], text, re.MULTILINE):
            continue
        if trainer != "torchtitan":
            yield Source(folder, path, text)
        elif is_registry:
            for name in re.findall(
                r"^def ([a-z]\w*)\([^)]*\) -> .*Config:", text, re.MULTILINE
            ):
                yield Source(folder, path, text, name)


def _audit(source: Source, trace: pathlib.Path, *options: str) -> tuple[dict[str, Any], str]:
    """Returns the audit, or else why the configuration is refused."""
    layers = _LAYERS[source.model]
    with tempfile.TemporaryDirectory() as folder:
        config = pathlib.Path(folder, f"config{source.path.suffix}")
        config.write_text(_CLASSES.sub(rf"\g<1>{layers}", source.text))
        command = [
            os.environ.get("ACPLAN", "acplan"), "audit", str(config), "--trace", str(trace),
            "--json", "--time-limit", _SECONDS, *options,
        ]  # fmt: skip
        if source.function:
            command += ["--function", source.function]
        answer = subprocess.run(command, capture_output=True, text=True)
        if answer.returncode == 0:
            return json.loads(answer.stdout), ""
        return {}, answer.stderr.strip().replace(f"{config}: ", "").removeprefix("acplan: ")


def row(source: Source, trace: pathlib.Path) -> tuple[object, ...]:
    audit, refused = _audit(source, trace)
    if "say which" in refused:
        audit, refused = _audit(source, trace, "--for", source.trainer)
    first = (
        source.repository, source.folder.name.partition("@")[2],
        source.path.relative_to(source.folder), source.function,
        audit.get("trainer", ""), source.model,
    )  # fmt: skip
    if refused:
        return (*first, *[""] * 8, refused)

    def ms(part: str) -> object:
        return round(audit[part]["recompute_ms"], 4) if part in audit else ""

    return (
        *first, audit["peak_bytes"], audit["baseline_peak_bytes"],
        round(audit["recompute_ms"], 4), round(audit["overhead"], 5), ms("language"),
        ms("plan"), audit.get("change", {}).get("words", ""), ms("change"),
    )  # fmt: skip


def main(folder: pathlib.Path, names: list[str]) -> int:
    print_versions("transformers", "peft")
    table = Table("audit", _COLUMNS, is_partial=bool(names))
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as work:
        traces = {}
        for name in _LAYERS:
            model = MODELS[name]
            module, inputs = _on_meta(model)
            traces[name] = pathlib.Path(work, f"{len(traces)}.trace.json.gz")
            acplan.trace(module, progress=False, **model.options(), **inputs).save(traces[name])
        for repository in sorted(path for path in folder.iterdir() if "@" in path.name):
            for source in sources(repository):
                if names and source.repository not in names:
                    continue
                cells = row(source, traces[source.model])
                table.add(*cells)
                is_refused = len(cells) == len(_COLUMNS)
                counts["refused" if is_refused else "audited"] += 1
                if not is_refused and cells[12]:
                    counts["with a change that helps"] += 1
    print(", ".join(f"{count} {what}" for what, count in counts.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1]), sys.argv[2:]))
