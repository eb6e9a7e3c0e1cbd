"""The few lines of TOML that a plan needs: tomllib reads, nothing in the standard library writes."""

import json
from collections.abc import Mapping
from typing import Any


def dump_toml(settings: Mapping[str, Any]) -> str:
    """Return flat settings, lists and one level of tables as TOML; a setting of None is left out."""
    plain = [(key, value) for key, value in settings.items() if value is not None]
    lines = [f"{key} = {_value(value)}" for key, value in plain if not isinstance(value, Mapping)]
    for key, table in plain:
        if isinstance(table, Mapping):
            lines += ["", f"[{key}]", *(f"{name} = {_value(value)}" for name, value in table.items())]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    # JSON's strings, numbers, booleans and arrays of these are TOML too, once DEL is escaped.
    return json.dumps(value, ensure_ascii=False, allow_nan=False).replace("\x7f", "\\u007F")
