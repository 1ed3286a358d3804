"""Targets and outputs in every form that captum users know."""

import pytest
import torch
from method_cases import case
from transformers.modeling_outputs import BaseModelOutput, SequenceClassifierOutput

from xattn.attributions import CenterPrior, RawAttention
from xattn.attributions._targets import check_target_length, logits_of, resolve_target, scores, slice_target
from xattn.errors import ArgumentError, ArgumentTypeError

LOGITS = torch.tensor([[1.0, 5.0, 2.0], [7.0, 0.0, 3.0]])


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (None, [5.0, 7.0]),
        (2, [2.0, 3.0]),
        ([1, 2], [5.0, 3.0]),
        (torch.tensor([0, 1]), [1.0, 0.0]),
        (torch.tensor(1), [5.0, 0.0]),
        ((1,), [5.0, 0.0]),
        ([(1,), (2,)], [5.0, 3.0]),
    ],
)
def test_every_form_of_target(target, expected):
    assert scores(LOGITS, resolve_target(LOGITS, target)).tolist() == expected


def test_several_output_dimensions():
    logits = torch.arange(12.0).view(2, 2, 3)
    assert scores(logits, resolve_target(logits, (1, 2))).tolist() == [5.0, 11.0]
    assert scores(logits, resolve_target(logits, [(0, 1), (1, 0)])).tolist() == [1.0, 9.0]
    with pytest.raises(ArgumentError, match=r"shape \(2, 2, 3\); expected an index for each of the 2 dimensions"):
        resolve_target(logits, None)
    with pytest.raises(ArgumentError, match="expected 2 indices per sample, got 1"):
        resolve_target(logits, 1)


@pytest.mark.parametrize("shape", [(4,), (4, 1)])
def test_one_output_needs_no_target(shape):
    logits = torch.arange(4.0).view(shape)
    assert scores(logits, resolve_target(logits, None)).tolist() == [0.0, 1.0, 2.0, 3.0]


def test_outputs_that_leave_nothing_to_choose():
    with pytest.raises(ArgumentError, match="leave target out"):
        resolve_target(torch.arange(4.0), 0)
    with pytest.raises(ArgumentError, match="got a single number"):
        resolve_target(torch.tensor(1.0), None)


@pytest.mark.parametrize("target", [3, -1, [0, 3], torch.tensor([5, 0])])
def test_out_of_range_names_the_range(target):
    with pytest.raises(ArgumentError, match=r"target: expected an index in 0\.\.2"):
        resolve_target(LOGITS, target)


@pytest.mark.parametrize(
    ("target", "error"),
    [
        ([0], ArgumentError),
        (torch.tensor([0, 1, 2]), ArgumentError),
        (torch.tensor([0.5, 1.0]), ArgumentTypeError),
        ("cat", ArgumentTypeError),
        (True, ArgumentTypeError),
        ([0.5, 1], ArgumentTypeError),
    ],
)
def test_wrong_forms_are_refused(target, error):
    with pytest.raises(error, match="target: expected"):
        check_target_length(target, 2)


def test_targets_are_cut_with_the_batch():
    assert slice_target([1, 2, 3], 1, 3) == [2, 3]
    assert slice_target(torch.tensor([1, 2, 3]), 0, 2).tolist() == [1, 2]
    assert slice_target(7, 1, 3) == 7


def test_logits_are_found_in_outputs():
    assert logits_of(LOGITS) is LOGITS
    assert logits_of(SequenceClassifierOutput(logits=LOGITS)) is LOGITS
    assert logits_of({"logits": LOGITS}) is LOGITS
    assert logits_of(BaseModelOutput(last_hidden_state=LOGITS)) is None
    with pytest.raises(ArgumentTypeError, match=r"lambda x: model\(x\)\[0\]"):
        logits_of((LOGITS, LOGITS))


def test_gradient_of_a_score_is_one_hot():
    logits = LOGITS.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(scores(logits, resolve_target(logits, [1, 2])).sum(), logits)
    assert gradient.tolist() == [[0, 1, 0], [0, 0, 1]]


@pytest.mark.parametrize("method", [RawAttention, CenterPrior])
def test_a_model_without_logits_serves_methods_that_need_no_class(method):
    this = case("cls")
    features = method(lambda x: BaseModelOutput(last_hidden_state=this.model.forward_features(x)))
    assert features.attribute(this.inputs).shape == this.inputs.shape
