"""Gradient-weighted attention over two sequences: co-attention and encoder-decoder models."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from captum.attr import Attribution
from captum.log import log_usage
from torch import Tensor

from xattn._state import find_modules, outside_inference, undisturbed
from xattn.attention import AttentionRecord, AttentionTap
from xattn.attributions._sequences import SequencesOf, find_sequences
from xattn.attributions._targets import Target, logits_of, required, resolve_target, scores
from xattn.attributions.base import as_args
from xattn.errors import ArgumentTypeError, UnsupportedModelError


@dataclass(frozen=True)
class Step:
    """One attention of a model over two sequences.

    Attributes:
        matrix: (B, n, m) mean over heads of (gradient * attention)+.
        queries: Which sequence asks, 0 or 1.
        keys: Which one answers.
    """

    matrix: Tensor
    queries: int
    keys: int


def bimodal_relevance(steps: Sequence[Step], lengths: tuple[int, int]) -> dict[tuple[int, int], Tensor]:
    """R_ss, R_sq, R_qs and R_qq of Chefer et al., ICCV 2021, after all steps in order of execution.

    Start: R_ss = R_qq = I, R_sq = R_qs = 0. For self-attention A of s (equations 6 and 7):
    R_ss += A R_ss, R_sq += A R_sq. For attention A of s to q (equations 10 and 11):
    R_sq += N(R_ss)^T A N(R_qq), R_ss += A R_qs, where N divides the rows of R - I by their sums and adds I back
    (equations 8 and 9). Two crossings in a row in opposite directions are one co-attention: both start from the same
    relevances, as in the published code.

    Args:
        steps: At least one, on one device.
        lengths: Number of tokens of sequence 0 and 1.

    Returns:
        (B, n, m) by the pair of sequences.
    """
    first = steps[0].matrix
    batch = first.shape[0]
    state = {(i, i): torch.eye(n).to(first).expand(batch, n, n) for i, n in enumerate(lengths)}
    state |= {(i, 1 - i): first.new_zeros(batch, lengths[i], lengths[1 - i]) for i in (0, 1)}
    for together in _co_attentions(steps):
        before = dict(state)
        for step in together:
            s, a = step.queries, step.matrix
            q = 1 - s
            if step.keys == s:
                added = {(s, s): a @ before[s, s], (s, q): a @ before[s, q]}
            else:
                across = normalized(before[s, s]).mT @ a @ normalized(before[q, q])
                added = {(s, q): across, (s, s): a @ before[q, s]}
            for pair, more in added.items():
                state[pair] = state[pair] + more
    return state


def normalized(relevance: Tensor) -> Tensor:
    """Equations 8 and 9: the rows of R - I divided by their sums, plus I; rows without relevance stay those of I."""
    identity = torch.eye(relevance.shape[-1]).to(relevance)
    received = relevance - identity
    sums = received.sum(-1, keepdim=True)
    return torch.where(sums > 0, received / torch.where(sums > 0, sums, 1), 0) + identity


def _co_attentions(steps: Sequence[Step]) -> list[list[Step]]:
    """Steps one by one, opposite neighbours across both sequences together."""
    groups: list[list[Step]] = []
    for step in steps:
        last = groups[-1] if groups else []
        crossing = step.queries != step.keys
        if crossing and len(last) == 1 and (last[0].queries, last[0].keys) == (step.keys, step.queries):
            last.append(step)
        else:
            groups.append([step])
    return groups


class BimodalAttention(Attribution):  # type: ignore[misc]  # captum is untyped here
    """Generic attention for two sequences that attend to each other: GenericAttention for two modalities.

    For models with co-attention (LXMERT, ViLBERT) and with an encoder and a decoder (BART, T5, image-grounded text
    encoders); the rules are those of `bimodal_relevance`. A model that joins both modalities in one sequence
    (ViLT, VisualBERT) is a case for `GenericAttention` on the image, given a `TokenLayout` of all its tokens and
    resolution="token"; each tower of CLIP is one as it is.

    The rows of the tokens that the score is read from are shown: of the last attention on which the score depends,
    those with a gradient, averaged with equal weights.

    Args:
        forward_func: Module or callable that returns logits.
        sequences_of: Tells for a record the names of the sequences that ask and that answer; needed only where
            neither lengths nor stacks of layers tell them apart.

    Example:
        >>> import torch, transformers
        >>> sizes = {"d_model": 8, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": 20}
        >>> heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
        >>> model = transformers.BartForSequenceClassification(transformers.BartConfig(**sizes, **heads)).eval()
        >>> maps = BimodalAttention(model).attribute(torch.tensor([[0, 5, 6, 2]]), target=1)
        >>> {name: tuple(relevance.shape) for name, relevance in maps.items()}
        {'model.encoder.layers': (1, 4), 'model.decoder.layers': (1, 4)}
    """

    def __init__(self, forward_func: Callable[..., Any], *, sequences_of: SequencesOf | None = None) -> None:
        if not callable(forward_func):
            raise ArgumentTypeError(f"forward_func: expected a module or a callable, got {type(forward_func).__name__}")
        if sequences_of is not None and not callable(sequences_of):
            raise ArgumentTypeError(f"sequences_of: expected a callable or None, got {type(sequences_of).__name__}")
        super().__init__(forward_func)
        self.sequences_of = sequences_of

    @log_usage()  # type: ignore[untyped-decorator]
    def attribute(
        self,
        inputs: Tensor | tuple[Tensor, ...],
        target: Target = None,
        additional_forward_args: Any = None,  # noqa: ANN401
    ) -> dict[str, Tensor]:
        """Relevance of the tokens of both sequences.

        Args:
            inputs: One tensor, or one for each modality, handed to the model in this order.
            target: As in captum; None is the predicted class.
            additional_forward_args: Further positional arguments of the model.

        Returns:
            (B, tokens) >= 0 for each sequence, float32 at least; named by the path of its first stack of layers, or
            as `sequences_of` does, in order of execution.

        Raises:
            ArgumentError: If the target does not fit, or the sequences cannot be told apart.
            UnsupportedModelError: If there are not two sequences of which one attends to the other, or the score does
                not depend on attention.
        """
        tensors = inputs if isinstance(inputs, tuple) else (inputs,)
        for tensor in tensors:
            if not isinstance(tensor, Tensor):
                raise ArgumentTypeError(f"inputs: expected a tensor or a tuple of them, got {type(tensor).__name__}")
        with torch.inference_mode(False), torch.enable_grad():
            arguments = (*tensors, *as_args(additional_forward_args))
            records, score = self._record(outside_inference(arguments), target)
            names, pairs = find_sequences(records, self.sequences_of)
            matrices = [record.attention for record in records]
            gradients = torch.autograd.grad(
                score, matrices, torch.ones_like(score), allow_unused=True, materialize_grads=True
            )
        with torch.no_grad():
            return self._rows(records, gradients, names, pairs)

    def _record(self, arguments: tuple[Any, ...], target: Target) -> tuple[list[AttentionRecord], Tensor]:
        """Every attention of one forward call, and (B,) the target's score."""
        modules = find_modules(self.forward_func)
        records: list[AttentionRecord] = []
        with (
            undisturbed(self.forward_func),
            AttentionTap(consumer=records.append, batch_size=len(arguments[0]), require_grad=True, roots=modules),
        ):
            logits = logits_of(self.forward_func(*arguments))
        logits = required(logits)
        score = scores(logits, resolve_target(logits, target))
        if not score.requires_grad:
            raise UnsupportedModelError("forward_func: the score does not depend on attention, or cuts its gradient")
        return records, score

    def _rows(
        self,
        records: Sequence[AttentionRecord],
        gradients: Sequence[Tensor],
        names: tuple[str, str],
        pairs: Sequence[tuple[int, int]],
    ) -> dict[str, Tensor]:
        used = [index for index, gradient in enumerate(gradients) if bool(gradient.any())]
        if not used:
            raise UnsupportedModelError("forward_func: the gradient of the score by all attention is zero")
        lengths = [0, 0]
        steps = []
        for record, gradient, (s, q) in zip(records, gradients, pairs, strict=True):
            weighted = (gradient * record.attention.detach()).clamp_min(0).mean(1)
            steps.append(Step(weighted, s, q))
            lengths[s], lengths[q] = weighted.shape[1:]
        state = bimodal_relevance(steps, (lengths[0], lengths[1]))
        read = gradients[used[-1]].abs().amax((1, 3)) > 0
        weights = read / read.sum(-1, keepdim=True).clamp_min(1)
        row, s = weights.to(steps[0].matrix), pairs[used[-1]][0]
        return {name: torch.einsum("bi,bij->bj", row, state[s, i]) for i, name in enumerate(names)}
