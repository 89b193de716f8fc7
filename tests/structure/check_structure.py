#!/usr/bin/env python3
"""check_structure.py ROOT: fails, with a line for each violation, if under ROOT
- a source or header includes what its folder may not know, or a folder links such a target;
- a COIN-OR header is included outside of the two files that wrap COIN-OR;
- an #include "..." is no path from the root;
- a header does not begin with #pragma once (comments may come before);
- x.cc does not include its own x.h first;
- a module of the Python package imports what its room may not know, or unittest;
- a module of the package is neither in a room nor one that users import;
- a module replaces an attribute by a function of PATCHING, by a name that the list in the first
  file of its room does not have, or for a module that users import its own docstring; or such a
  list has a name that nothing in the room says.

All folders share one include root, so the compiler notices none of this; nor does Python.
"""

import ast
import fnmatch
import pathlib
import re
import sys
from collections.abc import Iterator

LIBRARIES = ("graph", "solver", "costmodel", "problems", "cli")

# The folders that a folder may know besides itself; if several entries begin a file's path, the
# longest counts. An entry covers the folders inside of it. Order: from the bottom up.
MAY_KNOW: dict[str, tuple[str, ...]] = {
    "graph/base": (),
    "graph/allocator": ("graph/base",),
    "graph/snapshot": ("graph/base", "graph/allocator"),
    "graph/device": ("graph/base",),
    "graph/profile": ("graph/base",),
    "graph/trace": ("graph/base", "graph/profile"),
    "graph/run": ("graph/base", "graph/allocator", "graph/profile", "graph/trace"),
    "graph/dataflow": ("graph/base", "graph/profile", "graph/trace"),
    "graph/joint": ("graph/base", "graph/profile"),
    "graph/schedule": ("graph/base", "graph/profile", "graph/joint"),
    "solver": (),
    "solver/labels": ("solver",),
    # This and the model of training runs do not know each other.
    "costmodel/calculon": ("graph/base", "graph/profile"),
    "costmodel/training/model": ("graph/base",),
    "costmodel/training/hardware": ("graph/base", "graph/device"),
    "costmodel/training/strategy": (
        "graph/base",
        "costmodel/training/model",
        "costmodel/training/hardware",
    ),
    "costmodel/training/settings": (
        "graph/base",
        "costmodel/training/model",
        "costmodel/training/hardware",
        "costmodel/training/strategy",
    ),
    "costmodel/training/layer": (
        "graph/base",
        "costmodel/training/model",
        "costmodel/training/hardware",
        "costmodel/training/strategy",
    ),
    "costmodel/training/memory": (
        "graph/base",
        "graph/device",
        "costmodel/training/model",
        "costmodel/training/hardware",
        "costmodel/training/strategy",
        "costmodel/training/layer",
    ),
    "costmodel/training/time": (
        "graph/base",
        "costmodel/training/model",
        "costmodel/training/hardware",
        "costmodel/training/strategy",
        "costmodel/training/layer",
        "costmodel/training/memory",
    ),
    "costmodel/training/confidence": (
        "graph/base",
        "costmodel/training/model",
        "costmodel/training/hardware",
        "costmodel/training/strategy",
        "costmodel/training/time",
    ),
    "costmodel/training/plans": (
        "graph/base",
        "costmodel/training/model",
        "costmodel/training/hardware",
        "costmodel/training/strategy",
        "costmodel/training/layer",
        "costmodel/training/memory",
        "costmodel/training/time",
    ),
    "costmodel/training/search": (
        "graph/base",
        "costmodel/training/model",
        "costmodel/training/hardware",
        "costmodel/training/strategy",
        "costmodel/training/settings",
        "costmodel/training/layer",
        "costmodel/training/memory",
        "costmodel/training/time",
        "costmodel/training/confidence",
        "costmodel/training/plans",
    ),
    "costmodel/training/score": (
        "graph/base",
        "costmodel/training/model",
        "costmodel/training/hardware",
        "costmodel/training/strategy",
        "costmodel/training/layer",
        "costmodel/training/memory",
        "costmodel/training/time",
        "costmodel/training/confidence",
    ),
    "costmodel/training": ("graph/base",),
    "costmodel/profile": ("graph/base", "graph/profile", "costmodel/training"),
    "problems/model": ("graph", "solver"),
    "problems/plan": ("graph", "problems/model"),
    # Shares nothing with the code that makes plans.
    "problems/check": ("graph", "problems/model", "problems/plan"),
    "problems/engines": ("graph", "solver", "problems/model"),
    # Neither engine knows the other.
    "problems/engines/labels": ("graph", "solver", "problems/model"),
    "problems/engines/milp": ("graph", "solver", "problems/model"),
    "problems/trace/policies": ("graph", "solver", "problems/model"),
    "problems/trace/problem": (
        "graph",
        "solver",
        "problems/model",
        "problems/plan",
        "problems/trace/policies",
    ),
    "problems/trace/relaxation": (
        "graph",
        "solver",
        "problems/model",
        "problems/plan",
        "problems/engines",
        "problems/trace/policies",
        "problems/trace/problem",
    ),
    # Has no units, so it needs no code that makes plans.
    "problems/regret": ("graph",),
    "problems/trace/rerun_bound": ("graph", "solver"),
    "problems/trace": (
        "graph",
        "solver",
        "problems/model",
        "problems/plan",
        "problems/engines",
    ),
    "problems/offload": (
        "graph",
        "solver",
        "problems/model",
        "problems/plan",
        "problems/trace/problem",
    ),
    "problems/remat": ("graph", "solver", "problems/model"),
    "problems/schedule": ("graph", "solver"),
    "problems": ("graph", "solver"),
    "cli/terminal": ("graph/base", "solver/search.h", "problems/model"),
    "cli/pictures": ("graph/base", "costmodel/calculon/results"),
    "cli/input": ("graph", "solver", "problems", "cli/terminal"),
    "cli/report": ("graph", "problems", "cli/input", "cli/pictures/picture.h"),
    "cli/planning": (
        "graph",
        "solver",
        "problems",
        "cli/command.h",
        "cli/input",
        "cli/report",
        "cli/terminal",
    ),
    "cli/lengths": (
        "graph",
        "solver",
        "problems",
        "cli/command.h",
        "cli/input",
        "cli/planning/allocator_flags.h",
        "cli/planning/allocator_json.h",
        "cli/planning/allocator_text.h",
        "cli/planning/explain_device.h",
        "cli/planning/plan_device.h",
        "cli/planning/run_place.h",
        "cli/planning/step_names.h",
        "cli/report",
        "cli/terminal",
    ),
    "cli/show": (
        "graph",
        "problems",
        "cli/command.h",
        "cli/input",
        "cli/planning/peak_place.h",
        "cli/planning/streams_text.h",
        "cli/terminal",
    ),
    "cli/module": (
        "graph",
        "solver",
        "problems",
        "cli/command.h",
        "cli/input",
        "cli/planning/policy_text.h",
        "cli/planning/stopped_text.h",
        "cli/terminal",
    ),
    # Two models, two halves that do not know each other.
    "cli/calculon": (
        "graph",
        "solver",
        "costmodel/calculon",
        "cli/command.h",
        "cli/input",
        "cli/terminal",
        "cli/pictures",
    ),
    "cli/training": (
        "graph",
        "solver",
        "costmodel/training",
        "costmodel/profile",
        "cli/command.h",
        "cli/input",
        "cli/terminal",
    ),
    "cli": LIBRARIES,
}

# The targets that a folder's CMakeLists.txt may link: one library a folder at the top,
# and graph/base.
MAY_LINK = {
    "graph/base": ("base",),
    "graph": ("base", "graph"),
    "solver": ("solver",),
    "costmodel": ("base", "graph", "costmodel"),
    "problems": ("base", "graph", "solver", "problems"),
    "cli": ("base", "graph", "solver", "costmodel", "problems", "cli"),
}

PACKAGE = "adapters/torch/acplan"

# The rooms that a room of the Python package may know besides itself. Order: from the bottom
# up.
ROOM_MAY_KNOW: dict[str, tuple[str, ...]] = {
    "_base": (),
    "_files": ("_base",),
    "_device": ("_base",),
    "_fakes": ("_base", "_files", "_device"),
    # Code that runs in training does not depend on code that traces: neither _fakes nor _step.
    "_apply": ("_base", "_files"),
    "_step": ("_base", "_files", "_device", "_fakes"),
    "_program": ("_base", "_files"),
    "_verify": ("_base", "_files", "_device", "_fakes", "_apply", "_step", "_program"),
    "_graphs": ("_base", "_files", "_device", "_program"),
    "_compile": ("_base", "_files", "_device", "_fakes", "_step", "_program", "_graphs"),
    "_advise": ("_base", "_files", "_device", "_step", "_program"),
    "_trainers": (
        "_base", "_files", "_device", "_fakes", "_apply", "_step", "_program", "_verify",
    ),
    "_peers": ("_base", "_files", "_step", "_program"),
}  # fmt: skip

# Modules in no room: the face, which knows all rooms and which no room knows.
FACE = ("__init__", "__main__", "accelerate", "lightning", "torchtitan", "transformers")

# The functions that replace an attribute, given as owner and name, and where they are.
PATCHING = ("set_attribute", "replaced_here")
PATCHING_FILE = "_base/patching.py"

WRAPS_COIN_OR = re.compile(r"solver/(cbc|clp|lp)_\w+\.cc$")

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?:"([^"]+)"|<([^>]+)>)', re.MULTILINE)


def covers(entry: str, path: str) -> bool:
    return path == entry or path.startswith(entry + "/")


def room(path: str) -> str | None:
    """Returns the longest entry of MAY_KNOW that covers the path."""
    return max((e for e in MAY_KNOW if covers(e, path)), key=len, default=None)


def violations_of(path: str, source: str) -> Iterator[str]:
    folder = room(path)
    if folder is None:
        yield f"no rule covers its folder: see {pathlib.Path(__file__).name}"
        return
    may_know = (folder, *MAY_KNOW[folder])
    for include in _INCLUDE.finditer(source):
        header = include.group(1) or include.group(2)
        is_ours = header.split("/")[0] in LIBRARIES and "/" in header
        if include.group(1) and "/" not in header:
            yield f'write "folder/{header}"'
        elif is_ours and room(header) is not None:
            if not any(covers(entry, header) for entry in may_know):
                yield f"{folder}/ may not know {header} (only: {', '.join(may_know)})"
        elif include.group(1):
            yield f'"{header}" is in no folder of the library'
        elif re.match(r"(Cbc|Cgl|Osi|Clp|Coin)", header.split("/")[-1]):
            if not WRAPS_COIN_OR.match(path):
                yield f"<{header}> belongs in the files of solver/ that wrap COIN-OR"


def starts_wrongly(source: str) -> bool:
    lines = (line for line in source.splitlines() if line.strip())
    first = next((line for line in lines if not line.startswith("//")), "")
    return first != "#pragma once"


def _check(root: pathlib.Path) -> Iterator[str]:
    for library in LIBRARIES:
        for file in sorted((root / library).rglob("*")):
            path = str(file.relative_to(root))
            if file.name == "CMakeLists.txt":
                where = str(pathlib.Path(path).parent)
                for target in re.findall(r"acplan::([a-z]+)", file.read_text()):
                    if target not in MAY_LINK.get(where, ()):
                        yield f"{path}: {where}/ may not know {target}/"
            if file.suffix not in (".h", ".cc"):
                continue
            source = file.read_text()
            for violation in violations_of(path, source):
                yield f"{path}: {violation}"
            if file.suffix == ".h" and starts_wrongly(source):
                yield f"{path}: does not begin with #pragma once"
            own = path.removesuffix(".cc") + ".h"
            if file.suffix == ".cc" and (root / own).exists():
                first = _INCLUDE.search(source)
                if first is None or first.group(1) != own:
                    yield f'{path}: does not include "{own}" first'


def imports_of(source: str) -> Iterator[str]:
    """Yields the modules that a Python module imports, anywhere in it; for `from acplan import
    x` that is the module acplan.x."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            name = "." * node.level + (node.module or "")
            if name == "acplan":
                yield from (f"acplan.{alias.name}" for alias in node.names)
            else:
                yield name


def python_violations_of(path: str, source: str) -> Iterator[str]:
    """Yields the violations of a module of Python. `path` is relative to the package."""
    folder, _, name = path.rpartition("/")
    if folder not in ROOM_MAY_KNOW and (folder or name.removesuffix(".py") not in FACE):
        yield "is in no room, and is no module that users import"
        return
    for module in imports_of(source):
        first, _, rest = module.partition(".")
        may_know = (folder, *ROOM_MAY_KNOW.get(folder, ()))
        if first == "unittest":
            yield "unittest is for tests"
        elif module.startswith("."):
            yield f'write "acplan" in place of the dots of {module}'
        elif first == "acplan" and folder and rest.split(".")[0] not in may_know:
            yield f"{folder} may not know {module} (only: {', '.join(may_know)})"


def listed_replacements(docstring: str) -> list[str]:
    """Returns the full names in a docstring's list of what is replaced: one in each line that
    is indented by four spaces, before a comma."""
    return re.findall(r"^    ([\w.]+\.[\w*]+)(?:,.*)?$", docstring, re.MULTILINE)


def _strings_by_name(tree: ast.AST) -> dict[str, set[str]]:
    """Returns the strings that a variable of this module may be, if it is set to a string or
    loops over strings."""
    strings: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            targets, values = node.targets, [node.value]
        elif isinstance(node, (ast.For, ast.comprehension)):
            targets, values = [node.target], getattr(node.iter, "elts", [])
        else:
            continue
        for target in targets:
            if isinstance(target, ast.Name):
                texts = [v.value for v in values if isinstance(v, ast.Constant)]
                strings.setdefault(target.id, set()).update(
                    text for text in texts if isinstance(text, str)
                )
    return strings


def replaced_names(source: str) -> Iterator[str]:
    """Yields the names of attributes that a module replaces, as far as they are strings in its
    text. Attributes of acplan's own modules are left out."""
    tree = ast.parse(source)
    strings = _strings_by_name(tree)
    own = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("acplan")
        for alias in node.names
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or len(node.args) < 2:
            continue
        function = getattr(node.func, "id", getattr(node.func, "attr", None))
        owner, name = node.args[:2]
        if function not in PATCHING or isinstance(owner, ast.Name) and owner.id in own:
            continue
        if isinstance(name, ast.Constant):
            yield name.value
        elif isinstance(name, ast.Name):
            yield from sorted(strings.get(name.id, ()))


def replacement_violations(package: pathlib.Path, folder: str) -> Iterator[tuple[str, str]]:
    """Yields what is missing in the list of a room, or in those of the modules that users
    import, each with its file."""
    files = sorted((package / folder).glob("*.py"))
    sources = {str(f.relative_to(package)): f.read_text() for f in files}
    sources.pop(PATCHING_FILE, None)
    for path, source in sources.items():
        lists = path if not folder else f"{folder}/__init__.py"
        docstring = ast.get_docstring(ast.parse(sources.get(lists, "")), clean=False) or ""
        names = {name.rpartition(".")[2] for name in listed_replacements(docstring)} - {"*"}
        for name in replaced_names(source):
            if not any(fnmatch.fnmatchcase(name, pattern) for pattern in names):
                yield path, f"replaces {name}, which the list in {lists} does not have"


def _check_package(root: pathlib.Path) -> Iterator[str]:
    package = root / PACKAGE
    for file in sorted(package.rglob("*.py")):
        path = str(file.relative_to(package))
        for violation in python_violations_of(path, file.read_text()):
            yield f"{PACKAGE}/{path}: {violation}"
        if path.endswith("/__init__.py") and any(imports_of(file.read_text())):
            yield f"{PACKAGE}/{path}: imports nothing, it says what the room is"
    for folder in ("", *ROOM_MAY_KNOW):
        for path, violation in replacement_violations(package, folder):
            yield f"{PACKAGE}/{path}: {violation}"


def _main(root: pathlib.Path) -> int:
    violations = [*_check(root), *_check_package(root)]
    print("\n".join(violations), end="\n" if violations else "")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(_main(pathlib.Path(sys.argv[1])))
