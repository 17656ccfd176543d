"""Progress of a study: which fit of how many, time left, and what the last one reached."""

from __future__ import annotations

import time

from derex.training.progress import LiveBar


class StudyProgress:
    """A bar over the fits of a study; plain lines where there is no terminal."""

    def __init__(self, title: str, total: int):
        self._total, self._done = total, 0
        self._bar = LiveBar(title, total, "sampling transitions")
        self._label = ""

    def __enter__(self) -> StudyProgress:
        self._bar.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.__exit__(*exception)

    def start(self, label: str) -> None:
        """A fit begins."""
        self._label = label
        self._counted: tuple[int, float] | None = None  # from where, and since when, this run counts updates
        self._bar.restart()
        self._bar.update(self._done, label)

    def within(self, done: int, steps: int, news: str) -> None:
        """How far it is: updates done of how many, their rate, the time left, and what training says."""
        now = time.monotonic()
        text = f"{self._label}: update {done}/{steps}, "
        if self._counted is None:  # until now: compiling, and what an earlier run had done
            self._counted = done, now
        elif done > self._counted[0]:
            rate = (done - self._counted[0]) / max(now - self._counted[1], 1e-9)
            text += f"{rate:.1f}/s, {(steps - done) / rate:.0f} s left, "
        self._bar.update(self._done, text + news)
        self._bar.mention(text + news)

    def finish(self, result: str) -> None:
        """It ended, with this result."""
        self._done += 1
        self._bar.say(f"{self._done}/{self._total}  {self._label}: {result}")
        self._bar.update(self._done)

    def skip(self) -> None:
        """It was not needed."""
        self._done += 1
        self._bar.update(self._done)
