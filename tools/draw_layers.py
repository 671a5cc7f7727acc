#!/usr/bin/env python3
"""Draws docs/layers.svg: the folders of src/ as boxes, and an arrow wherever a file of one includes a file of another.

Arrows that follow from others (a includes b, b includes c, so a may include c) are left out, so that the order shows.

usage: draw_layers.py [--check]      --check: fails if the committed picture is not what the includes say
"""
import pathlib
import re
import sys

import check_layers

ROOT = pathlib.Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs/layers.svg"
# Column and row of each box, lowest layer at the bottom.
PLACE = {"apps": (1, 0), "server": (1, 1), "engine": (1, 2), "models": (0, 3), "cache": (0, 4), "io": (1, 4), "text": (2, 4),
         "ops": (0, 5), "quant": (0, 6), "tensor": (0, 7), "base": (1, 8)}
WIDTH, HEIGHT, COLUMN, ROW, LEFT, TOP = 190, 44, 230, 74, 20, 16


def includes() -> dict[str, set[str]]:
    found = {layer: set() for layer in PLACE}
    for path in (ROOT / "src").rglob("*"):
        if path.suffix in {".h", ".cpp", ".cu", ".cuh"}:
            layer = path.relative_to(ROOT / "src").parts[0]
            for line in path.read_text(encoding="utf-8").splitlines():
                match = check_layers.INCLUDE.match(line)
                if match and match.group(1) == '"':
                    target = match.group(2).split("/")[0]
                    if target in found and target != layer:
                        found[layer].add(target)
    return found


def reach(start: str, arrows: dict[str, set[str]]) -> set[str]:
    seen, todo = set(), [start]
    while todo:
        for target in arrows[todo.pop()]:
            if target not in seen:
                seen.add(target)
                todo.append(target)
    return seen


def draw() -> str:
    arrows = includes()
    lines = {layer: {t for t in targets if not any(t in reach(other, arrows) for other in targets - {t})}
             for layer, targets in arrows.items()}
    width, height = LEFT * 2 + COLUMN * 2 + WIDTH, TOP * 2 + ROW * 8 + HEIGHT
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" font-family="sans-serif" font-size="14">',
           '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
           '<path d="M0 0 8 4 0 8z" fill="#667"/></marker></defs>', f'<rect width="{width}" height="{height}" fill="#fff"/>']

    def corner(layer: str) -> tuple[int, int]:
        column, row = PLACE[layer]
        return LEFT + COLUMN * column, TOP + ROW * row

    for layer in PLACE:
        for target in sorted(lines[layer]):
            (x1, y1), (x2, y2) = corner(layer), corner(target)
            out.append(f'<path d="M{x1 + WIDTH // 2} {y1 + HEIGHT} L{x2 + WIDTH // 2} {y2}" stroke="#667" fill="none" marker-end="url(#tip)"/>')
    for layer in PLACE:
        x, y = corner(layer)
        parts = ", ".join(check_layers.PARTS.get(layer, []))
        title = f"<title>{layer}: {parts}</title>" if parts else ""
        out.append(f'<g>{title}<rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="6" fill="#eef3fb" stroke="#456"/>'
                   f'<text x="{x + WIDTH // 2}" y="{y + 28}" text-anchor="middle">{layer}/</text></g>')
    return "\n".join(out) + "\n</svg>\n"


if __name__ == "__main__":
    if "--check" in sys.argv[1:]:
        same = PICTURE.is_file() and PICTURE.read_text(encoding="utf-8") == draw()
        print("docs/layers.svg is what the includes say" if same else "docs/layers.svg is not what the includes say: run tools/draw_layers.py")
        sys.exit(0 if same else 1)
    PICTURE.write_text(draw(), encoding="utf-8")
