#!/usr/bin/env python3
"""Compares the kernels that a GPU really ran with those that the plans say it runs.

usage: check_trace.py PLANNED.json RAN.json...     check_trace.py --self-test

PLANNED: riptide kernels MODEL --chip CHIP --rows ... --json; RAN: riptide bench MODEL --profile --json ... on such a
chip, with --batch (compared with a plan without --together), --verify-rows (with --together) or --prompt. A kernel is in the source
file that defines it. For each op: every file that the plan names must have run a kernel, and no kernel may have run
from a file that another row of the same plan names.
"""
import json
import pathlib
import re
import sys
import tempfile

GLOBAL = re.compile(r"__global__\s+(?:void\s+)?(?:(?:__launch_bounds__|__maxnreg__)\s*\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)\s*)*(?:void\s+)?(\w+)\s*\(")
# Plans of one folder: what is in no plan (sorting, adding up, preparing) may run beside any.
OPS = {"norm_matmul_group": "products", "matmul_add": "products", "swiglu_ffn_add": "products", "moe_add": "experts",
       "gated_attention": "attention", "sigmoid_attention": "attention"}


def kernels_by_file(root: pathlib.Path) -> dict[str, set[str]]:
    """Which files define a kernel of a name."""
    found: dict[str, set[str]] = {}
    for path in sorted(root.rglob("*.cu*")):
        text = re.sub(r"//[^\n]*", "", path.read_text(encoding="utf-8"))
        for name in GLOBAL.findall(text):
            found.setdefault(name, set()).add(path.relative_to(root).as_posix())
    return found


def planned_files(root: pathlib.Path, file: str) -> set[str]:
    """The file of a plan, and the header of the same kernels: experts_float.cu and experts_float_down.cuh."""
    stem = file.rsplit(".", 1)[0]
    return {p.relative_to(root).as_posix() for p in (root / file).parent.glob(pathlib.Path(stem).name + "*.cu*")}


def compare(root: pathlib.Path, planned: dict, ran: list[dict]) -> tuple[int, list[str]]:
    """How many (op, rows) were compared, and what differs."""
    where, problems, compared = kernels_by_file(root), [], 0
    named: dict[str, set[str]] = {}  # files that the plans of a kind of op name, for any rows
    for line in planned["ops"]:
        for run in line["runs"]:
            for kernel in run["kernels"]:
                named.setdefault(OPS.get(line["op"], ""), set()).add(kernel["file"].removeprefix("src/ops/cuda/"))
    for row in ran:
        if (row["kind"] == "verify") != planned["together"] and row["kind"] != "prefill":
            continue
        rows = row["tokens"] if row["kind"] == "prefill" else row["rows"] if row["kind"] == "verify" else row["sequences"]
        for op in row.get("ops", []):
            same = [line for line in planned["ops"] if (line["op"], line["shape"]) == (op["op"], op["shape"])]
            runs = [run for line in same for run in line["runs"] if run["rows"][0] <= rows <= run["rows"][1]]
            if not runs:
                continue
            compared += 1
            files = {file for run in runs for kernel in run["kernels"]
                     for file in [kernel["file"].removeprefix("src/ops/cuda/")] if file}
            seen = set().union(*(where.get(kernel, {"?" + kernel}) for kernel in op["kernels"])) if op["kernels"] else set()
            title = f"{op['op']} {op['shape']}, {rows} rows ({row['what']})"
            for kernel in op["kernels"]:
                if kernel not in where:
                    problems.append(f"{title}: {kernel} is defined nowhere")
            for file in sorted(files):
                if not planned_files(root, file) & seen:
                    problems.append(f"{title}: planned {file}, but ran {', '.join(op['kernels'])}")
            for other in sorted(named.get(OPS.get(op["op"], ""), set()) - files):
                strange = [k for k in op["kernels"] if where.get(k) == {other}]
                if strange and not any(other in planned_files(root, file) for file in files):
                    problems.append(f"{title}: ran {strange[0]} of {other}, which is not planned")
    return compared, problems


def self_test() -> None:
    """The check must be able to fail."""
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        (root / "moe").mkdir()
        (root / "moe/a.cu").write_text("template <int N>\n__global__ void __launch_bounds__(32 * (N + 1), 2) a_kernel(int x) {}\n")
        (root / "moe/b.cuh").write_text("__global__ void b_kernel() {}\n")

        def plan(file: str) -> dict:
            return {"together": False, "ops": [{"op": "moe_add", "shape": "s", "runs": [
                {"rows": [1, 1], "kernels": [{"name": "x", "file": file}]},
                {"rows": [2, 4], "kernels": [{"name": "y", "file": "src/ops/cuda/moe/b.cuh"}]}]}]}

        def row(kernels: list[str]) -> list[dict]:
            return [{"kind": "decode", "sequences": 1, "what": "w", "ops": [{"op": "moe_add", "shape": "s", "kernels": kernels}]}]

        assert compare(root, plan("src/ops/cuda/moe/a.cu"), row(["a_kernel"])) == (1, [])
        assert len(compare(root, plan("src/ops/cuda/moe/a.cu"), row(["b_kernel"]))[1]) == 2
        assert len(compare(root, plan("src/ops/cuda/moe/a.cu"), row(["a_kernel", "b_kernel"]))[1]) == 1
        assert len(compare(root, plan("src/ops/cuda/moe/a.cu"), row(["a_kernel", "c_kernel"]))[1]) == 1


def main() -> None:
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    root = pathlib.Path(__file__).parent.parent / "src/ops/cuda"
    planned = json.loads(pathlib.Path(sys.argv[1]).read_text())
    compared, problems = 0, []
    for path in sys.argv[2:]:
        some, wrong = compare(root, planned, json.loads(pathlib.Path(path).read_text())["rows"])
        compared, problems = compared + some, problems + wrong
    for problem in problems:
        print(problem)
    print(f"{compared} ops compared, {len(problems)} differ")
    sys.exit(1 if problems or compared == 0 else 0)


if __name__ == "__main__":
    main()
