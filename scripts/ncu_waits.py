#!/usr/bin/env python3
"""Where a kernel's warps are, by stretches of machine code that run equally often: a share of all samples, what they
wait for, and a share of all instructions.

  ncu --set full --clock-control none -k 'regex:kquant_f16_mma_kernel' -s 20 -c 1 -o report build/cuda/bench/bench_gpu_dense --rows 16
  ncu -i report.ncu-rep --page source --csv > report.csv
  scripts/ncu_waits.py report.csv [--least 0.7] [--kernel PART_OF_A_NAME]

A stretch that few warps reach and where many samples are is a wait; samples at the last barrier are warps without work.
"""
import argparse
import csv
import signal
import sys


def kernels(path):
    """(name, columns, rows of cells) of each kernel of the file."""
    found = []
    with open(path, newline="") as file:
        for cells in csv.reader(file):
            if cells[:1] == ["Kernel Name"]:
                found.append((cells[1], {}, []))
            elif cells[:1] == ["Address"] and found:
                found[-1][1].update({name: i for i, name in enumerate(cells)})
            elif cells and found and found[-1][1]:
                found[-1][2].append(cells)
    return found


def stretches(columns, rows):
    """[first row, last row, executions, samples, instructions, {wait: samples}]"""
    waits = [name for name in columns if name.startswith("stall_") and "Not Issued" not in name]
    out = []
    for i, cells in enumerate(rows):
        runs, samples = int(cells[columns["Instructions Executed"]]), int(cells[columns["# Samples"]])
        if not out or abs(out[-1][2] - runs) > 0.02 * max(runs, 1):
            out.append([i, i, runs, 0, 0, {}])
        stretch = out[-1]
        stretch[1] = i
        stretch[3] += samples
        stretch[4] += runs
        for name in waits:
            if count := int(cells[columns[name]]):
                stretch[5][name.removeprefix("stall_")] = stretch[5].get(name.removeprefix("stall_"), 0) + count
    return out


def main():
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("csv")
    parser.add_argument("--least", type=float, default=0.7, help="leave out stretches with less than so many %% of samples")
    parser.add_argument("--kernel", default="", help="only kernels with this in their names")
    options = parser.parse_args()
    found = [k for k in kernels(options.csv) if options.kernel in k[0]]
    if not found:
        sys.exit(f"{options.csv}: no kernel with '{options.kernel}' in its name; expected the output of ncu --page source --csv")
    for name, columns, rows in found:
        all_of = stretches(columns, rows)
        samples, instructions = sum(s[3] for s in all_of), sum(s[4] for s in all_of)
        print(f"{name}\n{samples} samples, {instructions} instructions")
        for first, last, runs, here, executed, waits in all_of:
            if samples == 0 or 100 * here < options.least * samples:
                continue
            why = " ".join(f"{wait} {100 * count / samples:.1f}" for wait, count in sorted(waits.items(), key=lambda w: -w[1])[:5]
                           if 1000 * count >= 2 * samples)
            print(f"{first:6d} .. {last:5d}  run {runs:8d} times  samples {100 * here / samples:5.1f} %"
                  f"  instructions {100 * executed / instructions:5.1f} %  {why}  | {rows[first][columns['Source']].strip()[:40]}")


if __name__ == "__main__":
    main()
