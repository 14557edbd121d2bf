"""Tiles: how a fused node goes through [B, T, ·] arrays, and the memory that it works in.

A node works on one tile after the other, each small enough for the cache, and takes a tile
through all of its steps. Tiles depend on the shape alone and are visited in a fixed order.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ..backend import backend_of

__all__ = ["PIECE", "TILE_ROWS", "Tile", "Tiled", "gemm", "tiles"]

# Most rows of a tile. A step of the HELIX block, forward and backward, over its 12 products
# alone (float32, 2 cores with 1 MiB of L2 each, least of 15 to 25 interleaved runs), at
# (8, 512, 512): 256 rows 1.38, 512 1.32, 1024 1.30, 2048 1.31; at (8, 128, 256): 256 rows
# 1.60, 512 and 1024 1.52. Scratch grows with the rows.
TILE_ROWS = 1024

# Elements of a piece: elementwise work goes over a tile in pieces that stay in the L2 from
# one pass to the next. All elementwise work of that step at (8, 512, 512): 2^14 57 ms,
# 2^15 51, 2^16 48, 2^17 46, beside 225 for the products. (A second Python thread for it
# gains nothing: 0.68 ms against 0.62 for a tile's silu, beside the threads of BLAS.)
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


def tiles(B: int, T: int, D: int) -> list[Tile]:
    """All tiles, in the order of the forward pass.

    Scratch of the HELIX block is 8·D a row of a tile, 8·D² for matrices, and at most 6·D a
    row for three pieces; a tile is as large as keeps that within 5·N·D + 21·D² elements,
    N = B·T. So a short call is one tile, and scratch for a long one is small beside it.
    """
    most = max(1, min(TILE_ROWS, (5 * B * T + 13 * D) // 14))
    result = []
    for b0 in range(0, B, most):
        b1 = min(b0 + most, B)
        group = b1 - b0
        count = -(-T // (most // group))
        for i in range(count):
            t0, t1 = i * T // count, (i + 1) * T // count
            row = b0 * T
            result.append(Tile(b0, b1, t0, t1, row + t0 * group, row + t1 * group))
    return result


def gemm(a: Any, b: Any, out: Any) -> None:
    """out = a b. Every matrix product of a fused node goes through here."""
    backend_of(out).matmul(a, b, out)


class Tiled:
    """The current tile of a [B, T, D] call, and scratch that all tiles share."""

    def __init__(self, xp: Any, shape: tuple[int, int, int], dtype: Any) -> None:
        self.xp = xp
        self.shape = shape
        self.dtype = dtype
        self.tiles = tiles(*shape)
        self.most_rows = max((tile.rows for tile in self.tiles), default=0)
        self.tile = Tile(0, 0, 0, 0, 0, 0)
        self._scratch: dict[str, Any] = {}

    def enter(self, tile: Tile) -> None:
        """Go on to `tile`."""
        self.tile = tile

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

    def add_columns(self, total: Any, a: Any, b: Any) -> None:
        """total += the sums over rows of a·b, both a piece."""
        t = self.temporary(0, a)
        self.xp.multiply(a, b, out=t)
        total += t.sum(axis=0)

    def add_product(self, total: Any, a: Any, b: Any) -> None:
        """total += a b, in a pass over the tiles from the last to the first."""
        if self.tile is self.tiles[-1]:
            gemm(a, b, total)
        else:
            part = self.scratch("product", *total.shape)
            gemm(a, b, part)
            total += part
