"""A job directory: what the parent tells its workers, and what they leave behind."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mkbench.core.point import Point

#: A worker's line on stdout that carries a finished point starts with this.
REPORT_PREFIX = "@mkbench "


@dataclass(frozen=True, slots=True)
class JobDirectory:
    """Private directory of one `mpiexec` run. Its unique path also marks our processes in /proc."""

    path: Path

    @property
    def heartbeats(self) -> Path:
        return self.path / "heartbeat"

    @property
    def stderr(self) -> Path:
        return self.path / "stderr"

    @property
    def _points(self) -> Path:
        return self.path / "points.json"

    def write_points(self, points: Sequence[Point]) -> None:
        self._points.write_text(json.dumps([point.to_json() for point in points]))

    def read_points(self) -> list[Point]:
        return [Point.from_json(point) for point in json.loads(self._points.read_text())]


@contextmanager
def job_directory() -> Iterator[JobDirectory]:
    """A fresh job directory, removed at the end."""
    path = Path(tempfile.mkdtemp(prefix="mkbench-job-"))
    job = JobDirectory(path)
    job.heartbeats.mkdir()
    try:
        yield job
    finally:
        shutil.rmtree(path, ignore_errors=True)
