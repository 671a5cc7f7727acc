"""Permissively licensed Python source found on the machine that trains: which files, and what is taken from them.

Taken are files of the standard library and of installed packages whose metadata names only MIT, BSD, Apache, PSF or
similarly permissive licences. Vendored copies are left out, since their licence may differ. Exact duplicates, generated
tables and most tests are dropped. One file in 250, by a hash of its path, is held out for perplexity.
"""
import ast
import collections
import hashlib
import importlib.metadata
import os
import pathlib
import re
import sysconfig
import zlib

ALLOWED = re.compile(r"MIT|BSD|Apache|PSF|Python Software Foundation|0BSD|ISC|Zlib|CC0|HPND", re.I)
REFUSED = re.compile(r"GPL|MPL|Mozilla|proprietary|EULA|NVIDIA|Other", re.I)
SKIP_PARTS = {"_vendor", "vendored", "_vendored", "third_party", "externals", "extern"}
MAX_FILE = 200_000


def licence(metadata):
    """The shortest statement of a licence that the package metadata gives."""
    classifiers = [c.split("::")[-1].strip() for c in metadata.get_all("Classifier") or [] if c.startswith("License")]
    expression = metadata.get("License-Expression")
    return expression or "; ".join(classifiers) or (metadata.get("License") or "").strip()[:40]


def packages():
    """(name, version, licence, files) of every installed package that may be used."""
    out = []
    for dist in importlib.metadata.distributions():
        said = licence(dist.metadata)
        if not ALLOWED.search(said) or REFUSED.search(said):
            continue
        files = [str(dist.locate_file(f)) for f in dist.files or [] if str(f).endswith(".py")]
        if files:
            out.append((dist.metadata["Name"], dist.version, said, files))
    root = pathlib.Path(sysconfig.get_paths()["stdlib"])
    files = [str(p) for p in root.rglob("*.py") if not {"site-packages", "dist-packages"} & set(p.parts)]
    out.append(("python", sysconfig.get_python_version(), "PSF-2.0", files))
    return sorted(out)


def wanted(path):
    parts = set(pathlib.Path(path).parts)
    if parts & SKIP_PARTS:
        return False
    share = zlib.crc32(path.encode()) % 100
    if "tests" in parts or "test" in parts:
        return share < 30
    if "transformers" in parts and "models" in parts:      # many near copies of the same files
        return share < 45
    return True


def file_list():
    """(sorted usable paths, report lines for the model card)."""
    paths, report = set(), []
    for name, version, said, files in packages():
        used = [f for f in files if wanted(f)]
        paths.update(os.path.realpath(f) for f in used)
        report.append(f"{name} {version} ({said}): {len(used)} files")
    return sorted(paths), report


def read(path):
    """The text of a file, or None if it is not worth training on."""
    try:
        text = pathlib.Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    if not 200 < len(text) <= MAX_FILE:
        return None
    lines = text.split("\n")
    letters = sum(map(str.isalpha, text[:20000])) / min(len(text), 20000)
    if len(text) / len(lines) > 80 or max(map(len, lines)) > 1000 or letters < 0.35:
        return None
    return text.replace("\r\n", "\n").replace("\t", "    ")


def digest(text):
    return hashlib.md5(re.sub(r"\s+", " ", text).encode()).digest()


def is_held_out(path):
    return zlib.crc32(path.encode()) % 250 == 7


def functions(text):
    """(name, first docstring sentence, source with that sentence as docstring) of short module-level functions."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    lines, out = text.split("\n"), []
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef) or node.decorator_list or len(node.body) < 2:
            continue
        doc = ast.get_docstring(node)
        if not doc or not 3 <= node.end_lineno - node.lineno <= 60:
            continue
        sentence = re.split(r"(?<=[.!?])\s|\n\n", doc.strip())[0].replace("\n", " ").strip()
        sentence = re.sub(r"\s+", " ", sentence)
        head = lines[node.lineno - 1:node.body[0].lineno - 1]
        rest = lines[node.body[0].end_lineno:node.end_lineno]
        while rest and not rest[0].strip():
            rest.pop(0)
        body = [line for line in rest if line.strip()]
        if not body or body[0][:4].strip() or body[0][4:5] == " " or any(line[:4].strip() for line in body):
            continue                                           # not indented by four, or a text that is not
        if not 15 <= len(sentence) <= 140 or '"""' in sentence or not head or not 1 <= len(rest) <= 28:
            continue
        source = "\n".join(head + [f'    """{sentence}"""'] + rest)
        if len(source) < 1200 and sentence.isascii() and "<" not in sentence and sentence[-1] != "\"":
            out.append((node.name, sentence, source))
    return out


def word_counts(text):
    return collections.Counter(re.findall(r"(?<![A-Za-z])[a-z]{4,10}(?![A-Za-z])", text))
