"""What a service has done: counters for Prometheus, and the last two minutes for its page."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2.5, 5, 10)
_HISTORY = 120
_RECENT = 30.0
"""Percentiles are of requests of that many last seconds."""


class Watch:
    """Counts requests, and remembers second by second how the service did."""

    def __init__(self, points: Sequence[str], clock: Callable[[], float] = time.time) -> None:
        self.clock = clock
        self.accepted = self.refused = self.in_flight = 0
        self.history: deque[dict[str, Any]] = deque(maxlen=_HISTORY)
        self._latencies: deque[tuple[float, float]] = deque(maxlen=4096)
        self._last = (0, 0)
        registry = self._registry = CollectorRegistry()

        def named(kind: Any, name: str, text: str, **options: Any) -> Any:
            return kind(f"paumer_{name}", text, registry=registry, **options)

        self._latency = named(
            Histogram,
            "latency_seconds",
            "From a request's last byte to its answer",
            buckets=_SECONDS,
        )
        self._compute = named(
            Histogram, "batch_seconds", "Time of a batch in the network", buckets=_SECONDS
        )
        self._batch = named(
            Histogram, "batch_size", "Images that ran together", buckets=(1, 2, 4, 8, 16, 32)
        )
        self._refused = named(
            Counter, "refused", "Requests without a result, by reason", labelnames=["reason"]
        )
        self._answered = named(
            Counter, "answered", "Results, by operating point", labelnames=["point"]
        )
        self._changes = named(Gauge, "point_changes", "Changes of the operating point since start")
        self._place = named(Gauge, "point", "Place of the operating point, 0 for the most accurate")
        self._queue = named(Gauge, "queue", "Requests that wait")
        self._filled = named(Gauge, "queue_filled", "Waiting time over the latency target")
        self._in_flight = named(Gauge, "in_flight", "Requests being read, run or answered")
        for point in points:
            self._answered.labels(point)

    def answered(self, point: str | None, seconds: float) -> None:
        """Note a result, at an operating point or another configuration."""
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
        middle, high = (recent[int(share * (len(recent) - 1) + 0.5)] for share in (0.5, 0.99))
        return round(1000 * middle, 3), round(1000 * high, 3)

    def rate(self, seconds: int = 5) -> float:
        """Requests per second, answered or refused as busy, over the last seconds."""
        recent: list[int] = [entry["requests"] for entry in self.history][-seconds:]
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

    def text(self, place: int, changes: int, queue: int, filled: float) -> bytes:
        """Everything in the format of Prometheus."""
        self._place.set(place)
        self._changes.set(changes)
        self._queue.set(queue)
        self._filled.set(filled)
        self._in_flight.set(self.in_flight)
        return generate_latest(self._registry)
