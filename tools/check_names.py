#!/usr/bin/env python3
"""Fails if two sources of a layer give a name of their own (in an anonymous namespace) to different things, or if a
name bears a word that means something here alone (PRIVATE).

The sources of a layer (a folder of src, with all folders inside) are compiled several at a time (unity groups, cmake/layers.cmake), so such a name would be
defined twice, or, worse, a call would find the other file's overload. For the same reason a source's own name must not
be one that a header of the layer declares: another source of the group may have included it. Of several names in one
declaration only the first is seen; the compiler sees the others.

usage: check_names.py [ROOT]        check_names.py --self-test
"""
import collections
import pathlib
import re
import sys
import tempfile

OPENS = re.compile(r"^(inline )?namespace( [\w:]+)? \{")
TYPE = re.compile(r"^(?:template <.*> )?(?:struct|class|enum class|enum|union) (?:alignas\(\w+\) )?(\w+)")
ALIAS = re.compile(r"^(?:using (\w+) =|namespace (\w+) =|#define (\w+))")
FUNCTION = re.compile(r"^(?!return|if|for|while|switch|else|using|typedef|TEST|INSTANTIATE|static_assert|BENCHMARK)"
                      r"[A-Za-z_][\w:<>,&*\s\[\]\"]*?[\s&*](\w+)\(")
VARIABLE = re.compile(r"^(?:(?:inline|static|constinit|constexpr|const|thread_local|extern) )*[A-Za-z_][\w:<>,&*\s]*[\s&*>](\w+)(?:\[.*?\])*(?: =|\{|;)")

# Of files and symbols. Their meanings: one row staged in shared memory, Q8_0, K-quants in half precision, drafts.
PRIVATE = re.compile(r"\b(?:\w*_)?(?:lean|guess|guesses|guessed|eight)_\w+|\bk?(?:Lean|Guess|Guesses|Eight|Half|Many)[A-Z]\w*"
                     r"|\bdecode_(?:lean|few|half|dense)\w*|\b(?:half|many|few|dense)_(?:kernel|multiply|gate_up|weight)\b")
PRIVATE_FOLDERS = ("src/ops/cuda", "src/engine", "src/models")


def private_names(root: pathlib.Path) -> list[str]:
    problems = []
    for folder in PRIVATE_FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix not in {".h", ".cpp", ".cu", ".cuh"}:
                continue
            where = path.relative_to(root)
            if match := PRIVATE.search(path.stem):
                problems.append(f"{where}: the file's name bears {match[0]}")
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                if (match := PRIVATE.search(line)) and not match[0].startswith("kMany"):
                    problems.append(f"{where}:{number}: {match[0]} bears a word of no field")
    return problems


def names_in(text: str, own: bool) -> dict[tuple[str, str], tuple[int, str]]:
    """(namespace, name) at the top level of anonymous namespaces (`own`) or of others, with line number and line. Relies on clang-format: such declarations begin
    in the first column, and a namespace ends with `}  // namespace`."""
    names, spaces = {}, []
    template = ""
    in_raw = False
    for number, line in enumerate(text.splitlines(), 1):
        if in_raw:
            in_raw = ')"' not in line and ')json"' not in line
            continue
        if 'R"' in line and ')"' not in line.split('R"', 1)[1]:
            in_raw = True
        opened = OPENS.match(line)
        if opened:
            if "}" not in line:
                spaces.append(opened.group(2) or "")
            continue
        if line.startswith("}  // namespace") or line.startswith("}  // anonymous"):
            if spaces:
                spaces.pop()
            continue
        if ("" in spaces) != own and not (own and line.startswith("#define")):
            continue
        if not line or line[0] in " }/":
            continue
        if line.startswith("template <"):
            line = re.sub(r"^template <[^()]*?>\s*(?=[a-zA-Z]|$)", "", line)
            if not line:
                continue
        for pattern in (ALIAS, TYPE, FUNCTION, VARIABLE):
            match = pattern.match(line)
            if match:
                name = next(group for group in match.groups() if group)
                if line.startswith("#define") and f"#undef {name}\n" in text:
                    break
                where = "".join(spaces)
                names.setdefault((where, name), (number, line))
                break
    return names


def check(root: pathlib.Path) -> list[str]:
    problems = []
    for top in ("src", "tests", "bench"):
        folders, declared = collections.defaultdict(list), collections.defaultdict(dict)
        def layer(path: pathlib.Path) -> str:
            return path.relative_to(root / top).parts[0]

        for path in sorted((root / top).rglob("*.h")):
            for name, (number, line) in names_in(path.read_text(encoding="utf-8"), own=False).items():
                declared[layer(path)][name] = (f"{path.relative_to(root)}:{number}", line)
        for path in sorted((root / top).rglob("*.cpp")):
            # Compiled alone: for another instruction set, or one binary each.
            if re.search(r"(^|_)avx(2|512)\.cpp$|^fuzz_|/main\.cpp$", path.name) or top == "bench":
                continue
            folders[layer(path)].append(path)
        for folder, paths in folders.items():
            seen = collections.defaultdict(list)
            for path in paths:
                for name, (number, line) in names_in(path.read_text(encoding="utf-8"), own=True).items():
                    seen[name].append((f"{path.relative_to(root)}:{number}", line))
            for name in seen.keys() & declared[folder].keys():
                seen[name].append(declared[folder][name])
            for (_, name), places in sorted(seen.items()):
                where = [place for place, _ in places]
                same_alias = len({line for _, line in places}) == 1 and ALIAS.match(places[0][1])  # may be said twice
                if len(where) > 1 and not same_alias:
                    problems.append(f"{name}: {', '.join(where)}")
    return problems + private_names(root)


def self_test() -> None:
    """The check must be able to fail: plants one clash of each kind, and names that do not clash."""
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        (root / "src/io").mkdir(parents=True)
        (root / "tests/io").mkdir(parents=True)
        (root / "src/text").mkdir(parents=True)
        body = ("namespace riptide {\nnamespace {\nstruct Row {\n    int member;\n};\nconstexpr int kMost = 3;\n"
                "template <class T>\nvoid show(const T& row) {\n    call(row);\n}\nusing Clock = int%s;\nusing Same = int;\n"
                "std::vector<int> values(int n) { return {n}; }\n}  // namespace\nint %s() { return 1; }\n}  // namespace riptide\n")
        (root / "src/io/a.cpp").write_text(body % ("", "a"))
        (root / "src/io/b.cpp").write_text(body % ("8_t", "b"))
        (root / "src/text/c.cpp").write_text(body % ("", "c"))
        (root / "tests/io/d_avx2.cpp").write_text(body % ("", "d"))
        (root / "src/text/c.h").write_text("namespace riptide {\nvoid show(int n);\nvoid hide(int n);\n}  // namespace riptide\n")
        (root / "src/engine").mkdir()
        (root / "src/engine/decode_lean.cpp").write_text("int check_guesses_here; // few rows, half of them, boolean\n")
        assert len(private_names(root)) == 2, private_names(root)
        (root / "src/engine/decode_lean.cpp").unlink()
        found = {problem.split(":")[0] for problem in check(root)}
        assert found == {"Row", "kMost", "show", "Clock", "values"}, found
        assert any("src/text/c.h:2" in problem for problem in check(root))


if __name__ == "__main__":
    if sys.argv[1:] == ["--self-test"]:
        self_test()
        sys.exit(0)
    found = check(pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent.parent)
    print("\n".join(found) if found else "names: one meaning in each layer")
    sys.exit(1 if found else 0)
