"""A strict double of CuPy, on NumPy: the array module of the device "cuda" in tests.

`DeviceArray` stands for `cupy.ndarray` and `StandIn` for the module. What CuPy 14 does not
have (tests/golden/cupy14.json: names, keywords, ufunc loops) is refused with the error that
CuPy gives, and so is what differs from NumPy: a NumPy array never turns into a device array
or back by itself, results are arrays also where NumPy makes scalars, flags have no
`writeable`, NumPy's own functions do not take device arrays, nothing warns. Every name,
keyword and dtype that was used is in `record`.

Limits: it computes on the CPU, at once and in order, so it knows nothing of streams, speed
or the last bits of CuPy's sums; temporaries inside one function are not metered.
"""

import contextlib
import json
import types
import weakref
from pathlib import Path

import numpy as np

from tinygrad_helix.backend import installed
from tinygrad_helix.cuda.device import CudaBackend

CUPY = json.loads((Path(__file__).parent / "golden" / "cupy14.json").read_text("utf-8"))

HOST_TO_DEVICE = {"array", "asarray", "asanyarray", "ascontiguousarray", "asfortranarray"}
KEYWORDS = {  # of functions that take **kwargs
    "einsum": {"dtype", "optimize"},
    "pad": {"constant_values", "end_values", "stat_length", "reflect_type"},
}
NUMPY_NAMES = {"shape", "ndim", "size"}  # np.shape(x) and so on ask for no values

record = set()  # (kind, name, keywords, dtypes) of every use
hooks = {}  # memory hooks, by name
used = {"bytes": 0}


class Memory:
    """An allocation of the pool: hooks hear of it, and of its end."""

    def __init__(self, array):
        self.size = array.nbytes
        self.ptr = array.__array_interface__["data"][0] if self.size else 0
        self.rounded = -(-self.size // 512) * 512
        if self.size:
            used["bytes"] += self.rounded
            for hook in list(hooks.values()):
                hook.malloc_postprocess(
                    device_id=0,
                    size=self.size,
                    mem_size=self.rounded,
                    mem_ptr=self.ptr,
                    pmem_id=id(self),
                )

    def __del__(self):
        if self.size:
            used["bytes"] -= self.rounded
            for hook in list(hooks.values()):
                hook.free_postprocess(
                    device_id=0, mem_size=self.rounded, mem_ptr=self.ptr, pmem_id=id(self)
                )


def root(array):
    """The ndarray that owns the buffer."""
    while (base := array.base) is not None:
        if not isinstance(base, np.ndarray):
            base = getattr(base, "base", None)  # as_strided's
            if not isinstance(base, np.ndarray):
                break
        array = base
    return array


owners = weakref.WeakValueDictionary()  # id of an owning ndarray -> its DeviceArray


def wrap(value, known=()):
    """What NumPy returned, as CuPy would: arrays, also where NumPy makes scalars."""
    if isinstance(value, (tuple, list)):
        return type(value)([wrap(v, known) for v in value])
    if isinstance(value, np.generic):
        value = np.array(value)
    if not isinstance(value, np.ndarray):
        return value
    for x in known:
        if x._a is value:
            return x
    owner = owners.get(id(root(value)))
    if owner is not None:
        return owner if owner._a is value else DeviceArray._of(value, owner)
    return DeviceArray._of(value if value.base is None else value.copy(order="K"), None)


def unwrap(value, known, host=False):
    """An argument for NumPy: device arrays taken out, NumPy's own refused."""
    if type(value) is DeviceArray:
        known.append(value)
        return value._a
    if isinstance(value, np.ndarray) and not host:
        raise TypeError(f"Unsupported type {type(value)}")
    if isinstance(value, (tuple, list)):
        return type(value)([unwrap(v, known, host) for v in value])
    if isinstance(value, slice):
        return slice(*(unwrap(v, known) for v in (value.start, value.stop, value.step)))
    return value


def check_keywords(name, parameters, args, kwargs):
    """Raise what CuPy would for keywords and positions that it does not take."""
    open_ended = KEYWORDS.get(name, set())
    for keyword in kwargs:
        if keyword not in parameters and keyword not in open_ended:
            raise TypeError(f"{name}() got an unexpected keyword argument '{keyword}'")
    places = [p for p in parameters if p not in ("*", "**")]
    if "*" not in parameters and len(args) > len(places):
        raise TypeError(f"{name}() takes {len(places)} positional arguments")


def call(kind, name, function, args, kwargs, host=False):
    """Run NumPy's `function` as CuPy's: checked, noted, unwrapped and wrapped."""
    known = []
    plain = [unwrap(a, known, host) for a in args]
    named = {k: unwrap(v, known, host) for k, v in kwargs.items()}
    dtypes = tuple(x.dtype.char for x in known)
    record.add((kind, name, tuple(sorted(kwargs)), dtypes))
    with np.errstate(all="ignore"):
        result = function(*plain, **named)
    return wrap(result, known)


class Ufunc:
    """A CuPy ufunc: `out`, `dtype` and `casting`, and only the loops that CuPy has."""

    def __init__(self, name):
        self.name = name
        loops = [loop.split("->") for loop in CUPY["functions"][name]["loops"]]
        self.loops = [pair for pair in loops if "E" not in pair[0]]  # E: bfloat16
        self.ufunc = getattr(np, name)

    def __call__(self, *args, **kwargs):
        wrong = set(kwargs) - {"out", "dtype", "casting"}
        if wrong:
            raise TypeError(f"Wrong arguments {sorted(wrong)} of cupy.{self.name}")
        result = call("ufunc", self.name, self.ufunc, args, kwargs)
        arrays = [a for a in args[: len(self.loops[0][0])] if type(a) is DeviceArray]
        if len(arrays) == len(self.loops[0][0]) and not kwargs:
            self._check_loop(arrays, result)
        return result

    def _check_loop(self, arrays, result):
        for given, made in self.loops:
            if all(np.can_cast(a.dtype, c) for a, c in zip(arrays, given, strict=True)):
                first = result[0] if isinstance(result, tuple) else result
                if first.dtype.char != made[0] and first.dtype != np.dtype(made[0]):
                    kinds = [a.dtype.name for a in arrays]
                    raise TypeError(f"cupy.{self.name} of {kinds} is {np.dtype(made[0])}")
                return
        raise TypeError(f"cupy.{self.name} has no loop for {[a.dtype for a in arrays]}")

    def __getattr__(self, name):
        raise NotImplementedError(f"the stand-in has no cupy.{self.name}.{name}")


class Flags:
    def __init__(self, flags):
        self._flags = flags

    def __getattr__(self, name):
        if name not in CUPY["flags"]:
            raise AttributeError(f"'Flags' object has no attribute '{name}'")
        return getattr(self._flags, name)


class DeviceArray:
    """A double of cupy.ndarray."""

    __slots__ = ("__weakref__", "_a", "_memory", "base")

    def __new__(cls, shape, dtype=float, memptr=None, strides=None, order="C"):
        return cls._of(np.ndarray(shape, dtype, strides=strides, order=order), None)

    @classmethod
    def _of(cls, array, owner):
        self = object.__new__(cls)
        self._a = array
        self.base = owner
        self._memory = Memory(array) if owner is None else owner._memory
        if owner is None:
            owners[id(array)] = self
        return self

    # --- what it is

    shape = property(lambda self: self._a.shape)
    strides = property(lambda self: self._a.strides)
    dtype = property(lambda self: self._a.dtype)
    ndim = property(lambda self: self._a.ndim)
    size = property(lambda self: self._a.size)
    nbytes = property(lambda self: self._a.nbytes)
    itemsize = property(lambda self: self._a.itemsize)
    flags = property(lambda self: Flags(self._a.flags))
    device = property(lambda self: types.SimpleNamespace(id=0))
    T = property(lambda self: wrap(self._a.T))
    mT = property(lambda self: wrap(self._a.mT))
    real = property(lambda self: wrap(self._a.real))
    flat = property(lambda self: _refuse("flat"))

    @property
    def data(self):
        pointer = self._a.__array_interface__["data"][0]
        return types.SimpleNamespace(ptr=pointer, mem=self._memory, device_id=0)

    # --- to the host

    def get(self, stream=None, order="C", out=None, blocking=True):
        return np.array(self._a, order=order, copy=True)

    def item(self):
        return self._a.item()

    def tolist(self):
        return self._a.tolist()

    def tobytes(self, order="C"):
        return self._a.tobytes(order)

    def __array__(self, *args, **kwargs):
        raise TypeError(
            "Implicit conversion to a NumPy array is not allowed. Please use `.get()` to "
            "construct a NumPy array explicitly."
        )

    def __array_function__(self, function, kinds, args, kwargs):
        name = function.__name__
        if name in NUMPY_NAMES and name in CUPY["functions"]:
            return function(args[0]._a)
        raise TypeError(f"numpy.{name} of a device array: use the device's own")

    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        if method != "__call__":
            raise TypeError(f"numpy.{ufunc.__name__}.{method} of a device array")
        return Ufunc(ufunc.__name__)(*inputs, **kwargs)

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        return Capsule(self)

    def __dlpack_device__(self):
        return (2, 0)

    def __reduce__(self):
        return _unpickle, (self.get(),)

    def __copy__(self):
        return self.copy()

    def __deepcopy__(self, memo):
        return self.copy()

    def __repr__(self):
        return repr(self._a)

    # --- what it does

    def __getattr__(self, name):
        known = CUPY["methods"].get(name)
        if known is None or name.startswith("__") or not isinstance(known, list):
            raise AttributeError(f"'ndarray' object has no attribute '{name}'")

        def method(*args, **kwargs):
            check_keywords(name, known, args, kwargs)
            return call("method", name, getattr(np.ndarray, name), (self, *args), kwargs)

        return method

    def astype(self, dtype, order="K", casting=None, subok=None, copy=True):
        casting = casting or "unsafe"
        options = {"order": order, "casting": casting, "copy": copy}
        return call("method", "astype", np.ndarray.astype, (self, dtype), options)

    def copy(self, order="C"):
        return call("method", "copy", np.ndarray.copy, (self, order), {})

    def _key(self, key):
        known = []
        parts = unwrap(key if isinstance(key, tuple) else (key,), known)
        record.add(("special", "__getitem__", (), tuple(x.dtype.char for x in known)))
        lists = [isinstance(p, list) for p in parts]
        if any(lists):
            parts = tuple(np.asarray(p) if is_l else p for p, is_l in zip(parts, lists))  # noqa: B905
        return parts if any(p is Ellipsis for p in parts) else (*parts, Ellipsis)

    def __getitem__(self, key):
        try:
            return wrap(self._a[self._key(key)])
        except IndexError as error:
            if "out of bounds" in str(error) and not isinstance(key, int):
                raise AssertionError(f"CuPy would not see it: {error}") from None
            raise

    def __setitem__(self, key, value):
        known = []
        self._a[self._key(key)] = unwrap(value, known)

    def __len__(self):
        return len(self._a)

    def __iter__(self):
        return (self[i] for i in range(len(self)))

    def __bool__(self):
        return bool(self._a)

    def __int__(self):
        return int(self._a)

    def __float__(self):
        return float(self._a)

    def __index__(self):
        return self._a.__index__()

    __hash__ = None


def _unpickle(array):
    return DeviceArray._of(array, None)


def _refuse(what):
    raise AttributeError(f"the stand-in has no {what}")


class Capsule:
    def __init__(self, array):
        self.array = array


OPERATORS = {
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "true_divide",
    "floordiv": "floor_divide", "mod": "remainder", "pow": "power", "and": "bitwise_and",
    "or": "bitwise_or", "xor": "bitwise_xor", "lshift": "left_shift",
    "rshift": "right_shift", "matmul": "matmul",
}  # fmt: skip
COMPARISONS = {
    "eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater",
    "ge": "greater_equal",
}  # fmt: skip
UNARY = {"neg": "negative", "abs": "absolute", "invert": "invert"}


def _takes(other):
    return isinstance(other, (DeviceArray, int, float, np.generic, np.ndarray))


def _operators():
    def binary(name):
        def forward(self, other):
            return xp_function(name)(self, other) if _takes(other) else NotImplemented

        def reflected(self, other):
            return xp_function(name)(other, self) if _takes(other) else NotImplemented

        def in_place(self, other):
            return xp_function(name)(self, other, out=self)

        return forward, reflected, in_place

    for short, name in OPERATORS.items():
        forward, reflected, in_place = binary(name)
        setattr(DeviceArray, f"__{short}__", forward)
        setattr(DeviceArray, f"__r{short}__", reflected)
        if short != "matmul":  # CuPy has no __imatmul__
            setattr(DeviceArray, f"__i{short}__", in_place)
    for short, name in COMPARISONS.items():
        setattr(DeviceArray, f"__{short}__", binary(name)[0])
    for short, name in UNARY.items():

        def alone(self, name=name):
            return xp_function(name)(self)

        setattr(DeviceArray, f"__{short}__", alone)


class MemoryHook:
    name = "MemoryHook"

    def __enter__(self):
        if self.name in hooks:
            raise KeyError(f"memory hook {self.name} already exists")
        hooks[self.name] = self
        return self

    def __exit__(self, *_):
        del hooks[self.name]

    def _nothing(self, **facts):
        pass

    alloc_preprocess = alloc_postprocess = malloc_preprocess = _nothing
    malloc_postprocess = free_preprocess = free_postprocess = _nothing


class Stream:
    ptr = 0
    null = None

    def synchronize(self):
        pass

    def is_capturing(self):
        return False

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


class Pool:
    def used_bytes(self):
        return used["bytes"]

    def total_bytes(self):
        return used["bytes"]

    def free_all_blocks(self, stream=None):
        pass


_stream, _pool = Stream(), Pool()

OWN = {  # functions of CuPy that are not NumPy's
    "asnumpy": lambda a, stream=None, order="C", out=None, blocking=True: a.get(),
    "get_array_module": lambda *args: xp,
    "get_default_memory_pool": lambda: _pool,
    "from_dlpack": lambda source, device=None, copy=None: source.__dlpack__().array,
}


def xp_function(name):
    """cupy.<name>, as a checked call of numpy.<name>."""
    known = CUPY["functions"].get(name)
    if isinstance(known, dict):
        return Ufunc(name)
    if name in OWN:
        record.add(("function", name, (), ()))
        return OWN[name]
    function = getattr(np, name)

    def checked(*args, **kwargs):
        check_keywords(name, known, args, kwargs)
        if name in HOST_TO_DEVICE:
            kwargs.pop("blocking", None)
            value = call("function", name, function, args, kwargs, host=True)
            if type(args[0]) is not DeviceArray and isinstance(value, DeviceArray):
                value = DeviceArray._of(value._a.copy(order="K"), None)  # device memory
            return value
        return call("function", name, function, args, kwargs)

    return checked


class Grid:
    def __init__(self, grid):
        self._grid = grid

    def __getitem__(self, key):
        return wrap(list(self._grid[key]))


class StandIn(types.ModuleType):
    """The module: what `import cupy` gives."""

    ndarray = DeviceArray
    __version__ = CUPY["version"]
    lib = types.SimpleNamespace(
        stride_tricks=types.SimpleNamespace(
            as_strided=lambda x, shape=None, strides=None: wrap(
                np.lib.stride_tricks.as_strided(x._a, shape, strides)
            )
        )
    )
    cuda = types.SimpleNamespace(
        MemoryHook=MemoryHook,
        Stream=Stream,
        is_available=lambda: True,
        get_current_stream=lambda: _stream,
        runtime=types.SimpleNamespace(
            driverGetVersion=lambda: 0, runtimeGetVersion=lambda: 0, getDevice=lambda: 0
        ),
    )

    def __getattr__(self, name):
        known = CUPY["functions"].get(name)
        if known is None:
            raise AttributeError(f"module 'cupy' has no attribute '{name}'")
        record.add(("name", name, (), ()))
        if known in ("type", "value"):
            value = getattr(np, name)
            return Grid(value) if name in ("ogrid", "mgrid") else value
        return xp_function(name)


xp = StandIn("cupy")
_operators()


@contextlib.contextmanager
def standin(module_factory=None, blas=None):
    """Within the block the device "cuda" is this double; yields its CudaBackend."""
    backend = CudaBackend(xp, module_factory=module_factory, blas=blas)
    with installed(backend):
        yield backend
