"""What every study hands back."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class StudyResult:
    """Where a study's page is and the few numbers worth a line on the terminal."""

    page: Path
    """the HTML page to open"""
    columns: tuple[str, ...]
    """heads of the table, for instance ("what", "learnt", "exact")"""
    rows: tuple[tuple[str, ...], ...]
    """cells as they are printed, one for each column"""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(
                    f"rows: {row} has {len(row)} cells and there are {len(self.columns)} columns "
                    f"{self.columns}; give one cell for each column."
                )
