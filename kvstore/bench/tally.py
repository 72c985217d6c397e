# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""What was counted of one job: blocks, bytes, time, latencies, bandwidth over time.

Latencies are kept in an HdrHistogram of two digits, log-linear as fio's own, so that counts of threads and turns add up
without loss. fio's tools know no latency above 17 s; longer ones count as that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvstore.bench.cpu import CpuTime

__all__ = ["LATENCY_NS_MAX", "SERIES_INTERVAL_S", "Latencies", "Side", "Tally", "together"]

#: The largest value of fio's own histogram; fio_jsonplus_clat2csv does not end with larger ones.
LATENCY_NS_MAX = 17_112_760_320
_DIGITS = 2
SERIES_INTERVAL_S = 0.5


class Latencies:
    """A histogram of nanoseconds."""

    def __init__(self) -> None:
        from hdrh.histogram import HdrHistogram

        # Twice as far: hdrhistogram 0.10.7 does not list what is in the last bin.
        self._histogram: Any = HdrHistogram(1, 2 * LATENCY_NS_MAX, _DIGITS)

    def record(self, latency_ns: int, count: int = 1) -> None:
        """``count`` blocks took so long."""
        self._histogram.record_value(min(max(latency_ns, 1), LATENCY_NS_MAX), count)

    def add(self, other: Latencies) -> None:
        """Those of another thread or turn."""
        self._histogram.add(other._histogram)

    @property
    def count(self) -> int:
        """How many blocks."""
        return int(self._histogram.total_count)

    @property
    def min(self) -> int:
        """The shortest; 0 when there is none."""
        return int(self._histogram.get_min_value()) if self.count else 0

    @property
    def max(self) -> int:
        """The longest; 0 when there is none."""
        return min(int(self._histogram.get_max_value()), LATENCY_NS_MAX) if self.count else 0

    @property
    def mean(self) -> float:
        """0 when there is none."""
        return float(self._histogram.get_mean_value()) if self.count else 0.0

    @property
    def stddev(self) -> float:
        """0 when there is none."""
        return float(self._histogram.get_stddev()) if self.count else 0.0

    def bins(self) -> dict[int, int]:
        """Upper end of a bin in nanoseconds to how many are in it, without the empty ones."""
        return {
            min(int(item.value_iterated_to), LATENCY_NS_MAX): int(item.count_added_in_this_iter_step)
            for item in self._histogram.get_recorded_iterator()
        }


class Side:
    """One direction of a job: what it read, or what it wrote."""

    def __init__(self) -> None:
        self.asked = 0  # blocks, misses too
        self.blocks = 0
        self.bytes = 0
        self.misses = 0
        self.latencies = Latencies()
        self.series: list[float] = []  # bytes of each interval

    def batch(self, hits: int, misses: int, nbytes: int, seconds: float, begun_s: float, ended_s: float) -> None:
        """A batch that took ``seconds``, from then to then on the job's clock; none of it was there sooner.

        A miss is a quick answer, and has no latency here.
        """
        self.asked += hits + misses
        self.blocks += hits
        self.bytes += nbytes
        self.misses += misses
        if hits:
            self.latencies.record(round(seconds * 1e9), hits)
        self.spread(nbytes, begun_s, ended_s - begun_s)

    def spread(self, nbytes: int, begun_s: float, seconds: float) -> None:
        """Bytes over the intervals of the job's clock in which they were moved."""
        first, last = int(begun_s / SERIES_INTERVAL_S), int((begun_s + seconds) / SERIES_INTERVAL_S)
        self.series.extend([0.0] * (last + 1 - len(self.series)))
        if first == last:
            self.series[first] += nbytes
            return
        for interval in range(first, last + 1):
            begin = max(begun_s, interval * SERIES_INTERVAL_S)
            end = min(begun_s + seconds, (interval + 1) * SERIES_INTERVAL_S)
            self.series[interval] += nbytes * (end - begin) / seconds

    def measured(self, blocks: int, nbytes: int, latency_ns: Mapping[int, int], begun_s: float, seconds: float) -> None:
        """What a program with a clock of its own did in a turn."""
        self.asked += blocks
        self.blocks += blocks
        self.bytes += nbytes
        for value, count in latency_ns.items():
            self.latencies.record(value, count)
        self.spread(nbytes, begun_s, seconds)

    def add(self, other: Side) -> None:
        """What another thread did in the same time."""
        self.asked += other.asked
        self.blocks += other.blocks
        self.bytes += other.bytes
        self.misses += other.misses
        self.latencies.add(other.latencies)
        self.series.extend([0.0] * (len(other.series) - len(self.series)))
        for interval, nbytes in enumerate(other.series):
            self.series[interval] += nbytes


class Tally:
    """Both sides of a job, of one thread or of all together.

    ``seconds`` is what the job's clock showed at the end, for all threads together; ``thread_seconds`` what each spent
    inside the engine's calls, added up. Making and checking content counts in neither.
    """

    def __init__(self) -> None:
        self.read, self.write = Side(), Side()
        self.seconds = 0.0
        self.thread_seconds = 0.0
        self.verified = 0
        self.wrong: list[str] = []
        self.wrong_count = 0
        self.overhead_cpu = CpuTime(0.0, 0.0)

    @property
    def bytes(self) -> int:
        """Moved by both sides."""
        return self.read.bytes + self.write.bytes

    def found(self, wrong: str | None) -> None:
        """A block was looked at."""
        self.verified += 1
        if wrong is not None:
            self.wrong_count += 1
            if len(self.wrong) < 10:
                self.wrong.append(wrong)


def together(tallies: Sequence[Tally], seconds: float) -> Tally:
    """What threads did that ran at the same time, for so long."""
    total = Tally()
    total.seconds = seconds
    for tally in tallies:
        total.read.add(tally.read)
        total.write.add(tally.write)
        total.thread_seconds += tally.thread_seconds
        total.verified += tally.verified
        total.wrong = (total.wrong + tally.wrong)[:10]
        total.wrong_count += tally.wrong_count
        total.overhead_cpu = total.overhead_cpu.plus(tally.overhead_cpu)
    return total
