#!/usr/bin/env python3
"""Writes jinja_case_tables.cpp from Python's own case mappings and classes:
python3 src/text/generated/make_case_tables.py > src/text/generated/jinja_case_tables.cpp"""
import sys
import unicodedata

CODES = [c for c in range(sys.maxunicode + 1) if not 0xD800 <= c <= 0xDFFF]


def rows(items):
    line = "   "
    for item in items:
        if len(line) + len(item) + 1 > 118:
            print(line)
            line = "   "
        line += " " + item
    print(line)


def runs(pairs):
    """(code, delta) in order -> [first, last, step, delta]."""
    out = []
    for code, delta in pairs:
        if out and out[-1][3] == delta:
            last = out[-1]
            gap = code - last[1]
            if gap in (1, 2) and (last[0] == last[1] or gap == last[2]):
                last[1], last[2] = code, gap
                continue
        out.append([code, code, 1, delta])
    return out


def ranges(codes):
    out = []
    for code in codes:
        if out and out[-1][1] == code - 1:
            out[-1][1] = code
        else:
            out.append([code, code])
    return out


def print_ranges(name, codes):
    found = ranges(codes)
    print(f"const Range {name}[] = {{")
    rows(f"{{{a:#x}, {b:#x}}}," for a, b in found)
    print(f"}};\nconst int {name}Count = {len(found)};\n")


def main():
    print("// Made by make_case_tables.py; do not edit.\n// clang-format off")
    print('#include "text/generated/jinja_case_tables.h"\n\nnamespace riptide::jinja {\n')
    special = []
    for name, method in (("kUpper", str.upper), ("kLower", str.lower), ("kTitle", str.title)):
        pairs = []
        for code in CODES:
            mapped = method(chr(code))
            if name == "kTitle" and mapped == chr(code).upper():
                continue
            if len(mapped) > 1:
                special.append((name, code, mapped))
            elif ord(mapped) != code or name == "kTitle":
                pairs.append((code, ord(mapped) - code))
        found = runs(pairs)
        print(f"const CaseRun {name}[] = {{")
        rows(f"{{{a:#x}, {b:#x}, {step}, {delta}}}," for a, b, step, delta in found)
        print(f"}};\nconst int {name}Count = {len(found)};\n")
    print("const SpecialCase kSpecial[] = {")
    kinds = {"kUpper": 0, "kLower": 1, "kTitle": 2}
    rows(
        f"{{{kinds[name]}, {code:#x}, {{{', '.join(f'{ord(c):#x}' for c in mapped)}}}}},"
        for name, code, mapped in special
    )
    print(f"}};\nconst int kSpecialCount = {len(special)};\n")
    print_ranges("kIsUpper", [c for c in CODES if chr(c).isupper()])
    print_ranges("kIsLower", [c for c in CODES if chr(c).islower()])
    print_ranges("kIsAlpha", [c for c in CODES if chr(c).isalpha()])
    print_ranges("kIsDigit", [c for c in CODES if unicodedata.category(chr(c)) == "Nd"])
    print_ranges("kNotPrintable", [c for c in CODES if not chr(c).isprintable()])
    print("}  // namespace riptide::jinja")


main()
