#!/usr/bin/env python3
"""Fails if a page (*.md) or a comment names a file that does not exist, or if a page is too long or has words of its own for what the
field has a word for.

usage: check_docs.py [ROOT]        check_docs.py --self-test
"""
import functools
import pathlib
import re
import sys
import tempfile

MOST = {"DESIGN.md": ("words", 2500), "README.md": ("lines", 120)}
LINE = 160
# Not: speculative decoding, drafts, structured output, batch invariance, asynchronous scheduling, pre-body checks.
PRIVATE = re.compile(r"\bguess(?:es|ed|ing)?\b|\banswers of a given form\b|\brow-exact|\bsteps ahead of the host\b", re.I)
HISTORY = {"CHANGELOG.md"}  # says what names were then
CODE = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)]*))?\)")
FILE = re.compile(r"^[\w./-]+\.(?:h|cpp|cu|cuh|inl|py|sh|md|svg)$")
# Files that programs make, and those that recipes tell to add (x).
SOURCE = re.compile(r"(?<![\w./*-])(?:[\w-]+/|\.\./)*\w+\.(?:h|cpp|cu|cuh|inl)\b")
OTHERS = {"llama.cpp", "ik_llama.cpp", "commands/NAME.cpp"}
ELSEWHERE = re.compile(r"^(?:build/|/|~|\.\./)|^main\.py$|(?:^|/)x(?:_test|_ref)?\.\w+$")


def unfenced(page: pathlib.Path) -> list[tuple[int, str]]:
    """Its lines, numbered, without code."""
    lines, fenced = [], False
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        fenced ^= line.lstrip().startswith("```")
        if not fenced:
            lines.append((number, line))
    return lines


@functools.cache
def anchors(page: pathlib.Path) -> set[str]:
    """What GitHub calls its headings."""
    titles = [line.lstrip("#").strip().lower() for _, line in unfenced(page) if re.match(r"#+ ", line)]
    names = [re.sub(r"[^\w\- ]", "", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title)).replace(" ", "-") for title in titles]
    return {name if names[:i].count(name) == 0 else f"{name}-{names[:i].count(name)}" for i, name in enumerate(names)}


def check_comments(root: pathlib.Path) -> list[str]:
    """Sources that comments of sources name, by the end of their path."""
    sources = [path for top in ("src", "tests", "bench") for kind in ("h", "cpp", "cu", "cuh", "inl") for path in (root / top).rglob(f"*.{kind}")]
    ends = {"/".join(path.relative_to(root).parts[i:]) for path in sources for i in range(len(path.relative_to(root).parts))}
    problems = []
    for path in sorted(sources):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            code, _, comment = line.partition("//")
            for name in SOURCE.findall(comment) if '"' not in code else ():
                if name not in OTHERS and re.sub(r"^(\.\./)+", "", name) not in ends:
                    problems.append(f"{path.relative_to(root)}:{number}: {name} is not there")
    return problems


def check(root: pathlib.Path) -> list[str]:
    problems = check_comments(root)
    names = {path.name for top in ("src", "tests", "bench", "tools", "python", "scripts", "docs", "cmake", "contrib", "examples")
             for path in (root / top).rglob("*") if "node_modules" not in path.parts}
    pages = [path for path in root.rglob("*.md") if not {"build", "node_modules", "corpus"} & set(path.relative_to(root).parts)]
    for page in sorted(pages):
        where, text = page.relative_to(root), page.read_text(encoding="utf-8")
        kind, most = MOST.get(str(where), ("", 0))
        size = len(text.split()) if kind == "words" else text.count("\n")
        if most and size > most:
            problems.append(f"{where}: {size} {kind}, at most {most}")
        for number, line in unfenced(page):
            if len(line) > LINE and not line.startswith("|"):
                problems.append(f"{where}:{number}: {len(line)} characters, at most {LINE}")
            private = PRIVATE.search(CODE.sub("", line))
            if private and where.name not in HISTORY:
                problems.append(f"{where}:{number}: '{private.group(0)}': the field has a word for it (DESIGN.md, Words)")
            for target, anchor in LINK.findall(line):
                to = page.parent / target if target else page
                if "://" in target:
                    continue
                if not to.exists():
                    problems.append(f"{where}:{number}: link to {target}, which is not there")
                elif anchor and to.suffix == ".md" and anchor not in anchors(to):
                    problems.append(f"{where}:{number}: link to {target}#{anchor}: the page has no such heading")
            for name in CODE.findall(line):
                if not FILE.match(name) or ELSEWHERE.search(name) or where.name in HISTORY:
                    continue
                places = [root / name, root / "src" / name, page.parent / name]
                if not any(place.exists() for place in places) and not ("/" not in name and name in names):
                    problems.append(f"{where}:{number}: {name} is not there")
    return problems


def self_test() -> None:
    """The check must be able to fail: plants one fault of each kind, and a page without."""
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        (root / "docs").mkdir()
        (root / "src").mkdir()
        planted = {"README.md": "\n" * 121, "docs/a.md": "`ops/gone.cu`\n", "docs/b.md": "x" * 161 + "\n", "docs/c.md": "it guesses\n",
                   "src/a.h": "int x;  // as in b/gone.h\n", "docs/d.md": "[text](gone.md)\n", "docs/e.md": "# A & b\n[text](#a--c)\n", "DESIGN.md": "word " * 2501}
        for name, text in planted.items():
            (root / name).write_text(text)
        (root / "src/good.h").write_text("// See src/a.h, a.h, ../a.h, llama.cpp.\n")
        (root / "docs/good.md").write_text("# A & b\n[a](a.md) [b](#a--b) `docs/a.md` `a_guess`\n```sh\n" + "x" * 200 + "\n```\n")
        problems = check(root)
        assert not any("good." in problem for problem in problems), problems
        for name in planted:
            assert any(problem.startswith(name) for problem in problems), f"{name} was not reported: {problems}"


if __name__ == "__main__":
    if sys.argv[1:] == ["--self-test"]:
        self_test()
        sys.exit(0)
    found = check(pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent.parent)
    print("\n".join(found) if found else "docs: files that exist, lines that fit, words of the field")
    sys.exit(1 if found else 0)
