"""Tensor: an array, where it came from on the tape, and Python's protocols.

Operators, methods named after ops, and `backward` are attached by `ops` from one written
table; `methods.py` declares them for readers and type checkers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from . import memory
from .backend import Backend, backend_of, device_of, get_backend, is_array
from .errors import DeviceError, DTypeError, GraphError, ShapeError
from .tape import Edge, Leaf, Node, plain

__all__ = ["Tensor", "tensor"]


def _is_floating(dtype: Any) -> bool:
    return dtype.kind == "f"


def _convert(data: Any, dtype: Any, backend: Backend, copy: bool) -> Any:
    """`data` as an array: an array keeps its dtype, a list of floats becomes float32."""
    if isinstance(data, Tensor):
        data = data._data
    if dtype is not None:
        try:
            dtype = np.dtype(dtype)
        except TypeError:
            raise DTypeError(
                f"{dtype!r} is no dtype that NumPy knows. Use 'float32', say."
            ) from None
    known = is_array(data) or isinstance(data, np.generic)
    if known:
        array = backend.asarray(data, dtype)
    else:
        try:
            array = backend.asarray(data, dtype)
        except OverflowError as error:
            raise DTypeError(
                f"{dtype or 'no dtype'} cannot hold this {type(data).__name__} ({error}). "
                "Give a wider dtype, or other numbers."
            ) from None
        except (ValueError, TypeError, DeviceError) as error:
            raise ShapeError(
                f"no array can be made of this {type(data).__name__} ({error}). Give "
                "numbers in nested lists of equal lengths, or an array."
            ) from None
        if dtype is None and array.dtype == np.float64:
            array = array.astype(np.float32)
    if array.dtype.kind not in "fiub":
        raise DTypeError(
            f"a Tensor holds floats, ints or bools; got dtype {array.dtype} from "
            f"{type(data).__name__}. Convert the data first."
        )
    if copy and is_array(data) and memory.storage(array) is memory.storage(data):
        array = backend.copy(array)
    return array


if TYPE_CHECKING:
    from .methods import TensorMethods
else:
    TensorMethods = object


class Tensor(TensorMethods):
    """An n-dimensional array that remembers how it was computed.

    `Tensor(array)` aliases the array; lists become float32, int64 or bool; `dtype=` wins.
    `tensor(data)` does the same and always copies. Only floats can require a gradient.

    >>> import tinygrad_helix as th
    >>> x = th.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    >>> (x * x).sum().backward()
    >>> x.grad.numpy().tolist()
    [[2.0, 4.0], [6.0, 8.0]]

    Writes through `.data` or `.numpy()` are not seen by the tape.
    """

    __slots__ = ("__weakref__", "_data", "_edge", "_index", "_requires_grad")
    __array_ufunc__ = None  # ndarray + Tensor asks Tensor

    def __init__(
        self,
        data: Any,
        dtype: Any = None,
        requires_grad: bool = False,
        device: str | None = None,
    ) -> None:
        backend = get_backend(device or device_of(plain(data)))
        self._data = _convert(data, dtype, backend, copy=False)
        self._edge: Leaf | Node | None = None
        self._index = 0
        self._requires_grad = False
        if requires_grad:
            self.requires_grad = True

    @classmethod
    def _of(cls, array: Any, edge: Leaf | Node | None, index: int = 0) -> Tensor:
        """The Tensor of an op's output, or of a saved value on its old edge."""
        self = Tensor.__new__(Tensor)
        self._data = array
        self._index = index
        if edge is not None and array.dtype.kind == "f":
            self._edge = edge
            self._requires_grad = True
        else:
            self._edge = None
            self._requires_grad = False
        return self

    @classmethod
    def _of_edge(cls, array: Any, edge: Edge | None) -> Tensor:
        return cls._of(array, None) if edge is None else cls._of(array, *edge)

    @property
    def edge(self) -> Edge:
        """Where it came from: (node or leaf, the index among the node's outputs)."""
        return (self._edge, self._index)  # type: ignore[return-value]

    # --- what it is

    @property
    def data(self) -> Any:
        """The array itself. The tape does not see what is written to it, except by
        `x.data += …` and its like."""
        return self._data

    @data.setter
    def data(self, value: Any) -> None:
        if value is not self._data:
            raise GraphError(
                f"the array of a Tensor of shape {self.shape} cannot be exchanged: others "
                "may hold it. Write to it with copy_(), inside no_grad()."
            )
        memory.bump(value)  # `x.data += …` has written to it and assigns it back

    @property
    def shape(self) -> tuple[int, ...]:
        return self._data.shape

    @property
    def ndim(self) -> int:
        return self._data.ndim

    @property
    def size(self) -> int:
        return self._data.size

    @property
    def dtype(self) -> Any:
        return self._data.dtype

    @property
    def nbytes(self) -> int:
        """Bytes that the values span (a view's own, not those of its storage)."""
        return self._data.nbytes

    @property
    def device(self) -> str:
        return backend_of(self._data).name

    @property
    def node(self) -> Node | None:
        """The node that made it, None for a leaf."""
        return self._edge if type(self._edge) is Node else None

    @property
    def is_leaf(self) -> bool:
        return type(self._edge) is not Node

    @property
    def version(self) -> int:
        """How often an operation wrote to its storage."""
        return memory.version(self._data)

    @property
    def requires_grad(self) -> bool:
        return self._requires_grad

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        if not self.is_leaf:
            if value:
                return
            raise GraphError(
                f"requires_grad of the result of {self.node!r} cannot be switched off. "
                "Use detach()."
            )
        if value and not _is_floating(self.dtype):
            raise DTypeError(
                f"only floats can require a gradient; this Tensor of shape {self.shape} "
                f"is {self.dtype}. Convert it with astype('float32') first."
            )
        self._requires_grad = bool(value)
        if value and self._edge is None:
            self._edge = Leaf(self)

    @property
    def grad(self) -> Tensor | None:
        """The gradient that sweeps have added up on this leaf (or, after `retain_grad()`,
        on this result)."""
        made = self._edge
        if isinstance(made, Node):
            return made.grads.get(self._index) if made.grads else None
        return made.grad if made is not None else None

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        if value is not None:
            if not isinstance(value, Tensor):
                raise DTypeError(
                    f"a gradient is a Tensor or None; got {type(value).__name__}."
                )
            if value.shape != self.shape or value.dtype != self.dtype:
                raise ShapeError(
                    f"a gradient of shape {value.shape} {value.dtype} does not fit a "
                    f"Tensor of shape {self.shape} {self.dtype}. They must be equal."
                )
            if value.device != self.device:
                raise DeviceError(
                    f"a gradient on {value.device!r} does not fit a Tensor of shape "
                    f"{self.shape} on {self.device!r}. Move it with to({self.device!r})."
                )
            if not self.is_leaf:
                raise GraphError(
                    f"only a leaf owns a gradient; this Tensor was made by {self.node!r}."
                )
        if self._edge is None:
            if value is None:
                return
            self._edge = Leaf(self)
        if type(self._edge) is Leaf:
            self._edge.grad = value

    # --- autodiff

    def detach(self) -> Tensor:
        """The same array, off the tape."""
        return Tensor._of(self._data, None)

    # --- Python's protocols

    def numpy(self) -> np.ndarray:
        """The values as a NumPy array that shares their memory (CPU only)."""
        if self._requires_grad:
            raise GraphError(
                "numpy() of a Tensor that requires a gradient would let NumPy write what "
                "the tape relies on. Use detach().numpy()."
            )
        backend = backend_of(self._data)
        if backend.name != "cpu":
            raise DeviceError(f"numpy() of a Tensor on {backend.name}. Use to('cpu').")
        return self._data

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.numpy(), dtype=dtype, copy=copy)

    def __dlpack__(self, **kwargs: Any) -> Any:
        """The memory itself, for another library: each sees what the other writes there,
        the tape does not."""
        if self._requires_grad:
            raise GraphError(
                "DLPack would share the memory of a Tensor that requires a gradient. Use "
                "detach() first."
            )
        if any(step < 0 for step in self._data.strides):
            raise ShapeError(
                f"DLPack of a Tensor of shape {self.shape} with the strides "
                f"{self._data.strides}: a negative one ends a process that uses PyTorch. "
                "Share a copy: tensor(x)."
            )
        return self._data.__dlpack__(**kwargs)

    def __dlpack_device__(self) -> Any:
        return self._data.__dlpack_device__()

    def item(self) -> Any:
        """The one element as a Python number."""
        if self.size != 1:
            raise ShapeError(
                f"a Tensor of shape {self.shape} has {self.size} elements; item(), "
                "float(), int() and bool() want exactly one. Index or reduce it first."
            )
        return self._data.item()

    def tolist(self) -> Any:
        return self._data.tolist()

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __index__(self) -> int:
        if self.dtype.kind not in "iu":
            raise DTypeError(f"only ints can be an index; this Tensor is {self.dtype}.")
        return self.item()

    def __bool__(self) -> bool:
        return bool(self.item())

    def __len__(self) -> int:
        if self.ndim == 0:
            raise DTypeError("a Tensor of shape () has no length. It is a single number.")
        return self.shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        return (self[i] for i in range(len(self)))

    __hash__ = object.__hash__  # type: ignore[assignment]  # identity, although == is elementwise

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if spec else repr(self)

    def __repr__(self) -> str:
        values = np.array2string(
            backend_of(self._data).to_numpy(self._data),
            separator=", ",
            prefix="Tensor(",
            threshold=100,
        )
        notes = [f"shape={self.shape}", str(self.dtype)]
        if self.device != "cpu":
            notes.append(self.device)
        if self.node is not None:
            notes.append(f"op={self.node.op.name}")
        elif self._requires_grad:
            notes.append("requires_grad")
        return f"Tensor({values}, {', '.join(notes)})"

    def _copied(self, data: Any, grad: Any) -> Tensor:
        """A leaf like this one around `data`, for copy.deepcopy and pickle."""
        new = type(self).__new__(type(self))
        Tensor.__init__(new, data, requires_grad=self._requires_grad)
        new.grad = grad
        return new

    def _only_leaves(self, what: str) -> None:
        if self.node is not None:
            raise GraphError(
                f"{what} of the result of {self.node!r} would copy its whole graph. Use "
                "detach() first; leaves keep value, requires_grad and grad."
            )

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        self._only_leaves("deepcopy")
        grad = None if self.grad is None else self.grad.detach()
        new = memo[id(self)] = self._copied(
            backend_of(self._data).copy(self._data),
            None if grad is None else Tensor(backend_of(grad._data).copy(grad._data)),
        )
        return new

    def __reduce__(self) -> Any:
        self._only_leaves("pickle or copy")
        host = backend_of(self._data).to_numpy
        grad = None if self.grad is None else host(self.grad._data)
        values = type(self), host(self._data), self._requires_grad, grad
        return _unpickle, (*values, self.device)


def _unpickle(
    cls: type[Tensor], data: Any, requires_grad: bool, grad: Any, device: str = "cpu"
) -> Tensor:
    new = cls.__new__(cls)
    Tensor.__init__(new, data, None, requires_grad, device)
    if grad is not None:
        new.grad = Tensor(grad, device=device)
    return new


def tensor(
    data: Any, dtype: Any = None, requires_grad: bool = False, device: str | None = None
) -> Tensor:
    """A Tensor with a copy of `data`: an array, a Tensor, a number, nested lists."""
    backend = get_backend(device or device_of(plain(data)))
    array = _convert(data, dtype, backend, copy=True)
    return Tensor(array, requires_grad=requires_grad)
