"""tinygrad_helix: see, to the byte, what fusing a whole block into one node buys."""

from . import accounting, data, memory, nn, ops, optim, tape, viz
from .alive import why_alive
from .audit import audit
from .checkpoint import checkpoint
from .compare import compare
from .create import (
    arange,
    empty,
    eye,
    from_dlpack,
    from_numpy,
    full,
    linspace,
    manual_seed,
    ones,
    ones_like,
    rand,
    rand_like,
    randn,
    randn_like,
    zeros,
    zeros_like,
)
from .differentiate import backward, grad
from .fused.policy import Budget, Keep
from .gradcheck import gradcheck
from .io import load, save
from .memory import saved_bytes
from .modes import detect_anomaly, enable_grad, is_grad_enabled, no_grad
from .nn import Parameter, helix_block
from .op import Constant, Input, Intermediate, Op, Output, apply
from .ops import (
    add,
    argmax,
    astype,
    broadcast_to,
    cat,
    cross_entropy,
    div,
    embedding,
    equal,
    exp,
    gated_scan,
    getitem,
    greater,
    greater_equal,
    less,
    less_equal,
    log,
    log_softmax,
    matmul,
    max,
    maximum,
    mean,
    minimum,
    mul,
    neg,
    not_equal,
    pow,
    reciprocal,
    reshape,
    rms_norm,
    rsqrt,
    sigmoid,
    silu,
    softmax,
    softplus,
    split,
    sqrt,
    stack,
    sub,
    sum,
    tanh,
    transpose,
    where,
)
from .tape import saved_tensor_hooks
from .tensor import Tensor, tensor

__version__ = "0.1.0"

__all__ = [
    "accounting", "add", "apply", "arange", "argmax", "astype", "audit", "backward",
    "broadcast_to", "Budget", "cat", "checkpoint", "compare", "Constant", "cross_entropy",
    "data", "detect_anomaly", "div", "embedding", "empty", "enable_grad", "equal", "exp",
    "eye", "from_dlpack", "from_numpy", "full", "gated_scan", "getitem", "grad",
    "gradcheck", "greater", "greater_equal", "helix_block", "Input", "Intermediate",
    "is_grad_enabled", "Keep", "less", "less_equal", "linspace", "load", "log",
    "log_softmax", "manual_seed", "matmul", "max", "maximum", "mean", "memory", "minimum",
    "mul", "neg", "nn", "no_grad", "not_equal", "ones", "ones_like", "Op", "ops", "optim",
    "Output", "Parameter", "pow", "rand", "rand_like", "randn", "randn_like", "reciprocal",
    "reshape", "rms_norm", "rsqrt", "save", "saved_bytes", "saved_tensor_hooks", "sigmoid",
    "silu", "softmax", "softplus", "split", "sqrt", "stack", "sub", "sum", "tanh", "tape",
    "Tensor", "tensor", "transpose", "viz", "where", "why_alive", "zeros", "zeros_like",
]  # fmt: skip
