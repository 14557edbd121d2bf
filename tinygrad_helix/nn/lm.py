"""HelixLM: a byte-level language model of HELIX blocks."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import ops
from ..errors import ShapeError
from ..fused.policy import Policy
from ..tensor import Tensor
from .helix import HelixBlock
from .layers import Embedding, RMSNorm, generator_or_default, size
from .module import Module, float_dtype

__all__ = ["HelixLM"]


class HelixLM(Module):
    """logits = rms(block_L(… block_1(E[tokens]) …)) · gain · Eᵀ

    tokens [B, T] of ints in 0..V-1 give logits [B, T, V]; the head is tied to the
    embedding E [V, D], which is one parameter, `embed.weight`. `mode`, `policy` and `eps`
    are those of `helix_block`. Parameters: V·D + layers·(7D² + 5D) + D.

    What the tape keeps of a loss (float32, all gradients wanted): 16 bytes a token for
    tokens and targets, what each block's policy says (its x is the output of the layer
    before, and counted there alone), three times D for the last normalisation and the
    head, and the logits, V a token. `predict_saved` is that sum, exactly.

    Errors: ShapeError for tokens of another rank, for states that do not fit; what
    `embedding`, `helix_block` and `cross_entropy` raise.

    The tied head is that of Press and Wolf, "Using the output embedding to improve
    language models", 2017.

    >>> import tinygrad_helix as th
    >>> model = th.nn.HelixLM(vocab=256, dim=16, layers=2)
    >>> loss = model.loss([[1, 2, 3]], [[2, 3, 4]])
    >>> th.saved_bytes(loss) == sum(model.predict_saved(1, 3).values())
    True
    """

    def __init__(
        self,
        vocab: int = 256,
        dim: int = 128,
        layers: int = 2,
        *,
        mode: str = "fused",
        policy: Policy = None,
        eps: float = 1e-5,
        dtype: Any = np.float32,
        generator: np.random.Generator | None = None,
        device: str | None = None,
    ) -> None:
        dtype = float_dtype("HelixLM", dtype)
        generator = generator_or_default("HelixLM", generator)
        self.embed = Embedding(
            size("HelixLM", "vocab", vocab),
            size("HelixLM", "dim", dim),
            dtype=dtype,
            generator=generator,
            device=device,
        )
        self.blocks = [
            HelixBlock(
                dim,
                mode=mode,
                policy=policy,
                eps=eps,
                dtype=dtype,
                generator=generator,
                device=device,
            )
            for _ in range(size("HelixLM", "layers", layers))
        ]
        self.norm = RMSNorm(dim, eps, dtype=dtype, device=device)

    def forward(
        self, tokens: Any, states: Sequence[Any] | None = None, return_state: bool = False
    ) -> Any:
        """The logits [B, T, V], and with `return_state` the states of all blocks.

        `states` are those that an earlier call returned, [B, D] a block: a text may be
        read in pieces, or token by token, and gives the same logits.
        """
        if not hasattr(tokens, "shape"):
            tokens = Tensor(tokens, device=self.embed.weight.device)
        if len(tokens.shape) != 2:
            raise ShapeError(f"HelixLM takes tokens of shape [B, T]; got {tokens.shape}.")
        if states is not None and len(states) != len(self.blocks):
            raise ShapeError(
                f"HelixLM of {len(self.blocks)} blocks takes as many states; got "
                f"{len(states)}. Pass on what return_state=True returned."
            )
        x = self.embed(tokens)  # [B, T, D]
        last = []
        for i, block in enumerate(self.blocks):
            h0 = None if states is None else states[i]
            if return_state:
                x, state = block(x, h0=h0, return_state=True)
                last.append(state)
            else:
                x = block(x, h0=h0)
        logits = ops.matmul(self.norm(x), self.embed.weight.T)
        return (logits, last) if return_state else logits

    def loss(self, tokens: Any, targets: Any) -> Any:
        """The mean cross entropy of the targets [B, T], in nats a token."""
        return ops.cross_entropy(self(tokens), targets)

    def predict_saved(self, batch: int, seq: int) -> dict[str, int]:
        """{where: bytes} that the tape keeps of a loss of int64 tokens [batch, seq].

        From shapes, dtype, mode, policy and which parameters are frozen; parameters aside.
        """
        vocab, dim = self.embed.weight.shape
        dtype = self.embed.weight.dtype
        shape = (batch, seq, dim)
        saved = _named("embed", self.embed.predict_saved((batch, seq), np.int64))
        needs = self.embed.weight.requires_grad  # of what reaches the next layer
        for i, block in enumerate(self.blocks):
            saved |= _named(f"blocks.{i}", block.predict_saved(shape, dtype, needs))
            needs = needs or any(p.requires_grad for p in block.parameters())
        saved |= _named("norm", self.norm.predict_saved(shape, dtype, needs))
        needs = needs or self.norm.gain.requires_grad
        rows = batch * seq
        if self.embed.weight.requires_grad:
            saved["head.matmul.a"] = rows * dim * dtype.itemsize
        if needs:
            saved["loss.logits"] = rows * vocab * dtype.itemsize
            saved["loss.target"] = rows * 8
        return saved


def _named(prefix: str, saved: dict[str, int]) -> dict[str, int]:
    return {f"{prefix}.{label}": nbytes for label, nbytes in saved.items()}
