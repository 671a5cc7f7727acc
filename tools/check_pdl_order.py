#!/usr/bin/env python3
"""Fails if a kernel may read what an earlier kernel wrote before it has waited for it.

usage: check_pdl_order.py BUILD_DIR        check_pdl_order.py --self-test

Kernels are launched so that they may start while the one before them runs (tensor/launch.cuh); griddepcontrol.wait (ACQBULK
in machine code) is where they wait. ptxas moves loads marked read-only (ld.global.nc, LDG with .CONSTANT) across it, other
loads not. Checked for every kernel, in its PTX, and in its machine code too where cuobjdump is installed:
  - it waits (names in NO_WAIT excepted);
  - no read-only load at all, but for the table inside sincosf(): none may be used on activations, ids or K/V;
  - before the wait only loads that say what they are: of weights (past L1, as load_weights() and load_weight16/32/64() make
    them; asynchronous copies to shared memory), of results older than the kernel before (.cg: see experts_any_gate_up_kernel), or of words
    that are asked for until they are there (.relaxed: route_row1.cuh);
  - no store, atomic or reduction to global memory before the wait (names in EARLY_WRITES excepted).
"""
import pathlib
import re
import shutil
import subprocess
import sys

# Kernels launched without programmatic dependence.
NO_WAIT = ("probe_kernel", "read_kernel", "repack", "fp8_copy")
# Kernels that write before they wait, and only what no earlier kernel still reads: the recurrent state that a step which
# follows another commits first (decode_row.cu, catch_up; what the step before did has ended when embed lets others start).
EARLY_WRITES = ("delta_row_kernel",)

PTX = {
    "start": re.compile(r"^\s*(?:\.visible|\.weak)?\s*\.entry\s+(\w+)"),
    "instruction": re.compile(r"^\s*((?:@!?%p\d+\s+)?[a-z][\w.:]*\b[^;]*);"),
    "wait": "griddepcontrol.wait",
    "readonly": re.compile(r"\bld\.global(\.\w+)*\.nc\b|\bld\.global\.nc"),
    "read": re.compile(r"\b(ld\.(?!param|shared|local|const)|cp\.async(?!\.(commit|wait|mbarrier)))"),
    "weights": re.compile(r"ld\.global\.L1::no_allocate|ld\.global\.cg|ld\.relaxed\.gpu|cp\.async\.(cg|bulk)"),
    "write": re.compile(r"\b(st\.(?!shared|local|param)|atom\.(?!shared)|(?<!bar\.)red\.(?!shared|async))"),
    "table": re.compile(r"nc\.u32"),
}
SASS = {
    "start": re.compile(r"^\s*Function : (\S+)"),
    "instruction": re.compile(r"/\*[0-9a-f]{4,}\*/\s+(.*?);"),
    "wait": "ACQBULK",
    "readonly": re.compile(r"\bLDG\S*\.CONSTANT"),
    "read": re.compile(r"\b(LDG(?!DEPBAR)|LD\.|LDGSTS|UBLKCP|UTMALDG)"),
    "weights": re.compile(r"\bLDG\.E\.(NA|U16\.NA|64\.NA|128|((64|U16|U8)\.)?STRONG\.GPU)|LDGSTS|UTMALDG|UBLKCP"),
    "write": re.compile(r"\b(STG|ATOMG|(?<!BAR\.)RED|REDG)\b"),
    "table": re.compile(r"\bLDG\.E\.CONSTANT"),
}


def check_kernel(name: str, body: list[str], form: dict, tables: set[str]) -> list[str]:
    # sincosf() reads its own table of 2/pi, a constant, with read-only loads of one word. PTX says whose kernels do.
    if any("__cudart_i2opi_f" in line for line in body):
        tables.add(name)
    table = form["table"] if name in tables else None
    problems = [f"{name}: read-only load may move across the wait: {line}" for line in body
                if form["readonly"].search(line) and not (table and table.search(line))]
    waits = [i for i, line in enumerate(body) if form["wait"] in line]
    if not waits:
        return [] if any(skip in name for skip in NO_WAIT) else problems + [f"{name}: never waits"]
    for line in body[:waits[0]]:
        if form["write"].search(line):
            if not any(early in name for early in EARLY_WRITES):
                problems.append(f"{name}: global write before the wait: {line}")
        elif form["read"].search(line) and not form["weights"].search(line) and not (table and table.search(line)):
            problems.append(f"{name}: load before the wait is not a weight load: {line}")
    return problems


def check(text: str, form: dict, tables: set[str] | None = None) -> tuple[list[str], int]:
    """tables: names of kernels with sincosf(), found in PTX, for machine code."""
    tables = set() if tables is None else tables
    kernels, name, body, problems = 0, None, [], []
    for line in text.splitlines() + ["end"]:
        found = form["start"].match(line)
        if found or line == "end":
            if name is not None:
                kernels += 1
                problems += check_kernel(name, body, form, tables)
            name, body = found and found.group(1), []
        elif instruction := form["instruction"].search(line):
            body.append(instruction.group(1))
    return problems, kernels


PTX_SAMPLE = """
.visible .entry good(
\tld.global.L1::no_allocate.v4.u32 {%r1,%r2,%r3,%r4}, [%rd1];
\tgriddepcontrol.wait;
\tld.global.f32 %f1, [%rd2];
\tst.global.f32 [%rd2], %f1;
"""
SASS_SAMPLE = """
        Function : good
        /*0000*/ LDG.E.NA.128 R4, [R2] ;
        /*0010*/ ACQBULK ;
        /*0020*/ LDG.E R8, [R6] ;
        /*0030*/ STG.E [R6], R8 ;
"""


def self_test() -> None:
    """The check must be able to fail."""
    assert check(PTX_SAMPLE, PTX) == ([], 1) and check(SASS_SAMPLE, SASS) == ([], 1)
    counting = PTX_SAMPLE.replace("griddepcontrol.wait", "bar.red.popc.u32 %r5, 0, %p1;\n\tgriddepcontrol.wait")
    assert check(counting, PTX) == ([], 1) and check(counting.replace("bar.red.popc", "red.global.add"), PTX)[0]
    wait, early = "griddepcontrol.wait", "st.global.f32 [%rd3], %f2"
    for line, name in [(early, "delta_row_kernel")]:
        sample = PTX_SAMPLE.replace(wait, f"{line};\n\t{wait}")
        assert check(sample, PTX)[0] and check(sample.replace("good", name), PTX) == ([], 1), name
        assert check(sample.replace("good", name).replace(wait, f"ld.global.f32 %f3, [%rd4];\n\t{wait}"), PTX)[0], name
    for old, new in [("ld.global.f32 %f1", "ld.global.nc.f32 %f1"), ("ld.global.L1::no_allocate.v4.u32", "ld.global.v4.u32"),
                     ("ld.global.L1::no_allocate.v4.u32 {%r1,%r2,%r3,%r4}, [%rd1]", "st.global.f32 [%rd1], %f1"),
                     ("griddepcontrol.wait", "bar.sync 0")]:
        assert check(PTX_SAMPLE.replace(old, new), PTX)[0], f"{old} -> {new} was not reported"
    for old, new in [("LDG.E R8", "LDG.E.CONSTANT R8"), ("LDG.E.NA.128 R4", "LDG.E R4"), ("ACQBULK", "NOP"),
                     ("LDG.E.NA.128 R4, [R2]", "STG.E [R2], R4")]:
        assert check(SASS_SAMPLE.replace(old, new), SASS)[0], f"{old} -> {new} was not reported"
    constant = SASS_SAMPLE.replace("LDG.E R8", "LDG.E.CONSTANT R8")
    assert check(constant, SASS, {"good"}) == ([], 1) and check(constant, SASS, {"other"})[0]


def main() -> int:
    self_test()
    if sys.argv[1:] == ["--self-test"]:
        return 0
    build = pathlib.Path(sys.argv[1])
    problems, kernels, machine, tables = [], 0, 0, set()
    for path in sorted((build / "ptx").glob("*.ptx")):
        found, count = check(path.read_text(), PTX, tables)
        problems += [f"{path.name}: {problem}" for problem in found]
        kernels += count
    if cuobjdump := shutil.which("cuobjdump"):
        for archive in sorted(build.glob("libriptide_*.a")):
            text = subprocess.run([cuobjdump, "-sass", str(archive)], capture_output=True, text=True).stdout
            found, count = check(text, SASS, tables)
            problems += found
            machine += count
    print("\n".join(problems[:60]))
    print(f"{kernels} kernels in PTX, {machine} in machine code, {len(problems)} problems")
    return 1 if problems or kernels == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
