"""Records as one flat table for other programs."""

import json
from pathlib import Path
from typing import Any

import pandas as pd

from mkbench.core.errors import EnvironmentProblem, UsageError
from mkbench.core.store import RunDirectory


def write_table(run_dir: Path, kind: str, path: Path) -> None:
    """Write the records of `run_dir` to `path` as "csv" or "parquet".

    Objects become columns with dots in their names ("latency_us.median"), lists become JSON text.
    Raises UsageError if there is nothing to write, EnvironmentProblem without pyarrow or where `path` cannot
    be written.
    """
    records = RunDirectory.open(run_dir).records()
    if not records:
        raise UsageError(f"no records in {run_dir}", hint="run mkbench sweep first")
    df = pd.json_normalize([_flat(record) for record in records])
    try:
        if kind == "csv":
            df.to_csv(path, index=False, lineterminator="\n")
        else:
            df.to_parquet(path, index=False)
    except ImportError as error:
        raise EnvironmentProblem("Parquet needs pyarrow", hint="pip install pyarrow, or take csv") from error
    except OSError as error:
        reason = error.strerror or error
        raise EnvironmentProblem(f"cannot write {path}: {reason}", hint="choose another -o") from error


def _flat(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _flat(inner) for key, inner in value.items()}
    return json.dumps(value) if isinstance(value, list) else value
