#!/usr/bin/env python3
"""Fails if a source file includes an upper layer, or an upper part of its layer, or if CUDA leaks out of its folders.
The table of layers is DESIGN.md's.

usage: check_layers.py [ROOT]        check_layers.py --self-test
"""
import pathlib
import re
import sys
import tempfile

ALLOWED = {
    "base": set(),
    "tensor": {"base"},
    "quant": {"base", "tensor"},
    "ops": {"base", "tensor", "quant"},
    "io": {"base", "tensor", "quant"},
    "text": {"base"},
    "cache": {"base", "tensor", "quant", "ops"},
    "models": {"base", "tensor", "quant", "ops", "cache", "io"},
    "engine": {"base", "tensor", "quant", "ops", "cache", "io", "models", "text"},
    "server": {"base", "text"},
    "apps": {"base", "tensor", "quant", "ops", "io", "text", "cache", "models", "engine", "server"},
}
# Folders inside a folder, lowest first: each may include those before it. What lies in the folder itself are its faces,
# and basics that include no part: any part may include them.
PARTS = {
    "text": ["generated", "tokenizer", "grammar", "structured", "json", "jinja", "chat", "dialects"],
    "ops/cuda": ["device", "kv", "linear", "attention", "gated_delta", "moe", "sampling", "scoring", "speculation"],
    "ops/cuda/linear": ["shared", "gemv", "skinny", "gemm"],
    "engine": ["sampling", "prompt", "compression", "execution", "scheduler", "speculation", "loop", "session"],
    "server": ["openapi", "http", "traces", "page", "api"],
    "apps": ["support", "events", "convert", "synth", "flags", "chat", "ab", "niah", "bench", "commands"],
}
# Parts that include nothing of each other: back ends (contracts, with the choice of a back end in their *.cpp, are what
# else lies in ops), and the APIs of a server.
APART = {"ops": ["reference", "cpu", "cuda"], "server/api": ["openai", "anthropic", "responses", "ollama"]}
SERVER_MAY = {"engine/engine.h", "engine/request.h"}
CUDA_FOLDERS = {"tensor", "quant", "ops"}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^">]+)[">]')


def upward(place: str, target: str) -> bool:
    """Whether a file of one part of a folder includes a later part, or one back end another."""
    def part(path: str, folder: str, parts: list[str]) -> int | None:
        rest = path.removeprefix(folder + "/").split("/") if path.startswith(folder + "/") else []
        return parts.index(rest[0]) if len(rest) > 1 and rest[0] in parts else None

    for table, apart in ((PARTS, False), (APART, True)):
        for folder, parts in table.items():
            here, there = part(place, folder, parts), part(target, folder, parts)
            if here is not None and there is not None and (there > here or (apart and there != here)):
                return True
    return False


def check(root: pathlib.Path) -> list[str]:
    problems = []
    for path in sorted((root / "src").rglob("*")):
        if path.suffix not in {".h", ".cpp", ".cu", ".cuh"}:
            continue
        inside, where = path.relative_to(root / "src"), path.relative_to(root)
        layer, folder = inside.parts[0], inside.parent.as_posix()
        above, _, part = folder.rpartition("/")
        if above in PARTS and part not in PARTS[above]:
            problems.append(f"{where}: folder '{part}' is not in the table of the parts of {above}")
        if layer not in ALLOWED:
            problems.append(f"{where}: folder '{layer}' is not a layer of the table")
            continue
        if path.suffix in {".cu", ".cuh"} and layer not in CUDA_FOLDERS:
            problems.append(f"{where}: CUDA sources belong in {', '.join(sorted(CUDA_FOLDERS))}")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            match = INCLUDE.match(line)
            if match:
                bracket, target = match.groups()
                if re.match(r"cuda|cublas|cub/", target) and layer not in CUDA_FOLDERS:
                    problems.append(f"{where}:{number}: includes {target} outside the CUDA folders")
                first = target.split("/")[0]
                if bracket == '"' and first in ALLOWED and first != layer and first not in ALLOWED[layer]:
                    if not (layer == "server" and target in SERVER_MAY):
                        problems.append(f"{where}:{number}: {layer} must not include {target}")
                if bracket == '"' and upward(inside.as_posix(), target):
                    problems.append(f"{where}:{number}: {folder} must not include {target}")
            elif re.match(r"^\s*#\s*if.*CUDA", line) and layer not in CUDA_FOLDERS:
                problems.append(f"{where}:{number}: CUDA conditional outside the CUDA folders")
            elif re.search(r"\bgetenv\s*\(", line) and where.name != "environment.cpp":
                problems.append(f"{where}:{number}: src/ reads no environment variables")
            elif re.search(r"\bstd::regex\b", line):
                problems.append(f"{where}:{number}: std::regex overflows the stack on long input")
    return problems


def self_test() -> None:
    """The check must be able to fail: plants one violation of each kind."""
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        planted = {
            "src/base/a.h": '#include "ops/norm.h"\n',
            "src/models/b.cpp": "#include <cuda_runtime.h>\n",
            "src/engine/c.cpp": "#ifdef RIPTIDE_CUDA\n#endif\n",
            "src/io/d.cpp": 'auto x = getenv("X");\n',
            "src/stray/e.cpp": "\n",
            "src/text/f.cpp": "std::regex r;\n",
            "src/models/g.cu": "\n",
            "src/text/grammar/i.h": '#include "text/json/schema.h"\n',
            "src/engine/misc/j.h": "\n",
            "src/ops/cpu/k.h": '#include "ops/cuda/backend.h"\n',
            "src/ops/cuda/l.cu": '#include "ops/reference/attention.h"\n',
            "src/ops/cuda/linear/shared/m.cuh": '#include "ops/cuda/linear/gemv/n.cuh"\n',
            "src/ops/cuda/linear/other/o.cuh": "\n",
            "src/server/h.cpp": '#include "engine/session/session.h"\n',
        }
        for name, text in planted.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        (root / "src/server/allowed.cpp").write_text('#include "engine/engine.h"\n#include "text/chat/chat.h"\n')
        (root / "src/text/json").mkdir()
        (root / "src/text/json/allowed.h").write_text('#include "text/grammar/i.h"\n#include "text/utf8.h"\n')
        (root / "src/ops/allowed.cpp").write_text('#include "ops/cuda/backend.h"\n#include "ops/cpu/k.h"\n')
        problems = check(root)
        assert not any("allowed.cpp" in problem for problem in problems), problems
        for name in planted:
            assert any(problem.startswith(name) for problem in problems), f"{name} was not reported: {problems}"


if __name__ == "__main__":
    if sys.argv[1:] == ["--self-test"]:
        self_test()
        sys.exit(0)
    found = check(pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent.parent)
    print("\n".join(found) if found else "layers: no upward include")
    sys.exit(1 if found else 0)
