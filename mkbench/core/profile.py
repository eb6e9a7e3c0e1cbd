"""Profiles are TOML files in which every number carries its source."""

import tomllib
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mkbench.core.errors import UsageError
from mkbench.core.names import unknown
from mkbench.core.resources import configs_dir


class Strict(BaseModel):
    """A frozen model that refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Sourced(Strict):
    """A number and where it comes from: a measurement, a datasheet, or an assumption that says so."""

    value: float = Field(ge=0, allow_inf_nan=False)
    source: str = Field(min_length=8)


Model = TypeVar("Model", bound=BaseModel)
Profile = TypeVar("Profile", bound=Strict)


def profile_names(folder: str) -> list[str]:
    """Return the names of the shipped profiles in configs/<folder>."""
    return sorted(path.stem for path in (configs_dir() / folder).glob("*.toml"))


def read_profile(model: type[Profile], folder: str, kind: str, name: str) -> Profile:
    """Return configs/<folder>/<name>.toml as `model`. Raises UsageError for an unknown name or a bad file."""
    names = profile_names(folder)
    if name not in names:
        raise unknown(kind, name, names)
    path = configs_dir() / folder / f"{name}.toml"
    return validated(model, {"name": name} | read_toml(path), str(path))


def read_toml(path: Path) -> dict[str, Any]:
    """Return a TOML file. Raises UsageError if it cannot be read or parsed."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"no file {path}", hint="check the path") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {error}", hint="check the path and its permissions") from None
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path} is not TOML: {error}", hint="correct that line") from None


def validated(model: type[Model], data: dict[str, Any], where: str) -> Model:
    """Return `data` as `model`. Raises UsageError that names the first bad key and its near key."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"]) or "settings"
        if first["type"] == "extra_forbidden" and len(first["loc"]) == 1:
            raise unknown("key", key, model.model_fields, f" in {where}") from None
        reason = first["msg"].removeprefix("Value error, ").replace("valid tuple", "valid list")
        given = "" if first["type"] == "missing" else f" (got {first['input']!r})"
        raise UsageError(f"{where}: {key}: {reason}{given}", hint="correct that setting") from None
