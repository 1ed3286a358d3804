"""GradCAM on the tokens that enter a block: works for windowed and hierarchical models too."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Self

import torch
from torch import Tensor, nn

from xattn._state import find_modules, undisturbed
from xattn._trace import Call, ModuleTrace, is_attention_module, is_numbered
from xattn.attention import AttentionRecord
from xattn.attributions._forward import ForwardPass, Reducer, Request
from xattn.attributions._targets import Target, logits_of
from xattn.attributions.base import TransformerAttribution
from xattn.errors import ArgumentError, ArgumentTypeError, UnsupportedModelError
from xattn.layout import TokenLayout


class BlockInputs(ModuleTrace):
    """Keeps the tokens that each block with attention was given, with its path, in order of execution."""

    def __init__(self, forward_func: Callable[..., Any]) -> None:
        super().__init__(find_modules(forward_func))
        self.given: dict[str, Tensor] = {}
        self.stream: str | None = None

    def __enter__(self) -> Self:
        self.given.clear()
        self.stream = None
        return super().__enter__()

    def update(self, record: AttentionRecord, layout: TokenLayout) -> None:
        """Note which stream of layers owns the input."""
        self.stream = record.stream

    def tokens(self, layer: int) -> tuple[str, Tensor]:
        """Path and input of a block of the stream that owns the input (of any, for models without such a stream)."""
        prefix = "" if not self.stream else f"{self.stream}."
        own = [(path, tokens) for path, tokens in self.given.items() if path.startswith(prefix)]
        if not own:
            raise UnsupportedModelError(
                "forward_func: no tokens (B, N, D) or (B, h, w, D) enter a numbered block with attention"
            )
        if not -len(own) <= layer < len(own):
            raise ArgumentError(f"layer: expected a block in {-len(own)}..{len(own) - 1}, got {layer}")
        return own[layer]

    def _enter(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        super()._enter(module, args)
        if torch.is_grad_enabled() and self.stack and self.stack[-1].module is module:
            self._follow(self.stack[-1])
        if not (self.stack and self.stack[-1].module is module and is_attention_module(module)):
            return
        block = next((call for call in reversed(self.stack) if is_numbered(call.path)), None)
        tokens = next((x for x in block.args if x.ndim in (3, 4) and x.is_floating_point()), None) if block else None
        read = next((x for x in self.stack[-1].args if x.ndim in (3, 4)), tokens)
        if tokens is not None and tokens.ndim == 4 and read is not None and not _holds(tokens, read):
            return  # channels before the grid, as in MaxViT
        if block is None or tokens is None or block.path in self.given:
            return
        self.given[block.path] = tokens

    def _follow(self, call: Call) -> None:
        """Give tokens that enter a block a gradient before it works on them: a frozen model computes them without."""
        if is_numbered(call.path) and any(is_attention_module(part) for part in call.module.modules()):
            for tokens in call.args:
                is_input = any(tokens is x for x in self.stack[0].args)
                if tokens.ndim in (3, 4) and tokens.is_floating_point() and not (is_input or tokens.requires_grad):
                    tokens.requires_grad_()


def _holds(tokens: Tensor, read: Tensor) -> bool:
    """Whether attention that reads (..., D) can have got it from (B, h, w, D), cut to windows and padded."""
    width = tokens.shape[-1]
    return read.shape[-1] == width and read.numel() >= tokens.numel()


class TokenGradCAM(TransformerAttribution):
    """GradCAM on tokens: channels weighted by the mean gradient of the score over patches.

    w_d = mean_i dy/dX[i, d],  M[i] = max(0, sum_d w_d X[i, d]), X the tokens that enter block `layer`. With the last
    block (the default) patches still have a gradient, which behind it only the token that is read would have.

    Args:
        forward_func: Module or callable.
        layer: Which block with attention; negative counts from the end.
        layout: Roles of the tokens.
    """

    name = "token_gradcam"
    family = "gradient"
    summary = "tokens of the last block, channels weighted by their mean gradient"
    paper = "Selvaraju et al., ICCV 2017"
    is_class_specific = True
    needs_gradient = True
    backwards = 1

    def __init__(self, forward_func: Callable[..., Any], *, layer: int = -1, layout: TokenLayout | None = None) -> None:
        super().__init__(forward_func, layout=layout)
        if not isinstance(layer, int) or isinstance(layer, bool):
            raise ArgumentTypeError(f"layer: expected an integer, got {type(layer).__name__}")
        self.layer = layer

    def _reducer(self) -> Reducer:
        return BlockInputs(self.forward_func)

    def _request(self, reducer: Reducer | None) -> Request:
        assert isinstance(reducer, BlockInputs)
        # Tokens that enter a block were left by the layer before it; what enters the first block, by no layer.
        before = self.layer - 1
        is_first = self.layer == 0
        return replace(super()._request(reducer), around=reducer, graph_from=None if is_first else before)

    def _differentiated(self, forward: ForwardPass, reducer: Any) -> list[Tensor]:  # noqa: ANN401
        return [reducer.tokens(self.layer)[1]]

    def _forward(
        self, inputs: Tensor, target: Target, additional_args: tuple[Any, ...], reducer: Reducer | None
    ) -> ForwardPass:
        assert isinstance(reducer, BlockInputs)
        try:
            return super()._forward(inputs, target, additional_args, reducer)
        except UnsupportedModelError:  # windows or stages: no chain, but tokens on a grid all the same
            forward = self._on_grid(inputs, target, additional_args, reducer)
            self._check(forward)
            return forward

    def _on_grid(
        self, inputs: Tensor, target: Target, additional_args: tuple[Any, ...], reducer: BlockInputs
    ) -> ForwardPass:
        """The forward call of a model whose blocks take (B, h, w, D)."""
        reducer.given.clear()
        with torch.enable_grad(), undisturbed(self.forward_func), reducer:
            logits = logits_of(self.forward_func(inputs, *additional_args))
        path, tokens = reducer.tokens(self.layer)
        if tokens.ndim != 4:
            raise UnsupportedModelError(
                f"forward_func: block {path!r} was given {tuple(tokens.shape)}; expected tokens on a grid (B, h, w, D) "
                "of a windowed or hierarchical model"
            )
        layout = TokenLayout(grid=(tokens.shape[1], tokens.shape[2]))
        return ForwardPass(inputs, additional_args, target, layout, [], None, None, logits)

    def _relevance(self, forward: ForwardPass, reducer: Any) -> Tensor:  # noqa: ANN401
        path, tokens = reducer.tokens(self.layer)
        (gradient,) = forward.gradients([tokens])
        gradient = torch.zeros_like(tokens) if gradient is None else gradient
        patches, slopes = (self._patches(x, forward) for x in (tokens.detach(), gradient))
        if not bool(slopes.any()):
            raise UnsupportedModelError(
                f"layer: the score has no gradient by the patches that enter block {path!r}; choose an earlier block"
            )
        return forward.layout.tokens((forward.patch_mean(slopes, 1) * patches).sum(-1).clamp_min(0))

    def _patches(self, tokens: Tensor, forward: ForwardPass) -> Tensor:
        """(B, patches, D) of (B, N, D), (N, B, D) or (B, h, w, D)."""
        tokens = tokens.flatten(1, 2) if tokens.ndim == 4 else tokens
        if tokens.shape[1] != forward.layout.num_tokens:
            tokens = tokens.transpose(0, 1)
        return tokens[:, forward.layout.num_prefix :]
