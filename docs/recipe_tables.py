"""Tables of the panel that chose the recipe "best", for docs/tables.py."""

from statistics import fmean

from figures import ROWS, table

from gtpool.reproduce.panel import CANDIDATES, PANEL, choices, choose, panel_runs

CHOOSING = ("gtpool-v", "gcn")
"""Methods whose panel is complete."""


def panel() -> str:
    """Return the validation metrics of all candidates; the choice of each method is bold."""
    lines: list[tuple[str, ...]] = []
    for method in CHOOSING:
        means = choose(method, ROWS.values()).means
        for label in CANDIDATES[method]:
            chosen = label == choices()[method][""]
            values = [_panel(method, label, name)[0] for name in PANEL]
            name = f"{method}: {label}"
            figures = [f"{100 * value:.2f}" for value in (*values, means[label])]
            lines.append((f"**{name}**" if chosen else name, *figures))
    return table(("candidate", *PANEL, "mean"), lines)


def panel_choices() -> str:
    """Return the choice without each dataset by both rules, with test metrics of the panel."""
    heads = ("method", "left out", "best mean", "lead", "test", "best mean rank", "test")
    lines: list[tuple[str, ...]] = []
    for method in CHOOSING:
        for name in (None, *PANEL):
            by_mean, means = choose(method, ROWS.values(), name)
            first, second = sorted(means.values(), reverse=True)[:2]
            ranks = _mean_ranks(method, name)
            by_rank = min(ranks, key=ranks.__getitem__)
            tests = [
                f"{100 * _panel(method, label, name)[1]:.2f}" if name else "–"
                for label in (by_mean, by_rank)
            ]
            other = by_rank if by_rank == by_mean else f"**{by_rank}**"
            lead = f"{100 * (first - second):.2f}"
            lines.append((method, name or "none", by_mean, lead, tests[0], other, tests[1]))
    return table(heads, lines)


def _panel(method: str, label: str, dataset: str) -> tuple[float, float]:
    """Return the mean validation and test metric of a candidate over its runs of the panel."""
    found = [ROWS[spec.key] for spec in panel_runs(method, label, dataset)]
    return (
        fmean(row.valid_metric for row in found if row.valid_metric is not None),
        fmean(row.test for row in found if row.test is not None),
    )


def _mean_ranks(method: str, left_out: str | None) -> dict[str, float]:
    """Return the mean rank of each candidate by validation metric; equal ones share a rank."""
    ranks: dict[str, list[float]] = {label: [] for label in CANDIDATES[method]}
    for name in PANEL:
        if name != left_out:
            values = {label: _panel(method, label, name)[0] for label in ranks}
            for label, value in values.items():
                above = sum(other > value for other in values.values())
                equal = sum(other == value for other in values.values())
                ranks[label].append(above + (equal + 1) / 2)
    return {label: fmean(several) for label, several in ranks.items()}
