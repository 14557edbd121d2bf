"""Tiles: how a fused node goes through [B, T, ·] arrays, and the memory that it works in.

A node takes each tile, small enough for the cache, through all of its steps. Some tiles may
be in work at once (see `lanes`). They depend on the shape alone and are begun in a fixed
order.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from copy import copy
from threading import RLock
from typing import Any, NamedTuple, Self

import numpy

from ..backend import backend_of
from .lanes import Turns, run, threads

__all__ = ["PIECE", "TILE_ROWS", "Tile", "Tiled", "gemm", "tiles"]

# Most rows of a tile. A step of the HELIX block, forward and backward, over its 12 products
# alone, at (8, 512, 512) in float32 on 2 cores with 1 MiB of L2 each, medians of 7
# interleaved runs: 256 rows 1.26, 512 1.36, 1024 1.23. Scratch grows with the rows.
TILE_ROWS = 1024

# The work, N·D², from which tiles are in work at once. Two at once and one after the other
# (each with one thread of BLAS) and all threads of BLAS for one, over the 12 products, on
# the same machine: (8, 512, 512) 1.23, -, 1.34; (8, 128, 256) 2.06, 3.12, 2.20;
# (8, 128, 128) 4.09, 2.74, 2.46. Where steps are short, Python's lock costs more than
# a second thread brings.
LANES_FROM = 2**26

# Elements of a piece: elementwise work goes over a tile in pieces that stay in the L2 from
# one pass to the next. All elementwise work of that step at (8, 512, 512): 2^14 57 ms,
# 2^15 51, 2^16 48, 2^17 46, beside 225 for the products.
PIECE = 2**16


class Tile(NamedTuple):
    """Steps t0..t1 of sequences b0..b1: rows r0..r1 of the arrays that the node makes.

    Those arrays are [N, ·] with their rows in the order of the work: all sequences of a
    step, then the next step. So a tile is one run of rows, and each of its steps is too.
    """

    b0: int
    b1: int
    t0: int
    t1: int
    r0: int
    r1: int

    @property
    def rows(self) -> int:
        return self.r1 - self.r0

    @property
    def group(self) -> int:
        return self.b1 - self.b0

    def of(self, array: Any) -> Any:
        """Its part of a [B, T, ...] array, as a view [steps, group, ...]."""
        return array[self.b0 : self.b1, self.t0 : self.t1].swapaxes(0, 1)

    def steps(self, rows: Any) -> Any:
        """[rows, D] of the tile as [steps, group, D]."""
        return rows.reshape(self.t1 - self.t0, self.group, rows.shape[1])


def _scratch(rows: int, D: int, lanes: int) -> int:
    """Most elements of scratch of the HELIX block with that many tiles in work at once:
    for each tile 8·D a row, three pieces, and a product; for all together 6·D² weights
    with gains."""
    pieces = 3 * min(max(PIECE, 2 * D), 2 * D * rows)
    return lanes * (8 * D * rows + pieces + 2 * D * D) + 6 * D * D


def _room(N: int, D: int) -> int:
    """Elements that scratch may take of a call with N = B·T rows."""
    return 5 * N * D + 21 * D * D


def tiles(B: int, T: int, D: int) -> list[Tile]:
    """All tiles, in the order of the forward pass.

    A tile has as many rows as leave room for the scratch of two in work at once, or, where
    the call is small, for one. So a short call is one tile, and scratch for a long one is
    small beside it.
    """
    N = B * T
    lanes = 2 if N * D * D >= LANES_FROM else 1
    most = TILE_ROWS
    while most > 1 and _scratch(min(most, N), D, lanes) > _room(N, D):
        most -= max(1, most // 16)
    result = []
    for b0 in range(0, B, most):
        b1 = min(b0 + most, B)
        group = b1 - b0
        count = -(-T // (most // group))
        count = min(count + -count % lanes, T)
        for i in range(count):
            t0, t1 = i * T // count, (i + 1) * T // count
            row = b0 * T
            result.append(Tile(b0, b1, t0, t1, row + t0 * group, row + t1 * group))
    return result


def lane_count(N: int, D: int, tiles: list[Tile]) -> int:
    """How many tiles are in work at once: one for each of BLAS's threads, while there is
    room for their scratch. Where that is for half of the threads or less, one tile at a
    time is served by all of them."""
    if N * D * D < LANES_FROM:
        return 1
    rows = max(tile.rows for tile in tiles)
    most = threads()
    lanes = min(most, len(tiles))
    while lanes > 1 and _scratch(rows, D, lanes) > _room(N, D):
        lanes -= 1
    return lanes if 2 * lanes > most else 1


def gemm(a: Any, b: Any, out: Any) -> None:
    """out = a b. Every matrix product of a fused node goes through here."""
    backend_of(out).matmul(a, b, out)


class Tiled:
    """The current tile of a [B, T, D] call, and scratch that all its tiles share.

    Where several tiles are in work at once, each *lane* is one of these: they share what
    the node makes, and have each its own tile and scratch.
    """

    def __init__(self, xp: Any, shape: tuple[int, int, int], dtype: Any) -> None:
        self.xp = xp
        self.shape = shape
        self.dtype = dtype
        self.tiles = tiles(*shape)
        self.most_rows = max((tile.rows for tile in self.tiles), default=0)
        self.tile = Tile(0, 0, 0, 0, 0, 0)
        self.index = 0  # its place in the order of the work
        self.turns = Turns()
        self.lock = RLock()
        self._scratch: dict[str, Any] = {}
        self._others: list[Self] = []  # lanes beside this one
        self._sums: dict[str, Any] = {}

    def lane(self) -> Self:
        """Another lane for the same call."""
        lane = copy(self)
        lane._scratch, lane._sums, lane._others = {}, {}, []
        return lane

    def run(self, work: Callable[[Self], None], backwards: bool = False) -> None:
        """work(lane) for each tile, which the lane has entered, from the first to the last
        or backwards. Some tiles may be in work at once, begun in this order."""
        B, T, D = self.shape
        more = lane_count(B * T, D, self.tiles) - 1 if self.xp is numpy else 0
        while len(self._others) < more:
            self._others.append(self.lane())
        lanes = [self, *self._others[:more]]
        order = self.tiles[::-1] if backwards else self.tiles
        turns = Turns()

        def one(lane: Self, index: int) -> None:
            lane.enter(order[index], index)
            work(lane)
            lane.leave()

        for lane in lanes:
            lane.turns = turns
        run(lanes, turns, len(order), one)

    def enter(self, tile: Tile, index: int) -> None:
        """Go on to `tile`, the one numbered `index` in the order of the work."""
        self.tile, self.index = tile, index

    def turn(self, point: str) -> AbstractContextManager[None]:
        """What every tile does one after the other, in the order of the work."""
        return self.turns.turn(point, self.index)

    def reserve(self, sizes: Mapping[str, int]) -> None:
        """Scratch of {place: elements} as one array: a large one is on huge pages, where
        smaller ones fault in page by page (9 ms less of 300 at (8, 512, 512))."""
        flat = self.xp.empty(sum(sizes.values()), self.dtype)
        start = 0
        for place, size in sizes.items():
            self._scratch[place] = flat[start : start + size]
            start += size

    def scratch(self, place: str, rows: int, columns: int) -> Any:
        """An uninitialised [rows, columns], the same memory for every tile."""
        flat = self._scratch.get(place)
        if flat is None:
            most = max(rows, self.most_rows) * columns
            flat = self._scratch[place] = self.xp.empty(most, self.dtype)
        return flat[: rows * columns].reshape(rows, columns)

    def halves(self, place: str) -> tuple[Any, Any]:
        """A place of 2D columns as two of D: [rows, D] each."""
        both = self.scratch(place, 2 * self.tile.rows, self.shape[2])
        return both[: self.tile.rows], both[self.tile.rows :]

    def pieces(self, columns: int) -> Iterator[slice]:
        """The tile's rows in runs of at most PIECE elements."""
        step = max(1, PIECE // columns)
        rows = self.tile.rows
        return (slice(i, min(i + step, rows)) for i in range(0, rows, step))

    def temporary(self, index: int, like: Any) -> Any:
        """Scratch for one piece of up to 2D columns, with the shape of `like`."""
        place = f"piece {index}"
        if place not in self._scratch:
            widest = 2 * self.shape[2]
            most = min(max(PIECE, widest), self.most_rows * widest)
            self._scratch[place] = self.xp.empty(most, self.dtype)
        return self._scratch[place][: like.size].reshape(like.shape)

    def load(self, array: Any, place: str) -> Any:
        """The tile's rows of a [B, T, D] array of any strides, as contiguous [rows, D]."""
        part, rows = self.tile.of(array), (self.tile.rows, self.shape[2])
        if part.flags.c_contiguous:
            return part.reshape(rows)
        copy = self.scratch(place, *rows)
        self.tile.steps(copy)[...] = part
        return copy

    def add_to(self, total: Any, name: str, rows: Any) -> None:
        """total += the sum over `rows`, a piece, by the time the tile is done."""
        if name not in self._sums:
            self._sums[name] = total, self.xp.zeros(total.shape, self.dtype)
        self._sums[name][1][...] += rows.sum(axis=0)

    def add_columns(self, total: Any, name: str, a: Any, b: Any) -> None:
        """total += the sums over rows of a·b, both a piece."""
        t = self.temporary(0, a)
        self.xp.multiply(a, b, out=t)
        self.add_to(total, name, t)

    def leave(self) -> None:
        """Add the tile's sums to their totals: the end of its work."""
        with self.turn("sums"):
            for total, part in self._sums.values():
                total += part
                part[...] = 0

    def add_product(self, total: Any, name: str, a: Any, b: Any) -> None:
        """total += a b, where total is not filled yet when the first tile comes."""
        if self.index == 0:
            gemm(a, b, total)
            with self.turn(name):
                return
        part = self.scratch("product", *total.shape)
        gemm(a, b, part)
        with self.turn(name):
            total += part
