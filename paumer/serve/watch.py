"""What a service has done: counters for Prometheus, and the last two minutes for its page."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2.5, 5, 10)
_HISTORY = 120
_MINUTE = 60
_RECENT = 30.0
"""Percentiles are of requests of that many last seconds."""
_GAUGES = {
    "point": "Index of the operating point, 0 for the most accurate",
    "point_changes": "Changes of the operating point since start",
    "queue": "Requests that wait",
    "queue_filled": "Waiting time over the latency target",
    "fastest_ratio": "Ratio of the last minute at the fastest operating point",
    "in_flight": "Requests being read, run or answered",
    "decoding_seconds": "CPU time that decoding images took since start",
}


class Watch:
    """Counts requests, and remembers second by second how the service did."""

    def __init__(self, points: Sequence[str], clock: Callable[[], float] = time.time) -> None:
        self.clock, self.fastest = clock, points[-1] if len(points) > 1 else None
        self.accepted = self.refused = self.in_flight = 0
        self.history: deque[dict[str, Any]] = deque(maxlen=_HISTORY)
        self._latencies: deque[tuple[float, float]] = deque(maxlen=4096)
        self._last = (0, 0)
        self._registry = CollectorRegistry()
        ours: dict[str, Any] = {"namespace": "paumer", "registry": self._registry}
        text = "From a request's last byte to its answer"
        self._latency = Histogram("latency_seconds", text, buckets=_SECONDS, **ours)
        text = "Time of a batch in the network"
        self._compute = Histogram("batch_seconds", text, buckets=_SECONDS, **ours)
        sizes = (1, 2, 4, 8, 16, 32)
        self._batch = Histogram("batch_size", "Images that ran together", buckets=sizes, **ours)
        text = "Requests without a result, by reason"
        self._refused = Counter("refused", text, ["reason"], **ours)
        self._answered = Counter("answered", "Results, by operating point", ["point"], **ours)
        for point in points:
            self._answered.labels(point)
        self._gauges = {name: Gauge(name, text, **ours) for name, text in _GAUGES.items()}
        self.follow(in_flight=lambda: self.in_flight, fastest_ratio=self.fastest_ratio)

    def follow(self, **gauges: Callable[[], float]) -> None:
        """Read these gauges from functions from now on."""
        for name, read in gauges.items():
            self._gauges[name].set_function(read)

    def answered(self, point: str | None, seconds: float) -> None:
        """Note a result, at an operating point or in another mode."""
        self.accepted += 1
        self._answered.labels(point or "other").inc()
        self._latency.observe(seconds)
        self._latencies.append((self.clock(), seconds))

    def refuse(self, reason: str) -> None:
        """Note a request that got no result."""
        self.refused += reason == "busy"
        self._refused.labels(reason).inc()

    def batch(self, size: int, seconds: float) -> None:
        """Note a batch."""
        self._batch.observe(size)
        self._compute.observe(seconds)

    def percentiles(self) -> tuple[float | None, float | None]:
        """The median and the 99th percentile of recent latencies, in milliseconds."""
        since = self.clock() - _RECENT
        recent = sorted(seconds for at, seconds in list(self._latencies) if at >= since)
        if not recent:
            return None, None
        middle, high = (recent[int(part * (len(recent) - 1) + 0.5)] for part in (0.5, 0.99))
        return round(1000 * middle, 3), round(1000 * high, 3)

    def rate(self) -> float:
        """Requests per second, answered or refused as busy, over the last five."""
        recent: list[int] = [entry["requests"] for entry in self.history][-5:]
        return sum(recent) / max(1, len(recent))

    def fastest_ratio(self) -> float:
        """The ratio of the last minute at the fastest operating point; 0 where there is one only.

        Near 1 the governor has nothing left to give: it is time for another replica.
        """
        recent = [bool(entry["point"] == self.fastest) for entry in self.history][-_MINUTE:]
        return sum(recent) / max(1, len(recent))

    def tick(self, point: str, queue: int) -> None:
        """Close a second of the history."""
        before, self._last = self._last, (self.accepted, self.refused)
        accepted, refused = (now - then for now, then in zip(self._last, before, strict=True))
        self.history.append(
            {
                "t": round(self.clock(), 3),
                "requests": accepted + refused,
                "refused": refused,
                "point": point,
                "queue": queue,
                "p99": self.percentiles()[1],
            }
        )

    def metrics(self) -> bytes:
        """Everything that is counted, in the format of Prometheus."""
        return generate_latest(self._registry)
