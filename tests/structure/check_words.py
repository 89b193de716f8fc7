#!/usr/bin/env python3
"""check_words.py ROOT [ROOM]: counts what docs/style.md does not want, by room.

Three kinds are counted:

- sentences: a sentence of a comment, a docstring or a page that begins with one of OPENINGS.
- comments: the comment of a function in a C++ header, or the docstring of a Python function,
  that does not begin with a verb in the third person.
- names: a variable, parameter or function whose name is one of LONE_WORDS and nothing more.

words.txt holds the numbers of today, a line for each room. The check fails where a number is
higher, and where one is lower and words.txt still says the old one. A room without a line has
none. With ROOM, the check prints each place of that room instead.
"""

import ast
import io
import pathlib
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator

# A room, the folders and files that belong to it, and the suffixes that are read there.
ROOMS = {
    "graph": ("graph", ".h .cc"),
    "solver": ("solver", ".h .cc"),
    "problems": ("problems", ".h .cc"),
    "costmodel": ("costmodel", ".h .cc"),
    "cli": ("cli", ".h .cc"),
    "tests": ("tests", ".h .cc .py"),
    "scripts": ("scripts", ".py"),
    "adapter": ("adapters/torch/acplan", ".py"),
    "adapter_tests": ("adapters/torch/tests", ".py"),
    "pages": (
        "docs README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md adapters/torch/README.md "
        "adapters/torch/acplan/_apply/README.md bench/README.md data/README.md "
        "examples/README.md tests/fuzz/README.md",
        ".md",
    ),
}
# The page that quotes what it forbids, and files of peers.
SKIPPED_PAGES = ("docs/style.md", "tests/data/")

OPENINGS = frozenset("Of What Whether Those Who That By".split())
# Openings that are plain English.
ALLOWED_OPENINGS = ("By default", "By convention")

# Words that end in s and are no verb in the third person.
NOT_VERBS = frozenset(
    """always arguments as axes bias blocks bounds bytes calls candidates class columns curves
    decisions digits edges entries fields figures files flags flops gradients groups holders
    indices items its kernels keys layers less limits lines milliseconds minus models modules
    names nodes numbers operators options others pairs parameters parts points policies process
    results rows samples seconds segments sizes stages status steps storages strategies tensors
    terms this thus times tokens units us values whose words""".split()
)

# Participles, prepositions and adverbs of place or time: none says of what it is.
LONE_WORDS = frozenset(
    """of by per than without within inside outside beside behind beyond about around along
    found made given known kept left gone sent told held taken lost seen drawn meant shown
    asked named called wanted needed used chosen planned allowed put added dropped moved
    counted marked skipped reached passed tried done written built grown thrown
    here there elsewhere again already still ahead apart alike such whose""".split()
)


def sentences_of(text: str) -> Iterator[str]:
    """Yields the sentences of a paragraph, the name that a list defines cut off."""
    text = re.sub(r"\s+", " ", text).strip()
    for sentence in re.split(r"(?<=[.!?])[)*_\"']*\s+(?=[*_`(\"']*[A-Z`])", text):
        yield re.sub(r"^[-*\s]*(`[^`]*`|\*\*[^*]*\*\*|\w+): +", "", sentence).lstrip("*_(\"' ")


def bad_openings(text: str) -> Iterator[str]:
    """Yields each sentence of a paragraph that begins with one of OPENINGS."""
    for sentence in sentences_of(text):
        word = re.match(r"[A-Za-z]+(?![\w'`(])", sentence)
        if word and word.group() in OPENINGS:
            if not sentence.startswith(ALLOWED_OPENINGS) and not sentence.endswith("?"):
                yield sentence


def begins_with_verb(text: str) -> bool:
    """Returns whether a comment begins with a verb in the third person, after a name."""
    text = re.sub(r"^\s*`[^`]*`[:,]?\s+", "", text)
    word = re.match(r"\s*([A-Za-z]+)\b", text)
    return bool(word) and word[1].endswith("s") and word[1].lower() not in NOT_VERBS


def paragraphs(lines: list[str]) -> Iterator[str]:
    """Yields the paragraphs and list items of comment or docstring lines, without code."""
    paragraph: list[str] = []
    for line in [*lines, ""]:
        item = re.match(r"\s*([-*]|\d+\.|\([a-z0-9]\))\s+", line)
        is_code = line.startswith("    ") and not paragraph
        if not line.strip() or item or is_code:
            if paragraph:
                yield " ".join(paragraph)
            paragraph = []
        if line.strip() and not is_code:
            paragraph.append(line[item.end() :] if item else line)


Finding = tuple[int, str, str]

# --- C++ ---

_CPP_TOKEN = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(\w*)\((?:.*?)\)\1"|"(?:[^"\\\n]|\\.)*"'
    r"|(?<!\w)'(?:[^'\\\n]|\\.)+'",
    re.DOTALL,
)


def _blanked(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", match.group())


def _comment_blocks(source: str) -> Iterator[tuple[int, int, list[str]]]:
    """Yields each run of // comments: its line, its column and its lines."""
    block: list[str] = []
    first = column = last = -1
    is_trailing = False
    for match in _CPP_TOKEN.finditer(source):
        if not match.group().startswith("//"):
            continue
        line = source.count("\n", 0, match.start()) + 1
        start = match.start() - source.rfind("\n", 0, match.start()) - 1
        has_code = bool(source[match.start() - start : match.start()].strip())
        continues = line == last + 1 and start == column and not (has_code and not is_trailing)
        if block and (not continues or has_code):
            yield first, column, block
            block = []
        if not block:
            first, column, is_trailing = line, start, has_code
        block.append(match.group()[2:].removeprefix(" "))
        last = line
    if block:
        yield first, column, block


def _function_declared(code: str) -> str:
    """Returns the name of the function that this code begins by declaring, or ''."""
    code = re.sub(r"^\s*template <[^;{]*?>\s*(?=[A-Za-z])", "", code)
    code = re.sub(r"^\s*(\[\[\w+(\(\s*\))?\]\]\s*)+", "", code)
    statement = re.match(r"[^;{]*", code)[0].lstrip()
    if re.match(
        r"(class|struct|enum|union|using|typedef|namespace|friend|#|return|case)\b", statement
    ):
        return ""
    head = re.match(r"[^=(]*?(operator\W+?|[\w~]+)\s*\(", statement)
    if not head or "=" in statement[: head.end() - 1].replace("operator=", ""):
        return ""
    return head[1]


def cpp_findings(path: pathlib.Path, source: str) -> Iterator[Finding]:
    """Yields the findings of a C++ file, each as line, kind and text."""
    without_code = _CPP_TOKEN.sub(_blanked, source)
    code_lines = without_code.split("\n")
    for line, column, block in _comment_blocks(source):
        for paragraph in paragraphs(block):
            for sentence in bad_openings(paragraph):
                yield line, "sentences", sentence
        if path.suffix != ".h" or code_lines[line - 1].strip():
            continue
        following = "\n".join(code_lines[line - 1 + len(block) :])
        if following.startswith("\n") or not following.strip():
            continue
        name = _function_declared(following[:2000])
        # An accessor is named like a variable and may be described like one.
        is_accessor = name.islower() and not name.startswith("operator")
        if name and column <= 2 and not is_accessor and not begins_with_verb(" ".join(block)):
            yield line, "comments", f"{name}: {block[0]}"
    code = re.sub(r"(?m)^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", _blanked, without_code)
    for match in re.finditer(r"[A-Za-z]+_?", code):
        if match.group().rstrip("_").lower() in LONE_WORDS and _is_declared(code, match):
            yield code.count("\n", 0, match.start()) + 1, "names", match.group()


_NO_TYPES = frozenset("return co_return case goto new delete throw else operator".split())


def _is_declared(code: str, match: re.Match[str]) -> bool:
    """Returns whether this name in C++ code is where something is declared."""
    if match.start() and re.match(r"\w", code[match.start() - 1]):
        return False
    if re.match(r"\w", code[match.end() : match.end() + 1]):
        return False
    before = code[: match.start()].rstrip()[-200:]
    after = code[match.end() : match.end() + 200].lstrip()[:2]
    if re.search(r"auto[&\s]*\[[\w\s,]*$", before):
        return True
    if before.endswith(("->", "&&", "||")) and not re.search(r"\w&&$", before):
        return False
    if not re.search(r"(\w|>|\w[&*]+|>[&*]+)$", before):
        return False
    word = re.search(r"(\w+)$", before)
    if word and (word[1] in _NO_TYPES or word[1].isdigit()):
        return False
    # A product or comparison has spaces on both sides, a type's & or * has none before.
    if before.endswith(("&", "*", ">")) and code[match.start() - 1] not in " \n":
        return False
    if re.search(r"\s[>&*]+$", before):
        return False
    return bool(re.match(r"[=;,()\[{:]", after)) and not after.startswith(("==", "::"))


# --- Python ---

_PROPERTIES = frozenset({"property", "cached_property", "setter", "fixture"})


def _decorators(node: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    names = set()
    for decorator in node.decorator_list:
        function = decorator.func if isinstance(decorator, ast.Call) else decorator
        names.add(
            function.attr if isinstance(function, ast.Attribute) else ast.unparse(function)
        )
    return names


def _names_bound(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yields the variables, parameters and functions of Python code, each once a scope."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.lineno, node.name


def _python_comments(source: str) -> Iterator[tuple[int, list[str]]]:
    """Yields each run of # comments: its line and its lines."""
    block: list[str] = []
    first = last = column = -1
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT or token.string.startswith(
            ("#!", "# noqa", "# type")
        ):
            continue
        line, start = token.start
        is_trailing = bool(token.line[:start].strip())
        if block and (line != last + 1 or start != column or is_trailing):
            yield first, block
            block = []
        if not block:
            first, column = line, start
        block.append(token.string[1:].removeprefix(" "))
        last = line
    if block:
        yield first, block


def python_findings(source: str) -> Iterator[Finding]:
    """Yields the findings of a Python file, each as line, kind and text."""
    tree = ast.parse(source)
    blocks = list(_python_comments(source))
    for node in ast.walk(tree):
        if not isinstance(
            node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        ):
            continue
        text = ast.get_docstring(node)
        if text is None:
            continue
        line = node.body[0].lineno
        blocks.append((line, text.split("\n")))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            is_exempt = node.name.startswith("test") or _decorators(node) & _PROPERTIES
            if not is_exempt and not begins_with_verb(text):
                yield line, "comments", f"{node.name}: {text.splitlines()[0]}"
    for line, block in blocks:
        for paragraph in paragraphs(block):
            for sentence in bad_openings(paragraph):
                yield line, "sentences", sentence
    for line, name in _names_bound(tree):
        if name.strip("_").lower() in LONE_WORDS:
            yield line, "names", name


# --- Markdown ---


def page_findings(source: str) -> Iterator[Finding]:
    """Yields the findings of a page, each as line, kind and text. Code has none."""
    source = re.sub(r"(?ms)^ *```.*?^ *```$", _blanked, source)
    lines = source.split("\n")
    paragraph: list[str] = []
    first = 1
    for number, line in enumerate([*lines, ""], 1):
        is_row = line.lstrip().startswith("|")
        item = re.match(r"\s*([-*+]|\d+\.|>|#+)\s+", line)
        if not line.strip() or is_row or item:
            for sentence in bad_openings(" ".join(paragraph)):
                yield first, "sentences", sentence
            paragraph = []
        is_header = number < len(lines) and re.match(r"\s*\|[-:| ]+\|\s*$", lines[number])
        if is_row and not is_header:
            for cell in re.split(r"(?<!\\)\|", line.strip().strip("|")):
                for sentence in bad_openings(cell):
                    yield number, "sentences", sentence
        elif line.strip() and not is_row:
            if not paragraph:
                first = number
            paragraph.append(line[item.end() :] if item else line)


def findings_of_room(root: pathlib.Path, room: str) -> Iterator[tuple[str, int, str, str]]:
    """Yields the findings of a room, each as path, line, kind and text."""
    places, suffixes = ROOMS[room]
    for place in places.split():
        start = root / place
        files = [start] if start.is_file() else sorted(start.rglob("*"))
        for path in files:
            name = str(path.relative_to(root))
            if path.suffix not in suffixes.split() or name.startswith(SKIPPED_PAGES):
                continue
            source = path.read_text()
            if path.suffix == ".py":
                findings = python_findings(source)
            elif path.suffix == ".md":
                findings = page_findings(source)
            else:
                findings = cpp_findings(path, source)
            for line, kind, text in sorted(findings):
                yield name, line, kind, text


KINDS = ("sentences", "comments", "names")


def _main(root: pathlib.Path, listed_room: str | None) -> int:
    if listed_room:
        for name, line, kind, text in findings_of_room(root, listed_room):
            print(f"{name}:{line}: {kind}: {text}")
        return 0
    counts_file = root / "tests/structure/words.txt"
    limits: dict[tuple[str, str], int] = {}
    if counts_file.exists():
        for entry in counts_file.read_text().splitlines():
            if entry and not entry.startswith("#"):
                room, *numbers = entry.split()
                limits.update({(room, kind): int(n) for kind, n in zip(KINDS, numbers)})
    status = 0
    for room in ROOMS:
        counts = Counter(kind for _, _, kind, _ in findings_of_room(root, room))
        for kind in KINDS:
            limit = limits.pop((room, kind), 0)
            if counts[kind] > limit:
                print(
                    f"{room}: {counts[kind]} {kind}, more than {limit}: run "
                    f"check_words.py ROOT {room} to see them, and docs/style.md for why"
                )
                status = 1
            elif counts[kind] < limit:
                print(
                    f"{room}: {counts[kind]} {kind}: lower the {limit} in "
                    "tests/structure/words.txt"
                )
                status = 1
    for room in sorted({room for room, _ in limits}):
        print(f"tests/structure/words.txt: there is no room {room}")
        status = 1
    return status


if __name__ == "__main__":
    sys.exit(_main(pathlib.Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None))
