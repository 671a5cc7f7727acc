#!/usr/bin/env python3
"""Compiles every kernel for every chip that Riptide is for, and says what ptxas made of them. Needs the CUDA toolkit, no GPU;
an hour on two cores, so nightly.

usage: all_chips.py [--chips 75,80,86,89,90a,120] [--jobs N] [FILE...]    FILE: .cu files; left out: all below src

Prints a line for each chip, a row of the table in docs/results/build.md: kernels, the most registers and static shared
memory of one, kernels that spill, and the most bytes. Exits 1 if a file does not compile, or not without warnings.
"""
import argparse
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
FLAGS = ["-std=c++20", "-O3", "--expt-relaxed-constexpr", "-DFMT_USE_CONSTEXPR=1", f"-I{ROOT}/src", f"-I{ROOT}",
         "-Xcompiler=-Wall,-Wextra,-Wno-missing-field-initializers", "-Xptxas=-v"]
KERNEL = re.compile(r"Compiling entry function '\S+' for 'sm_\w+'(.*?)(?=Compiling entry function|\Z)", re.S)


def kernels_of(text):
    """(registers, bytes of static shared memory, bytes spilled) of each kernel that ptxas tells of."""
    for said in KERNEL.findall(text):
        yield tuple(int(found.group(1)) if (found := re.search(pattern, said)) else 0
                    for pattern in (r"Used (\d+) registers", r"(\d+) bytes smem", r"(\d+) bytes spill stores"))


def compiled(nvcc, chip, file, folder):
    out = pathlib.Path(folder) / f"{chip}-{abs(hash(file))}.o"
    command = [nvcc, *FLAGS, "-gencode", f"arch=compute_{chip},code=sm_{chip}", "-c", str(file), "-o", str(out)]
    run = subprocess.run(command, capture_output=True, text=True)
    out.unlink(missing_ok=True)
    said = run.stdout + run.stderr
    wrong = [line for line in said.splitlines() if re.search(r"\b(error|warning)\b", line) and "Remark" not in line]
    if run.returncode != 0 and not wrong:
        wrong = [f"nvcc ends with {run.returncode}"]
    return list(kernels_of(said)), wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chips", default="75,80,86,89,90a,120")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("files", nargs="*", type=pathlib.Path)
    options = parser.parse_args()
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    if not pathlib.Path(nvcc).exists():
        print("no nvcc here: this needs the CUDA toolkit")
        return 77
    files = options.files or sorted(ROOT.glob("src/**/*.cu"))
    failed = False
    print("| chip | kernels | most registers | most static shared, bytes | kernels that spill | most bytes spilled |")
    print("|---|---:|---:|---:|---:|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for chip in options.chips.split(","):
            kernels = []
            for file, (found, wrong) in zip(files, pool.map(lambda one: compiled(nvcc, chip, one, folder), files)):
                kernels += found
                for line in wrong:
                    failed = True
                    print(f"sm_{chip}: {file}: {line}", file=sys.stderr, flush=True)
            most = [max((one[i] for one in kernels), default=0) for i in range(3)]
            spilling = sum(one[2] > 0 for one in kernels)
            print(f"| sm_{chip} | {len(kernels)} | {most[0]} | {most[1]:,} | {spilling} | {most[2]:,} |", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
