"""Where units on a cluster leave their reports; no torch, so that its process starts at once."""

Report = tuple[str, tuple[float, ...] | None]
"""The key of a unit, and the values of an epoch; None says that it has started."""


class Board:
    """An actor beside the driver."""

    def __init__(self) -> None:
        self.reports: list[Report] = []

    def add(self, report: Report) -> None:
        """Leave a report."""
        self.reports.append(report)

    def take(self) -> list[Report]:
        """Give all that came since the last call."""
        reports, self.reports = self.reports, []
        return reports
