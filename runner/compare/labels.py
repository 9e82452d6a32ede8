"""What runs are called in a picture: by their names, and by the overrides in which they differ, as in a sweep's table."""

from __future__ import annotations

from collections.abc import Sequence

import yaml  # type: ignore[import-untyped]

from runner.compare.read import Run, shown

LONGEST = 120  # characters


def labels(runs: Sequence[Run]) -> list[str]:
    """A label for each run, in one line."""
    typed = [_overrides(run) for run in runs]
    shared = set.intersection(*map(set, typed)) if typed else set()
    differing = [" ".join(o for o in own if o not in shared) for own in typed]
    texts = [f"{run.name}: {shown(text)}" if text else run.name for run, text in zip(runs, differing, strict=True)]
    return [text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..." for text in texts]


def _overrides(run: Run) -> list[str]:
    """What was typed for a run, or given by its sweep; nothing where its folder does not say."""
    try:
        found = yaml.safe_load(run.folder.overrides.read_text(encoding="utf-8"))
    except (OSError, UnicodeError, yaml.YAMLError):
        return []
    return [str(o) for o in found] if isinstance(found, list) else []
