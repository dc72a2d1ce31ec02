"""What was measured of a pause configuration, and what follows from many such measurements."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from paumer.pause_config import PauseConfig


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One pause configuration, measured: whatever is known of it, the rest is None.

    ``images_per_second`` and ``speed_up`` come from the fastest round, because noise only ever
    adds time; ``latency_ms`` is the median and ``latency_ms_p95`` the 95th percentile of a batch.
    ``mac_ratio`` is the speed-up that the multiply-adds alone promise.
    """

    pause: PauseConfig
    criterion: str = "entropy"
    early_exit: bool = False
    images_per_second: float | None = None
    latency_ms: float | None = None
    latency_ms_p95: float | None = None
    speed_up: float | None = None
    mac_ratio: float | None = None
    gmacs: float | None = None
    pausing_share: float | None = None
    peak_memory_mb: float | None = None
    miou: float | None = None

    def to_json(self) -> dict[str, Any]:
        """The measurement as one flat JSON object, without what is not known."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        known = {name: value for name, value in values.items() if value is not None}
        return {**known, "pause": str(self.pause)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """The measurement written by ``to_json``."""
        return cls(**{**values, "pause": PauseConfig.parse(values["pause"])})
