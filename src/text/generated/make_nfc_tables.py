#!/usr/bin/env python3
"""Writes nfc_tables.cpp from Python's unicodedata: python3 src/text/generated/make_nfc_tables.py > src/text/generated/nfc_tables.cpp"""
import sys
import unicodedata as u

MARKS = "// clang-format off\n"


def rows(items):
    line = ""
    for item in items:
        if len(line) + len(item) > 120:
            print(line)
            line = ""
        line += item
    print(line)


def main():
    pairs, others, classes = [], [], []
    for code in range(sys.maxunicode + 1):
        char = chr(code)
        field = u.decomposition(char)
        if field and not field.startswith("<"):
            parts = [int(part, 16) for part in field.split()]
            composes = len(parts) == 2 and u.normalize("NFC", chr(parts[0]) + chr(parts[1])) == char
            (pairs if composes else others).append((code, *(parts + [0])[:2]))
        combining = u.combining(char)
        if combining and classes and classes[-1][1] == code - 1 and classes[-1][2] == combining:
            classes[-1][1] = code
        elif combining:
            classes.append([code, code, combining])
    print(f"// Made by make_nfc_tables.py from Unicode {u.unidata_version}. Do not edit.")
    print('#include "text/generated/nfc_tables.h"\n\nnamespace riptide::nfc {\n\n' + MARKS, end="")
    for name, kind, table in (("kComposed", "Decomposition", pairs), ("kOnlyDecomposed", "Decomposition", others),
                              ("kClasses", "ClassRange", classes)):
        print(f"const std::array<{kind}, {len(table)}> {name} = {{{{")
        rows("{" + ",".join(str(n) for n in row if n) + "}," for row in table)
        print("}};\n")
    print("// clang-format on\n\n}  // namespace riptide::nfc")


main()
