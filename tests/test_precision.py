"""Half, autocast and double: every method against its own float32 map on the models of the package.

Half maps come from weights that were rounded; the float32 maps from the weights as they are. Rules of relevance
propagation that magnify the rounding must say so, and be what they are in float32 for the weights that were rounded.
"""

import copy
import sys
import warnings
from functools import cache

import pytest
import torch
from method_cases import LOOKING, case
from scipy.stats import spearmanr
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from xattn.attributions import AttnLRP, PartialLRP, TransInterp, methods
from xattn.errors import PrecisionWarning
from xattn.models import load, photos
from xattn.models.scenes import Scenes

HALF = [torch.float16, torch.bfloat16]
DECLARED = {"transinterp", "relevance_rollout", "lrp"}  # their rules magnify rounding, and warn
# The chains' own rule: float64 where the device has it, see xattn/markov/_numeric.py.
ROWS_SUMMED_IN_DOUBLE = {
    *("tokenrank", "n_bounce", "lambda2_rollout", "column_sum", "raw_attention", "attention_rollout"),
    *("dino_attention", "gradient_rollout", "class_tokenrank"),
}
needs_backbone = pytest.mark.skipif(
    not photos.backbone_file().is_file() and photos.installed_onnx() is None,
    reason=f"the backbone of `photos` is not here; `{photos.COMMAND}` fetches it",
)
looking_method = pytest.mark.parametrize("method", LOOKING)


@cache
def subject(name, dtype, rounded=None):
    """A module of the package in that type, scenes as it wants them, and the classes it predicts for them.

    With `rounded` its weights and the scenes have been in that type before.
    """
    model = load(name)
    images = torch.stack([model.preprocess(scene.image) for scene in Scenes("test", 3 if name == "demo" else 1)])
    with torch.no_grad():
        target = model.module(images).argmax(-1).tolist()
    module, images = (part.to(rounded or dtype).to(dtype) for part in (copy.deepcopy(model.module), images))
    return module, images, target, model.layout


def explained(method, name, dtype, rounded=None, **kwargs):
    """(B, patches) relevance, and whether it came with a warning that rounding may have decided it."""
    model, images, target, layout = subject(name, dtype, rounded)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        relevance = methods[method](model, layout=layout, **kwargs).attribute(images, target, resolution="patch")
    assert relevance.isfinite().all()
    return relevance.flatten(1), any(issubclass(w.category, PrecisionWarning) for w in caught)


reference = cache(explained)


def rank_correlation(maps, others):
    """Mean over samples; identical constant maps count as 1."""
    pairs = [(a.double(), b.double()) for a, b in zip(maps, others, strict=True)]
    same = [torch.equal(a, b) and a.unique().numel() == 1 for a, b in pairs]
    found = [1.0 if s else spearmanr(*pair).statistic for s, pair in zip(same, pairs, strict=True)]
    return sum(found) / len(found)


def check(method, name, dtype, declared=frozenset(DECLARED), least=0.99):
    expected, _ = reference(method, name, torch.float32, rounded=dtype if method in declared else None)
    half, warned = explained(method, name, dtype)
    assert half.dtype == torch.float32
    assert warned == (method in declared)
    assert rank_correlation(half, expected) > least


@looking_method
@pytest.mark.parametrize("dtype", HALF)
def test_half_precision_ranks_the_patches_of_demo_alike(method, dtype):
    check(method, "demo", dtype)


@needs_backbone
@looking_method
@pytest.mark.parametrize("dtype", HALF)
def test_half_precision_ranks_the_patches_of_photos_alike(method, dtype):
    coarse = {"partial_lrp"} if dtype == torch.bfloat16 else set[str]()
    # These set most patches to zero: one that crosses the cut in the eight bits of bfloat16 changes the rank of all.
    cut = method in ("token_gradcam", "dino_attention") and dtype == torch.bfloat16
    check(method, "photos", dtype, DECLARED | coarse, least=0.94 if cut else 0.99)


@looking_method
def test_autocast_is_respected(method):
    expected, _ = explained(method, "demo", torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        cast, _ = explained(method, "demo", torch.float32)
    assert rank_correlation(cast, expected) > 0.99
    if methods[method].family == "relevance":
        assert torch.equal(cast, expected)  # autocast is off while relevance is recorded
    elif method != "dino_attention":
        assert not torch.equal(cast, expected)


@pytest.mark.filterwarnings("ignore::xattn.errors.PrecisionWarning")
@looking_method
def test_float64_end_to_end(method):
    this = case("cls")
    wide = methods[method](copy.deepcopy(this.model).double())
    result = wide.attribute(this.inputs.double(), resolution="token")
    assert result.dtype == torch.float64
    again = wide.attribute((this.inputs.double() + 1e-11), resolution="token")
    assert not torch.equal(result, again)  # nothing on the way was float32
    expected = methods[method](this.model).attribute(this.inputs, resolution="token")
    assert expected.dtype == torch.float32
    near = 1e-2 if method in DECLARED else 1e-3  # how much these magnify rounding depends on the machine
    torch.testing.assert_close(result.float(), expected, atol=near * float(result.abs().max()), rtol=0)


class _NoDouble(TorchDispatchMode):
    """A device without float64, such as Apple's."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor) and leaf.ndim]
        assert all(tensor.dtype != torch.float64 for tensor in made), func
        return result


@pytest.mark.filterwarnings("ignore::xattn.errors.PrecisionWarning")
@pytest.mark.parametrize("method", [m for m in LOOKING if m not in ROWS_SUMMED_IN_DOUBLE])
def test_nothing_is_float64_unless_asked_for(method):
    this = case("cls")
    with _NoDouble():
        methods[method](this.model).attribute(this.inputs)


@pytest.mark.parametrize(
    "method", sorted(ROWS_SUMMED_IN_DOUBLE - {"lambda2_rollout"})
)  # whose eigenvalues go to the CPU
def test_chains_do_without_float64_where_the_device_has_none(method, monkeypatch):
    this = case("cls")
    expected = methods[method](this.model).attribute(this.inputs)
    for name, module in list(sys.modules.items()):
        if name.startswith("xattn.markov") and hasattr(module, "wide_dtype"):
            monkeypatch.setattr(module, "wide_dtype", lambda device: torch.float32)
    with _NoDouble():
        found = methods[method](this.model).attribute(this.inputs)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("precision", [None, "float64"])
def test_rounded_weights_are_warned_of_at_every_precision(precision):
    model, images, target, layout = subject("demo", torch.bfloat16)
    explainer = TransInterp(model, layout=layout, precision=precision)
    with pytest.warns(PrecisionWarning, match=r"rounding to bfloat16 may.*load the model in float32.*or use AttnLRP"):
        explainer.attribute(images, target)


@needs_backbone
def test_bfloat16_is_too_coarse_for_the_published_rules_on_photos():
    """Partial LRP keeps the ranks in float16 (> .99) and loses them in bfloat16 (.78 on one of two scenes)."""
    _, warned = explained("partial_lrp", "photos", torch.bfloat16)
    assert warned


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("method", [AttnLRP, PartialLRP, TransInterp])
def test_words_in_half_precision(method, dtype):
    this = case("words, padded")
    model = copy.deepcopy(this.model).to(dtype)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        relevance = method(model).attribute(this.inputs, 1, this.args)
    assert relevance.dtype == torch.float32
    assert relevance.isfinite().all()
    assert method is not AttnLRP or not caught
