"""Names beside the points of a picture."""

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.path import Path
from matplotlib.transforms import Bbox

MeanAndError = tuple[float, float | None]

NUM_ORDERS, NUM_ROUNDS = 12, 3
"""Heuristic: in each round, each name in turn moves to the best place beside all others. The best of several orders, in
which the names take turns, is used."""

LONGEST_WITHOUT_LINE = 12
"""Heuristic: a longer way from a point to its name is drawn as a line. Its unit is that of the sizes of fonts."""

COVERS, CROSSES, HAS_LINE = 1000.0, 200.0, 10.0
"""Heuristic: costs of a name that covers something, of a line that crosses something, and of a line. Each unit of the
way from a point to its name costs 1."""


class Names:
    """Places of names, such that they cover no point, no bar and no other name, and their lines cross nothing."""

    def __init__(self, ax: Axes, points: Mapping[str, tuple[MeanAndError, MeanAndError]]) -> None:
        self._ax, self._size = ax, ax.figure.dpi / 72  # pixels of a point of a font
        self._inside = ax.get_window_extent()
        self._at = {name: ax.transData.transform((x[0], y[0])) for name, (x, y) in points.items()}
        self._covered = {name: list(self._boxes(x, y)) for name, (x, y) in points.items()}
        self._texts = {
            name: ax.annotate(name, (x[0], y[0]), (0, 0), textcoords="offset points", fontsize=7, va="center")
            for name, (x, y) in points.items()
        }
        self._extents = {name: text.get_window_extent() for name, text in self._texts.items()}
        self._offsets: dict[str, tuple[float, float]] = {}
        self._ways = {name: self._sorted_ways(name) for name in points}

    def place(self) -> None:
        """Write each name, with a line to its point if it is far."""
        generator, found = np.random.default_rng(0), {}
        for _ in range(NUM_ORDERS):
            self._offsets, costs = {}, {}
            for _ in range(NUM_ROUNDS):
                for name in generator.permutation([*self._at]).tolist():
                    self._offsets[name], costs[name] = self._best(name)
            found[sum(costs.values())] = self._offsets
        self._offsets = found[min(found)]
        for name, text in self._texts.items():
            text.set_position(self._offsets[name])
            end = self._end(name, self._offsets[name])
            if math.hypot(*end) > LONGEST_WITHOUT_LINE:
                line = {"arrowstyle": "-", "linewidth": 0.5, "color": "0.5", "shrinkA": 0, "shrinkB": 3}
                self._ax.annotate("", text.xy, end, textcoords="offset points", arrowprops=line)

    def _best(self, name: str) -> tuple[tuple[float, float], float]:
        """Return the place of a name with the lowest cost, and this cost."""
        placed = [other for other in self._offsets if other != name]
        names = [self._box(other, self._offsets[other]).padded(4 * self._size, 0) for other in placed]
        lines = [self._line(other, self._offsets[other]) for other in placed]
        points = [part for other, parts in self._covered.items() for part in parts if other != name]
        best, lowest = (0.0, 0.0), math.inf
        for way, _, offset in self._ways[name]:
            if way >= lowest:
                break
            cost = way + COVERS * self._num_covered(name, offset, [*points, *names], lines)
            if cost < lowest:
                cost += CROSSES * self._num_crossed(name, offset, [*points, *names], lines)
            if cost < lowest:
                best, lowest = offset, cost
        return best, lowest

    def _sorted_ways(self, name: str) -> list[tuple[float, float, tuple[float, float]]]:
        """Return all places of a name, the nearest first, each with the cost of its way and its height."""
        found = []
        for offset in offsets(self._extents[name].width / self._size):
            way = math.hypot(*self._end(name, offset))
            found.append((way + HAS_LINE * (way > LONGEST_WITHOUT_LINE), abs(offset[1]), offset))
        return sorted(found)

    def _num_covered(self, name: str, offset: tuple[float, float], boxes: Sequence[Bbox], lines: Sequence[Path]) -> int:
        """Return how many boxes and lines a name covers at this place; a part outside of the axes counts as one."""
        box, inside = self._box(name, offset), self._inside
        is_outside = not (inside.x0 <= box.x0 and box.x1 <= inside.x1 and inside.y0 <= box.y0 and box.y1 <= inside.y1)
        num_lines = sum(line.intersects_bbox(box, filled=False) for line in lines)
        return is_outside + box.count_overlaps([*boxes, *self._covered[name]]) + num_lines

    def _num_crossed(self, name: str, offset: tuple[float, float], boxes: Sequence[Bbox], lines: Sequence[Path]) -> int:
        """Return how many boxes and other lines the line to a name crosses at this place."""
        own = self._line(name, offset)
        num_boxes = sum(own.intersects_bbox(box, filled=False) for box in boxes)
        return num_boxes + sum(own.intersects_path(line, filled=False) for line in lines)

    def _end(self, name: str, offset: tuple[float, float]) -> tuple[float, float]:
        """Return the nearest place of a name, as an offset from its point."""
        (right, up), width = offset, self._extents[name].width / self._size
        return min(max(0.0, right), right + width), math.copysign(max(0.0, abs(up) - 4), up)

    def _box(self, name: str, offset: tuple[float, float]) -> Bbox:
        return self._extents[name].translated(self._size * offset[0], self._size * offset[1])

    def _line(self, name: str, offset: tuple[float, float]) -> Path:
        """Return the line from a point to its name, in pixels."""
        return Path([self._at[name], self._at[name] + self._size * np.array(self._end(name, offset))])

    def _boxes(self, x: MeanAndError, y: MeanAndError) -> Iterator[Bbox]:
        """Yield boxes around a point and around its two bars, in pixels."""
        for wide, high, edge in ((x[1] or 0.0, 0.0, 1.0), (0.0, y[1] or 0.0, 1.0), (0.0, 0.0, 3.0)):
            ends: Sequence[tuple[float, float]] = [(x[0] - wide, y[0] - high), (x[0] + wide, y[0] + high)]
            yield Bbox(self._ax.transData.transform(ends)).padded(edge * self._size)


def offsets(width: float) -> Iterator[tuple[float, float]]:
    """Places of a name, in points of a font from its point to the middle of the left edge of the name."""
    for up in range(-80, 81, 4):
        for right in range(0, 61, 4):
            yield right + 7.0, float(up)
            yield -right - 7.0 - width, float(up)
        yield -width / 2, float(up)
