"""Seconds per batch and peak memory of runs as bars, over a setting that is a number: accum, say, beside each policy."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from runner.compare.facts import facts, setting, settings
from runner.compare.read import Run

COLORS = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#e69f00",
    "#56b4e9",
    "#8c6bb1",
    "#7f7f7f",
)  # of Okabe and Ito, and two; of the page's curves as well
FIRST = "accum"  # the setting to take, if it differs
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 900, 300, 60, 30, 40
MEASURES = (
    ("Seconds per batch", "seconds_mean", "seconds_spread", 1.0),
    ("Peak memory in MiB", "peak_memory", None, 2.0**20),
)


@dataclass(frozen=True, slots=True)
class Grid:
    """Runs by the value of one setting, and by all others that are not bound to it."""

    over: str
    places: list[float]
    series: list[tuple[str, ...]]
    runs: dict[tuple[float, tuple[str, ...]], Run]


def bars(runs: list[Run]) -> str:
    """HTML for the page: nothing where the runs differ in no number, or where several would share a place."""
    grid = grid_of(runs)
    return "" if grid is None else "".join([_legend(grid), *(_chart(grid, *measure) for measure in MEASURES)])


def grid_of(runs: list[Run]) -> Grid | None:
    keys = settings(runs)
    for over in sorted(keys, key=lambda k: k != FIRST):
        values = [_number(setting(r, over)) for r in runs]
        places = sorted({v for v in values if v is not None})
        if None in values or len(places) < 2:
            continue
        rest = [k for k in keys if k != over and not _follows(runs, over, k)]
        found = {(v, tuple(setting(r, k) for k in rest)): r for v, r in zip(values, runs, strict=True) if v is not None}
        series = list(dict.fromkeys(name for _, name in found))
        if len(found) == len(runs) and len(series) <= len(COLORS) and len(series) < len(runs):
            return Grid(over, places, series, found)
    return None


def _follows(runs: list[Run], over: str, key: str) -> bool:
    """Whether `key` has one value for each of `over`: the observed batch of a fixed micro-batch, for accum."""
    return len({(setting(r, over), setting(r, key)) for r in runs}) == len({setting(r, over) for r in runs})


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _legend(grid: Grid) -> str:
    names = [", ".join(name) or "runs" for name in grid.series]
    entries = (
        f'<span><span class="swatch" style="display:inline-block;background:{color}"></span> {escape(name)}</span>'
        for name, color in zip(names, COLORS, strict=False)
    )
    return f'<h2>By {escape(grid.over)}</h2><p class="legend">{" ".join(entries)}</p>'


def _chart(grid: Grid, title: str, fact: str, spread: str | None, unit: float) -> str:
    """One measure: a group of bars for each place, a bar for each series, with its spread as a line."""
    told = {key: facts(run) for key, run in grid.runs.items()}
    heights = {key: f[fact] / unit for key, f in told.items() if f.get(fact)}
    if not heights:
        return ""
    spreads = {key: (f.get(spread) or 0.0) / unit if spread else 0.0 for key, f in told.items()}
    most = max(h + spreads[key] for key, h in heights.items())
    group = (WIDTH - LEFT) / len(grid.places)
    width = 0.8 * group / len(grid.series)
    scale = (HEIGHT - TOP - BOTTOM) / most
    drawn = [f'<text x="0" y="18" fill="currentColor">{title}</text>']
    for level in (0.0, 0.5, 1.0):
        y = HEIGHT - BOTTOM - level * most * scale
        drawn.append(f'<line x1="{LEFT}" x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="var(--line)"/>')
        drawn.append(
            f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end" fill="currentColor">{level * most:.3g}</text>'
        )
    for i, place in enumerate(grid.places):
        start = LEFT + i * group + 0.1 * group
        middle = start + 0.4 * group
        label = f"{escape(grid.over)} {place:g}"
        drawn.append(
            f'<text x="{middle:.1f}" y="{HEIGHT - 14}" text-anchor="middle" fill="currentColor">{label}</text>'
        )
        for j, name in enumerate(grid.series):
            height = heights.get((place, name))
            if height is None:
                continue
            x, top = start + j * width, HEIGHT - BOTTOM - height * scale
            text = escape(f"{', '.join(name) or 'runs'}, {grid.over} {place:g}: {height:.4g}")
            drawn.append(
                f'<rect class="column" x="{x:.1f}" y="{top:.1f}" width="{0.9 * width:.1f}" height="{height * scale:.1f}" '
                f'fill="{COLORS[j]}"><title>{text}</title></rect>'
            )
            if error := spreads[place, name] * scale:
                at = x + 0.45 * width
                drawn.append(
                    f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{top - error:.1f}" y2="{top + error:.1f}" stroke="currentColor"/>'
                )
    return f'<div class="chart"><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}">{"".join(drawn)}</svg></div>'
