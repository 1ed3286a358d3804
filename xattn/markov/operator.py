"""Attention chains of long sequences, from queries and keys alone: products in place of the matrix."""

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Literal

import torch
from torch import Tensor

from xattn.errors import ArgumentError
from xattn.markov import _operator_chains as chains
from xattn.markov._numeric import plain
from xattn.markov._operator_inputs import OperatorInputs, read_inputs
from xattn.markov._operator_products import DenseProducts, FusedProducts
from xattn.markov.bounce import as_start, check_steps
from xattn.markov.chain import Direction, check_direction, check_float, check_unit, distribution, normalise_mass
from xattn.markov.eigen import Mode, SecondEigenvalue, check_options, second_eigenvalue
from xattn.markov.stationary import MAX_ITERATIONS, Stationary, stationary

MATERIALIZED_ENTRIES = 2**26
"""Up to this many entries, over all heads, the matrices are built: on a CPU a product is then 20 times cheaper."""


class AttentionOperator:
    """The chains softmax(scale Q K^T) of attention heads, known through their products with vectors.

    The arguments are those of `torch.nn.functional.scaled_dot_product_attention`, without values. Half types are
    computed in float32. Padding leaves the state space: its rows and columns are zero.

    One product costs one attention with the head width rounded up, O(N^2 d) time and O(N d) memory; the constructor
    costs as much once for the normalisers. Built matrices take O(N^2) of both and make products cheap.

    Args:
        query: (..., N, d).
        key: (..., N, d), or fewer heads with `enable_gqa`.
        attn_mask: Bool (true takes part) or additive, (..., 1, N) for keys. Masks (..., N, N) are as large as the
            matrix, which is then built.
        key_padding: Bool, true for padding, as `key_padding_mask` of `nn.MultiheadAttention`: (N,), or one for each
            sample, (B, N), or (..., N).
        is_causal: Whether later keys are hidden.
        scale: Factor of the scores, d ** -0.5 by default.
        enable_gqa: Whether several query heads share a key head.
        materialize: Whether to build the matrices; "auto" does up to 2^26 entries over all heads.

    Raises:
        ArgumentTypeError: If queries or keys are no floating point tensors.
        ArgumentError: If shapes do not fit, all tokens of a sequence are padding, or a dense mask comes with
            materialize=False.

    Example:
        >>> operator = AttentionOperator(torch.zeros(3, 2), torch.zeros(3, 2))
        >>> operator.rmatvec(torch.tensor([1.0, 0.0, 0.0]))
        tensor([0.3333, 0.3333, 0.3333])
    """

    def __init__(
        self,
        query: Tensor,
        key: Tensor,
        *,
        attn_mask: Tensor | None = None,
        key_padding: Tensor | None = None,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
        materialize: Literal["auto"] | bool = "auto",
    ) -> None:
        if materialize not in ("auto", True, False):
            raise ArgumentError(f'materialize: expected "auto", True or False, got {materialize!r}')
        check_float(query, "query")
        with plain(query.device.type):
            inputs = read_inputs(query, key, attn_mask, key_padding, is_causal, scale, enable_gqa)
            if inputs.dense_mask is not None and materialize is False:
                raise ArgumentError(
                    "attn_mask: a mask (..., N, N) is as large as the matrix; expected one over keys, (..., 1, N), or "
                    "key_padding and is_causal, for materialize=False"
                )
            self.batch, self.states = inputs.batch, inputs.states
            self._like, self._valid = torch.zeros_like(inputs.query[:, :, 0]), inputs.valid
            self._products = self._build(inputs, materialize)

    def _build(self, inputs: OperatorInputs, materialize: Literal["auto"] | bool) -> DenseProducts | FusedProducts:
        small = len(inputs.query) * self.states**2 <= MATERIALIZED_ENTRIES
        if materialize is True or inputs.dense_mask is not None or (materialize == "auto" and small):
            return DenseProducts(inputs.matrix())
        return FusedProducts.of(inputs.query, inputs.key, inputs.bias, inputs.valid, inputs.is_causal)

    @property
    def is_materialized(self) -> bool:
        """Whether the matrices exist."""
        return isinstance(self._products, DenseProducts)

    @property
    def shape(self) -> torch.Size:
        """(..., N, N)."""
        return torch.Size((*self.batch, self.states, self.states))

    def matvec(self, x: Tensor) -> Tensor:
        """A x for one vector per chain, (..., N), or several, (..., k, N)."""
        return self._product(x, "x", self._products.forward)

    def rmatvec(self, v: Tensor) -> Tensor:
        """Row vectors times A, one step from query to key: one per chain, (..., N), or several, (..., k, N)."""
        return self._product(v, "v", self._products.transposed)

    def token_rank(
        self,
        alpha: float = 0.99,
        personalization: Tensor | None = None,
        direction: Direction = "forward",
        tol: float = 1e-6,
        *,
        max_iterations: int = MAX_ITERATIONS,
    ) -> Stationary:
        """TokenRank of every chain; the arguments are those of `stationary`, padding gets zero.

        Without the matrix it takes one product for each iteration, mostly 10 to 100 of them; `error_bound` is then that
        for the chain as the kernel computes it, and at alpha = 1 there is none (it is 2).

        Raises:
            ArgumentError: See `stationary`; or if the personalization lies on padding alone.
        """
        check_unit(alpha, "alpha")
        check_direction(direction)
        with plain(self._like.device.type):
            p = self._distribution(personalization, "personalization")
            if isinstance(self._products, DenseProducts):
                # Padding that leads to itself is never entered, whatever the direction.
                matrix = self._closed(self._products.matrix, None)
                found = stationary(matrix, alpha, p, direction, tol, max_iterations=max_iterations)
            else:
                found = chains.token_rank(self._products, p, alpha, direction == "backward", tol, max_iterations)
        return Stationary(*(self._shaped(getattr(found, field.name)) for field in fields(found)))

    def bounce(
        self, start: Tensor | int, n: int, direction: Direction = "forward", alpha: float = 1.0, film: bool = False
    ) -> Tensor:
        """Walk n steps: `markov.bounce` at n products; a teleport leads to any token but padding.

        Args:
            start: Distribution over tokens, (N,) or (..., N), or the index of one token.
            n: Number of steps.
            direction: "forward" from query to key, "backward" from key to query.
            alpha: Probability of following the chain in each step.
            film: Return all steps from 0 to n.

        Returns:
            (..., N), or (..., n + 1, N) for a film.

        Raises:
            ArgumentError: See `markov.bounce`.
        """
        check_direction(direction)
        check_unit(alpha, "alpha")
        steps = check_steps(n)
        with plain(self._like.device.type):
            x = self._distribution(as_start(start, self._like), "start")
            uniform, walk = self._distribution(None, "start"), chains.walk(self._products, direction == "backward")
            frames = [x]
            for _ in range(steps):
                x = walk.step(x)
                if alpha < 1:
                    x = alpha * x + (1 - alpha) * uniform * frames[-1].sum(-1, keepdim=True)
                frames = [*frames, x] if film else [x]
        return self._shaped(torch.stack(frames, 1) if film else x)

    def second_eigenvalue(self, rtol: float = 1e-3, mode: Mode = "default") -> SecondEigenvalue:
        """|lambda_2| of every chain without its padding; the arguments are those of `markov.second_eigenvalue`.

        Without the matrix: one pass for causal chains, which have it on their diagonal; else block Arnoldi at one
        product a step (of four vectors, which cost as much as one), mostly 5 to 20 of them, at most 96. There is no
        fall-back then: a chain that has not converged is told by its `residual`.

        Raises:
            ArgumentError: For mode="certified" without the matrix, and see `markov.second_eigenvalue`.
        """
        with plain(self._like.device.type):
            if isinstance(self._products, DenseProducts):
                # Padding that leads elsewhere and is never entered adds nothing but zeros to the spectrum.
                matrix = self._closed(self._products.matrix, self._distribution(None, "start"))
                found = second_eigenvalue(matrix, rtol, mode)
            elif mode == "certified":
                raise ArgumentError("mode: 'certified' squares the matrix; pass materialize=True to the operator")
            else:
                check_options(rtol, mode)
                found = chains.second_eigenvalue(self._products, rtol, 2 if mode == "fast" else 4)
        return SecondEigenvalue(*(self._shaped(getattr(found, field.name)) for field in fields(found)))

    def _product(self, values: Tensor, name: str, product: Callable[[Tensor], Tensor]) -> Tensor:
        values = check_float(values, name).to(self._like)
        several = values.ndim > len(self.batch) + 1
        want = (*self.batch, *values.shape[-2:-1], self.states) if several else (*self.batch, self.states)
        try:
            flat = values.expand(want).reshape(len(self._like), -1, self.states)
        except RuntimeError:
            raise ArgumentError(
                f"{name}: expected a vector (N,), one for each chain {(*self.batch, self.states)}, or several "
                f"{(*self.batch, 'k', self.states)}, got {tuple(values.shape)}"
            ) from None
        with plain(self._like.device.type):
            return product(flat).reshape(want)

    def _distribution(self, values: Tensor | None, name: str) -> Tensor:
        """(B, N), without mass on padding."""
        p = distribution(values, self._like, name)
        try:
            p = p.expand(*self.batch, self.states).reshape(-1, self.states)
        except RuntimeError:
            raise ArgumentError(
                f"{name}: expected a shape that broadcasts to {(*self.batch, self.states)}, got {tuple(p.shape)}"
            ) from None
        return p if self._valid is None else distribution(p * self._valid, self._like, name)

    def _closed(self, matrix: Tensor, elsewhere: Tensor | None) -> Tensor:
        """The matrix with rows for padding, which lead to itself or elsewhere."""
        if self._valid is None:
            return matrix
        padding = (~self._valid).to(matrix.dtype)
        rows = torch.diag_embed(padding) if elsewhere is None else padding.unsqueeze(-1) * elsewhere.unsqueeze(-2)
        return matrix + rows

    def _shaped(self, flat: Tensor) -> Tensor:
        return flat.reshape((*self.batch, *flat.shape[1:]))


def rollout_row(
    operators: Sequence[AttentionOperator],
    start: int = 0,
    residual: float = 0.5,
    weights: Sequence[Tensor] | None = None,
) -> Tensor:
    """The row of one token, mostly the class token, of attention rollout, at one product per layer.

    e_start A_L ... A_1 with A_l = (1 - residual) mean_h A_lh + residual I, walked from the last layer; see
    `markov.Rollout`. Fusing by "max" or "min", or discarding, takes the matrix.

    Args:
        operators: Layers from first to last, each with heads as the last leading dimension, (..., H, N, N).
        start: The token.
        residual: Weight of the identity, in [0, 1].
        weights: (..., H) of the heads for each layer, such as `markov.lambda2_weights`; uniform for None.

    Returns:
        (..., N), summing to one.

    Raises:
        ArgumentError: If there is no layer, a layer has no heads or is of another shape, or the token does not exist.

    Example:
        >>> layer = AttentionOperator(torch.zeros(1, 2, 4), torch.zeros(1, 2, 4))
        >>> rollout_row([layer])
        tensor([0.7500, 0.2500])
    """
    check_unit(residual, "residual")
    if not operators:
        raise ArgumentError("operators: expected at least one layer, got none")
    first = operators[0]
    if not first.batch or any(
        operator.shape[:-3] + operator.shape[-2:] != first.shape[:-3] + first.shape[-2:] for operator in operators
    ):
        shapes = sorted({tuple(operator.shape) for operator in operators})
        raise ArgumentError(f"operators: expected (..., H, N, N), one shape but for the heads, got {shapes}")
    x = as_start(start, first._like).expand(*first.batch[:-1], first.states)
    for layer, operator in reversed(list(enumerate(operators))):
        heads = operator.rmatvec(x.unsqueeze(-2).expand(*operator.batch, operator.states))
        share = heads.new_full((operator.batch[-1],), 1.0) if weights is None else weights[layer].to(heads)
        step = torch.einsum("...h,...hn->...n", share / share.sum(-1, keepdim=True), heads)
        x = normalise_mass((1 - residual) * step + residual * x)
    return x.clone()
