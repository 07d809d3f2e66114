"""Draws docs/moving-bytes.svg: ``python docs/moving_bytes.py``. Standard library only."""

from __future__ import annotations

from pathlib import Path

COLORS = ("#4477aa", "#ee9944", "#228866", "#bb5577")
INK, PALE, LINE = "#222222", "#eceff3", "#8a93a0"
WIDTH, HEIGHT = 960, 470
BOX, GAP, BAR = 96, 14, 18


def text(
    x: float, y: float, words: str, size: int = 13, anchor: str = "middle", **more: str
) -> str:
    extra = " ".join(f'{k.replace("_", "-")}="{v}"' for k, v in more.items())
    return (
        f'<text x="{x}" y="{y}" font-size="{size}" text-anchor="{anchor}" fill="{INK}" {extra}>'
        f"{words}</text>"
    )


def rect(x: float, y: float, w: float, h: float, fill: str, stroke: str = "none") -> str:
    return (
        f'<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="4" fill="{fill}" stroke="{stroke}"/>'
    )


def arrow(x1: float, y1: float, x2: float, y2: float, color: str) -> str:
    return (
        f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{color}" stroke-width="2.5" '
        f'marker-end="url(#tip{COLORS.index(color)})"/>'
    )


def process(x: float, y: float, number: int, parts: list[int], label: bool = True) -> list[str]:
    """A process whose memory holds the parts of the given colours; the others are empty."""
    out = [rect(x, y, BOX, 4 * BAR + 14, PALE, LINE)]
    for i in range(4):
        fill = COLORS[i] if i in parts else "#ffffff"
        out.append(rect(x + 8, y + 7 + i * BAR, BOX - 16, BAR - 3, fill, LINE))
    if label:
        out.append(text(x + BOX / 2, y - 7, f"process {number}"))
    return out


def storage(x: float, y: float, width: float) -> list[str]:
    out = [rect(x, y, width, 58, PALE, LINE), text(x + width / 2, y + 74, "storage")]
    part = (width - 40) / 4
    for i, color in enumerate(COLORS):
        out.append(rect(x + 14 + i * (part + 4), y + 18, part, 22, color))
    return out


def save(x: float) -> list[str]:
    out = [text(x + 215, 28, "Save: each replica writes its share", 17, font_weight="bold")]
    for i in range(4):
        left = x + i * (BOX + GAP)
        out += process(left, 84, i, [0, 1, 2, 3])
        out.append(arrow(left + BOX / 2, 176, x + 58 + i * 105, 312, COLORS[i]))
    out.append(text(x + 215, 52, "all hold the same 4 parts"))
    out.append(rect(x + 72, 220, 286, 26, "#ffffff"))
    out.append(text(x + 215, 238, "a quarter of the bytes each, nothing twice"))
    out += storage(x, 318, 430)
    out.append(text(x + 215, 424, "process 0 checks every size and digest, merges the indexes,"))
    out.append(text(x + 215, 442, "and only then gives the step its name"))
    return out


def restore(x: float) -> list[str]:
    out = [text(x + 215, 28, "Restore: read once, then AllGather", 17, font_weight="bold")]
    out += storage(x, 318, 430)
    for i in range(4):
        left = x + i * (BOX + GAP)
        out += process(left, 196, i, [i], label=False)
        out.append(arrow(x + 58 + i * 105, 316, left + BOX / 2, 290, COLORS[i]))
        out += process(left, 84, i, [0, 1, 2, 3])
    out.append(text(x + 215, 52, "every replica is complete, held against its checksums"))
    for i in range(4):
        for j in range(4):
            a, b = x + i * (BOX + GAP) + BOX / 2, x + j * (BOX + GAP) + BOX / 2
            out.append(
                f'<line x1="{a}" y1="196" x2="{b}" y2="172" stroke="{COLORS[i]}" '
                'stroke-width="1.5" opacity="0.8"/>'
            )
    out.append(text(x + 215, 424, "each process reads one stripe of every bucket;"))
    out.append(text(x + 215, 442, "while a bucket is handed on, the next is being read"))
    return out


def main() -> None:
    tips = "".join(
        f'<marker id="tip{i}" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="6" '
        f'markerHeight="6" orient="auto"><path d="M0 0 8 4 0 8z" fill="{c}"/></marker>'
        for i, c in enumerate(COLORS)
    )
    body = "\n".join([*save(30), *restore(500)])
    Path(__file__).with_name("moving-bytes.svg").write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'font-family="Helvetica, Arial, sans-serif" role="img">\n'
        "<title>How bytes move in a save and a restore of four replicas</title>\n"
        f"<defs>{tips}</defs>\n"
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>\n{body}\n</svg>\n'
    )


if __name__ == "__main__":
    main()
