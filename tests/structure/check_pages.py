#!/usr/bin/env python3
"""check_pages.py ROOT: every link to a heading of a Markdown page leads to one, as GitHub names
them, and pages that a newcomer reads are not longer than LIMITS says."""

import pathlib
import re
import sys
from collections import Counter
from collections.abc import Iterator

# The most lines of a page, by the pattern of its path.
LIMITS = {
    "README.md": 100,
    "adapters/torch/README.md": 60,
    "docs/python/README.md": 60,
    "docs/python/*.md": 150,
}


def prose(page: pathlib.Path) -> str:
    """Returns the text of a page without its blocks of code."""
    return re.sub(r"(?ms)^ *```.*?^ *```$", "", page.read_text())


def anchors(page: pathlib.Path) -> set[str]:
    """Returns the names of a page's headings, as GitHub makes them."""
    counts: Counter[str] = Counter()
    names: set[str] = set()
    for heading in re.findall(r"(?m)^#{1,6} +(.*?)\s*$", prose(page)):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        names.add(f"{name}-{counts[name]}" if counts[name] else name)
        counts[name] += 1
    return names


def limit_of(name: pathlib.Path) -> int | None:
    """Returns the most lines that a page may have, or None."""
    for pattern, limit in LIMITS.items():
        if name.match(pattern) and len(name.parts) == len(pathlib.Path(pattern).parts):
            return limit
    return None


def violations(root: pathlib.Path) -> Iterator[str]:
    """Yields a line for each link that leads nowhere and each page that is too long."""
    for page in sorted(root.rglob("*.md")):
        name = page.relative_to(root)
        if name.parts[0] == "build":
            continue
        for link in re.findall(r"\]\(([^)\s]*#[^)\s]*)\)", prose(page)):
            path, _, anchor = link.partition("#")
            target = page.parent / path if path else page
            if path.startswith("http") or target.suffix != ".md" or not target.exists():
                continue
            if anchor not in anchors(target):
                yield f"{name}: the link to {link} leads to no heading"
        limit = limit_of(name)
        lines = page.read_text().count("\n")
        if limit is not None and lines > limit:
            yield f"{name}: {lines} lines, more than {limit}"


def main(root: pathlib.Path) -> int:
    lines = list(violations(root))
    for line in lines:
        print(line)
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])))
