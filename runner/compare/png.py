"""The comparison as a PNG, for where no browser is: the curves of the page and their differences, in its colours.

Matplotlib draws it, which is an extra (`samestep[png]`): it is looked for before anything is read, and imported last.
"""

from __future__ import annotations

import importlib.util
import io
import warnings
from pathlib import Path
from typing import Any

from runner.compare.bars import COLORS
from runner.compare.report import DASHES, page_data
from runner.compare.session import Comparison
from runner.errors import RunnerError
from runner.rundir import write_bytes

NAMED = 16  # runs in the legend, at most
LONGEST = 80  # characters of one
ROW = 0.19  # inches of its rows
FLOOR = 1e-9  # a difference of nothing is drawn here, as on the page
INCHES, DOTS = (9.0, 7.6), 150


class NoMatplotlibError(RunnerError):
    """The extra is not installed."""

    exit_code = 2


def check() -> None:
    """Raises NoMatplotlibError where matplotlib is missing."""
    if importlib.util.find_spec("matplotlib") is None:
        raise NoMatplotlibError(
            '--png needs the package matplotlib, which is not installed. Install it: pip install "samestep[png]"'
        )


def write(comparison: Comparison, path: Path) -> None:
    """Draw, and write the file whole or not at all."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    data, file = page_data(comparison), io.BytesIO()
    figure = Figure(figsize=INCHES, layout="constrained")
    curves, differences = figure.subplots(2, 1, height_ratios=(3, 2))
    lines = _draw_curves(curves, data)
    _draw_differences(differences, data)
    _draw_legend(figure, lines, [run["label"] for run in data["runs"]])
    with warnings.catch_warnings(action="ignore"):  # of characters that the font lacks, which show as boxes
        FigureCanvasAgg(figure).print_png(file, metadata={"Software": "samestep"})
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, file.getvalue())


def _draw_curves(axes: Any, data: dict[str, Any]) -> list[Any]:
    """The loss of every update, all runs. Returns a line for each."""
    lines = []
    for index, curve in enumerate(data["curves"]):
        rows = curve["per_update"]
        lines += axes.plot(rows["update"], _gaps(rows["loss"]), linewidth=1.6, **_style(index))
    axes.set_ylabel("loss per update")
    axes.grid(alpha=0.3)
    return lines


def _draw_legend(figure: Any, lines: list[Any], labels: list[str]) -> None:
    """Below the curves, with room of its own: over them it would hide them. Labels stay text: they are put in where nothing
    reads them as formulae."""
    texts = [" ".join(label.split())[:LONGEST] for label in labels[:NAMED]]
    handles = lines[:NAMED]
    if len(lines) > NAMED:
        texts.append(f"and {len(lines) - NAMED} more")
        handles = [*handles, *figure.axes[0].plot([], [], linestyle="none")]
    columns = 1 if max(map(len, texts), default=0) > LONGEST // 2 else 2
    legend = figure.legend(
        handles, ["run"] * len(texts), loc="outside lower center", ncols=columns, fontsize="small", frameon=False
    )
    for text, label in zip(legend.get_texts(), texts, strict=True):
        text.set_parse_math(False)
        text.set_text(label)
    figure.set_figheight(figure.get_figheight() + ROW * -(-len(texts) // columns))


def _draw_differences(axes: Any, data: dict[str, Any]) -> None:
    """How far each run is from the first of its group, and, dashed, what rounding is allowed."""
    for difference in data["differences"]:
        color = _style(difference["b"])["color"]
        floored = [None if v is None else max(v, FLOOR) for v in difference["loss"]]
        axes.plot(difference["update"], _gaps(floored), color=color, linewidth=1.2)
        axes.plot(difference["update"], _gaps(difference["tolerance"]), color=color, linewidth=0.8, linestyle="--")
    axes.set_yscale("log")
    axes.set_xlabel("updates")
    axes.set_ylabel("relative difference (dashed: allowed)")
    axes.grid(alpha=0.3)


def _style(index: int) -> dict[str, Any]:
    """Colour and dashes of a run: those that the page gives it."""
    dashes = tuple(map(float, DASHES[index // len(COLORS) % len(DASHES)].split()))
    return {"color": COLORS[index % len(COLORS)], "linestyle": (0, dashes) if dashes else "-"}


def _gaps(values: list[float | None]) -> list[float]:
    return [float("nan") if v is None else v for v in values]
