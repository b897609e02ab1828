"""Line charts as SVG, without a library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

Points = Sequence[tuple[float, float]]
_COLORS = ("#4e79a7", "#e15759", "#59a14f", "#f28e2b", "#b07aa1", "#76b7b2", "#9c755f", "#edc948")
_WIDTH, _HEIGHT, _LEFT, _TOP = 560, 260, 70, 40


def line_chart(title: str, x: str, y: str, series: Mapping[str, Points], names: Sequence[str] = ()) -> str:
    """Return a chart of lines from 0 on; `names` are those of x = 0, 1, …, in place of numbers."""
    every = [point for points in series.values() for point in points]
    right = max((at for at, _ in every), default=1.0) or 1.0
    top = max((value for _, value in every), default=1.0) * 1.05 or 1.0
    height = _TOP + _HEIGHT + 60 + 18 * -(-len(series) // 3)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_LEFT + _WIDTH + 30} {height}" font-size="12" '
        'font-family="sans-serif"><rect width="100%" height="100%" fill="white"/>'
        f'<text x="10" y="20" font-size="14">{escape(title)}</text>'
        f'<text x="{_LEFT + _WIDTH / 2}" y="{_TOP + _HEIGHT + 36}" text-anchor="middle">{escape(x)}</text>'
        f'<text transform="translate(14,{_TOP + _HEIGHT / 2}) rotate(-90)" text-anchor="middle">{escape(y)}</text>'
    ]
    for step in range(5):
        value = top * step / 4
        at = _y(value, top)
        parts.append(
            f'<line x1="{_LEFT}" y1="{at:.1f}" x2="{_LEFT + _WIDTH}" y2="{at:.1f}" stroke="#ddd"/>'
            f'<text x="{_LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{value:.3g}</text>'
        )
    ticks: list[tuple[float, str]] = [*enumerate(names)] or [(right * n / 5, f"{right * n / 5:.3g}") for n in range(6)]
    for tick, name in ticks:
        place = _LEFT + tick / right * _WIDTH
        parts.append(f'<text x="{place:.1f}" y="{_TOP + _HEIGHT + 18}" text-anchor="middle">{escape(name)}</text>')
    for number, (name, points) in enumerate(series.items()):
        color = _COLORS[number % len(_COLORS)]
        places = [(_LEFT + at / right * _WIDTH, _y(value, top)) for at, value in points]
        line = " ".join(f"{at:.1f},{value:.1f}" for at, value in places)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="1.5"/>')
        if len(places) <= 20:
            parts += [f'<circle cx="{at:.1f}" cy="{value:.1f}" r="3" fill="{color}"/>' for at, value in places]
        left, below = _LEFT + number % 3 * 190, _TOP + _HEIGHT + 60 + number // 3 * 18
        parts.append(f'<rect x="{left}" y="{below - 10}" width="12" height="12" fill="{color}"/>')
        parts.append(f'<text x="{left + 18}" y="{below}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _y(value: float, top: float) -> float:
    return _TOP + _HEIGHT * (1 - value / top)
