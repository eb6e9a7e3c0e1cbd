"""Pacing: a measurement holds itself to the rates of a real machine where its own links are faster."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from mkbench.core.errors import UsageError
from mkbench.core.names import unknown

LINKS = ("nvlink", "network")
FORM = "write nvlink=450,network=50 or one of them, in GB/s"
SLOWEST_GBPS, FASTEST_GBPS = 1e-3, 1e5
"""What the kernel's integers resolve and hold, by far; the rates of links lie well between."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Rates in GB/s (1e9 bytes a second) and direction; None: as fast as it goes."""

    nvlink_gbps: float | None = None
    network_gbps: float | None = None

    @classmethod
    def of(cls, rates: Mapping[str, float]) -> "Pace":
        """Return the pace of {"nvlink": 450.0, "network": 50.0}, as a configuration holds it."""
        return cls(rates.get("nvlink"), rates.get("network"))

    def shared_by(self, ranks: int) -> "Pace":
        """Return the share of one of `ranks` ranks."""
        return Pace.of({link: rate / ranks for link, rate in self._rates()})

    @property
    def label(self) -> str:
        """The text that `parse_pace` reads back, as short as it gets: "nvlink=450,network=50"."""
        return ",".join(f"{link}={rate:.15g}" for link, rate in self._rates())

    @property
    def words(self) -> str:
        """For people, with the unit and what it is a rate of."""
        named = {"nvlink": "NVLink", "network": "network"}
        rates = " and ".join(f"{rate:g} GB/s of {named[link]}" for link, rate in self._rates())
        return f"paced to {rates} a GPU"

    def to_json(self) -> dict[str, float | None]:
        """Return {"nvlink_gbps": ..., "network_gbps": ...}."""
        return asdict(self)

    def _rates(self) -> list[tuple[str, float]]:
        rates = zip(LINKS, (self.nvlink_gbps, self.network_gbps), strict=True)
        return [(link, rate) for link, rate in rates if rate is not None]


def parse_pace(value: str | Mapping[str, object]) -> dict[str, float]:
    """Return "nvlink=450,network=50", or a table of the same, as {"nvlink": 450.0, "network": 50.0}.

    Raises UsageError for an unknown or repeated name and for what is no rate.
    """
    if isinstance(value, str):
        pairs = [part.partition("=") for part in value.split(",")]
        if not all(name.strip() and rate.strip() for name, _, rate in pairs):
            raise UsageError(f"pace {value!r} is malformed", hint=FORM)
        names = [name.strip() for name, _, _ in pairs]
        if len(set(names)) < len(names):
            raise UsageError(f"pace {value!r} gives a rate twice", hint=FORM)
        value = {name.strip(): rate.strip() for name, _, rate in pairs}
    if not value:
        raise UsageError("pace is empty", hint=FORM)
    for name in value:
        if name not in LINKS:
            raise unknown("rate", name, LINKS, " of pace")
    return {link: _rate(link, value[link]) for link in LINKS if link in value}


def fs_per_byte(gbps: float | None) -> int:
    """Return a rate as kernel and proxy take it: femtoseconds a byte, 0 for as fast as it goes."""
    return 0 if gbps is None else round(1e6 / gbps)


def _rate(link: str, given: object) -> float:
    try:
        rate = math.nan if isinstance(given, bool) else float(given)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        rate = math.nan
    if not SLOWEST_GBPS <= rate <= FASTEST_GBPS:
        raise UsageError(
            f"pace {link}={given} is no rate from {SLOWEST_GBPS:g} to {FASTEST_GBPS:g} GB/s", hint=FORM
        )
    return rate
