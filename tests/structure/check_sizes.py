#!/usr/bin/env python3
"""check_sizes.py ROOT: fails, with a line for each violation, if a source or header under ROOT,
or a module of the Python package, is too large to read in one go: a file of more than 500
lines, a class of more than 200 or with more than 8 data members (private ones, whose names end
or, in Python, begin with _: a struct of values may have as many as its file format), a function
of more than 60 lines or 5 parameters. Keyword-only parameters of Python do not count, as each
call names them; docstrings do not count towards the length.

sizes.txt lists the exceptions, a line each: the place, and the reason. An entry that is no
longer needed is a violation, too.

The sources are formatted, so braces tell where things begin and end: no parser is needed.
"""

import ast
import pathlib
import re
import sys
from collections.abc import Iterator

FOLDERS = ("graph", "solver", "costmodel", "problems", "cli")
PACKAGE = "adapters/torch/acplan"
FILE_LINES = 500
CLASS_LINES = 200
CLASS_MEMBERS = 8
FUNCTION_LINES = 60
PARAMETERS = 5

_TOKENS = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(\w*)\((?:.*?)\)\1"|"(?:[^"\\\n]|\\.)*"'
    r"|(?<!\w)'(?:[^'\\\n]|\\.)+'",
    re.DOTALL,
)


def without_text(source: str) -> str:
    """Returns the source with comments, strings and preprocessor lines blanked, in as many
    lines."""

    def blank(match: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", match.group())

    return re.sub(r"(?m)^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", blank, _TOKENS.sub(blank, source))


def parameters(signature: str) -> int:
    """Returns the number of parameters in the first pair of parentheses."""
    signature = signature.replace("operator()", "operator_call")
    start = signature.index("(")
    depth = 0
    commas = 0
    text = ""
    for char in signature[start:]:
        depth += (char in "([{<") - (char in ")]}>")
        text += char
        if depth == 0:
            break
        commas += char == "," and depth == 1
    return commas + 1 if text.strip("() \n") not in ("", "void") else 0


def violations_of(path: str, source: str) -> Iterator[tuple[str, str]]:
    """Yields each violation: the place ("file" or "file: name") and what is too much there."""
    lines = source.count("\n")
    if lines > FILE_LINES:
        yield path, f"{lines} lines, more than {FILE_LINES}"
    code = without_text(source)
    # The open scopes: kind, name, first line, members.
    open_scopes: list[list] = []
    header_start = 0
    line = 1
    for i, char in enumerate(code):
        if char == "\n":
            line += 1
        scope_kind = open_scopes[-1][0] if open_scopes else "namespace"
        if char == ";":
            if scope_kind == "class":
                statement = code[header_start:i]
                member = re.search(r"(\w+_)\s*(=.*|\[.*\])?$", statement.strip(), re.DOTALL)
                if member and not re.match(
                    r"\s*(using|friend|typedef|return)\b|.*\bstatic\b", statement
                ):
                    open_scopes[-1][3] += 1
            if scope_kind != "other":
                header_start = i + 1
        elif char == "{":
            header = code[header_start:i]
            stripped = re.sub(r"^\s*((public|private|protected):\s*)*", "", header)
            first = (
                line
                - header.rstrip().count("\n")
                + (
                    len(header) - len(header.lstrip())
                    and header[: len(header) - len(header.lstrip())].count("\n")
                )
            )
            kind, name = "other", ""
            if scope_kind in ("namespace", "class"):
                plain = re.sub(r"template <[^{;]*?>\s*(?=\w)", "", stripped, count=1)
                if re.match(r"(inline )?namespace\b|extern\b", plain):
                    kind = "namespace"
                elif match := re.match(r"(?:enum )?(class|struct|union)\s+(\w+)", plain):
                    kind, name = "class", match.group(2)
                elif match := re.search(r"([\w:~]+|operator\W+?)\s*\(", plain):
                    if not re.search(r"=\s*$|\breturn$", plain):
                        kind, name = "function", match.group(1)
                elif re.search(r"\w+_\s*$", plain) and scope_kind == "class":
                    open_scopes[-1][3] += 1
                if kind == "function" and (count := parameters(plain)) > PARAMETERS:
                    yield f"{path}: {name}", f"{count} parameters, more than {PARAMETERS}"
            open_scopes.append([kind, name, first, 0])
            if kind != "other":
                header_start = i + 1
        elif char == "}" and open_scopes:
            kind, name, first, members = open_scopes.pop()
            length = line - first + 1
            place = f"{path}: {name}"
            if kind == "function" and length > FUNCTION_LINES:
                yield place, f"{length} lines, more than {FUNCTION_LINES}"
            if kind == "class" and length > CLASS_LINES:
                yield place, f"{length} lines, more than {CLASS_LINES}"
            if kind == "class" and members > CLASS_MEMBERS:
                yield place, f"{members} data members, more than {CLASS_MEMBERS}"
            if kind != "other":
                header_start = i + 1


def _lines_of(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Returns how many lines a class or function has without its docstring."""
    docstring = ast.get_docstring(node, clean=False)
    text = 0 if docstring is None else docstring.count("\n") + 1
    return (node.end_lineno or node.lineno) - node.lineno + 1 - text


def _private_members_of(node: ast.ClassDef) -> set[str]:
    return {
        part.attr
        for part in ast.walk(node)
        if isinstance(part, ast.Attribute)
        and isinstance(part.ctx, ast.Store)
        and isinstance(part.value, ast.Name)
        and part.value.id == "self"
        and part.attr.startswith("_")
    }


def python_violations_of(path: str, source: str) -> Iterator[tuple[str, str]]:
    """Does the same as violations_of for a module of Python."""
    lines = source.count("\n")
    if lines > FILE_LINES:
        yield path, f"{lines} lines, more than {FILE_LINES}"
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef):
            place = f"{path}: {node.name}"
            members = len(_private_members_of(node))
            if _lines_of(node) > CLASS_LINES:
                yield place, f"{_lines_of(node)} lines, more than {CLASS_LINES}"
            if members > CLASS_MEMBERS:
                yield place, f"{members} data members, more than {CLASS_MEMBERS}"
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            place = f"{path}: {node.name}"
            names = [a.arg for a in (*node.args.posonlyargs, *node.args.args)]
            count = len(names) - (names[:1] in (["self"], ["cls"]))
            if _lines_of(node) > FUNCTION_LINES:
                yield place, f"{_lines_of(node)} lines, more than {FUNCTION_LINES}"
            if count > PARAMETERS:
                yield place, f"{count} parameters, more than {PARAMETERS}"


def _violations(root: pathlib.Path) -> Iterator[tuple[str, str]]:
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in (".h", ".cc"):
                yield from violations_of(str(path.relative_to(root)), path.read_text())
    for path in sorted((root / PACKAGE).rglob("*.py")):
        yield from python_violations_of(str(path.relative_to(root)), path.read_text())


def _main(root: pathlib.Path) -> int:
    listed = {}
    exceptions = root / "tests/structure/sizes.txt"
    if exceptions.exists():
        for entry in exceptions.read_text().splitlines():
            if entry and not entry.startswith("#"):
                place, _, reason = entry.partition(" -- ")
                listed[place] = reason.strip()
    status = 0
    unused = set(listed)
    for place, what in _violations(root):
        unused.discard(place)
        if not listed.get(place):
            print(f"{place}: {what}")
            status = 1
    for place in sorted(unused):
        print(f"tests/structure/sizes.txt: nothing of {place} is too large")
        status = 1
    return status


if __name__ == "__main__":
    sys.exit(_main(pathlib.Path(sys.argv[1])))
