"""Token masking: three ways to take tokens out of models that were not written for it."""

import pytest
import tiny_models
import torch
from torch import nn
from torch.nn import functional as F

from xattn.errors import ArgumentError, ArgumentTypeError, UnsupportedModelError
from xattn.evaluation import control_maps, perturbation, token_masking
from xattn.evaluation._token_ops import hidden_keys

GRID = (4, 4)
FRACTIONS = [0.0, 0.25, 0.5, 0.75]


def relevance(batch=2):
    return torch.randn(batch, *GRID, generator=torch.Generator().manual_seed(4))


@pytest.fixture(scope="module")
def vit():
    return tiny_models.timm_vit()


@pytest.mark.parametrize(
    "build",
    [
        tiny_models.timm_vit,
        tiny_models.torchvision_vit,
        lambda: tiny_models.hf_vit("sdpa"),
        lambda: tiny_models.hf_vit("eager"),
        lambda: tiny_models.timm_vit(reg_tokens=2),
    ],
    ids=["timm", "torchvision", "hf-sdpa", "hf-eager", "registers"],
)
def test_for_a_class_token_a_dropped_token_and_a_hidden_key_are_the_same(build):
    # Whoever is no key is never seen: what happens in its own row cannot reach the class token.
    model, x = build(), tiny_models.images()
    dropped, hidden = (token_masking(model, x, relevance(), 0, how=how, score="logit") for how in ("drop", "attention"))
    assert torch.allclose(dropped.values, hidden.values, atol=1e-4)
    assert dropped.fractions.tolist() == pytest.approx([i / 16 for i in (0, 2, 3, 5, 6, 8, 10, 11, 13, 14, 16)])
    assert (dropped.values[:, 1:] - dropped.values[:, :1]).abs().min() > 1e-5


def test_drop_is_the_model_on_the_other_tokens(vit):
    x, maps = tiny_models.images(), relevance()
    curve = token_masking(vit, x, maps, 1, how="drop", score="logit", fractions=[0.5])
    for i in range(2):
        kept = maps[i].flatten().argsort(descending=True)[8:].sort().values
        tokens = vit._pos_embed(vit.patch_embed(x[i : i + 1]))
        tokens = torch.cat([tokens[:, :1], tokens[:, 1:][:, kept]], 1)
        logits = vit.forward_head(vit.norm(vit.blocks(tokens)))
        assert curve.values[i, 0].item() == pytest.approx(logits[0, 1].item(), abs=1e-5)


def test_fill_is_patch_perturbation(vit):
    x = tiny_models.images()
    ours = token_masking(vit, x, relevance(), fill="mean")
    assert torch.equal(ours.values, perturbation(vit, x, relevance(), unit="patch", fill="mean").values)
    spread = relevance().repeat_interleave(8, 1).repeat_interleave(8, 2)
    assert torch.equal(ours.values, perturbation(vit, x, spread, unit="patch", fill="mean").values)
    assert ours.settings["how"] == "fill"
    assert ours.settings["unit"] == "token"


@pytest.mark.parametrize("how", ["fill", "drop", "attention"])
def test_pixel_maps_are_summed_over_tokens(vit, how):
    x, maps = tiny_models.images(), relevance()
    spread = maps.repeat_interleave(8, 1).repeat_interleave(8, 2)[:, None].expand(-1, 3, -1, -1)
    options = {"how": how, "fractions": FRACTIONS, "score": "logit"}
    expected = token_masking(vit, x, maps, **options)
    for grid in (GRID, None):  # None reads it off the model
        assert torch.allclose(token_masking(vit, x, spread, grid=grid, **options).values, expected.values, atol=1e-5)


@pytest.mark.parametrize("how", ["fill", "drop", "attention"])
@pytest.mark.parametrize("batch_size", [1, 2, 5])
def test_batch_size_bounds_the_rows_and_changes_nothing(vit, how, batch_size):
    rows = []

    def model(x):
        rows.append(len(x))
        return vit(x)

    x = tiny_models.images(3)
    curve = token_masking(model, x, relevance(3), how=how, score="logit", batch_size=batch_size)
    expected = token_masking(vit, x, relevance(3), how=how, score="logit", batch_size=100)
    assert max(rows) <= batch_size
    assert torch.allclose(curve.values, expected.values, atol=1e-4)
    alone = token_masking(vit, x[1:2], relevance(3)[1:2], how=how, score="logit")
    assert torch.allclose(alone.values, expected.values[1:2], atol=1e-4)


@pytest.mark.parametrize("how", ["drop", "attention"])
def test_nothing_is_left_on_the_model(vit, how):
    model = nn.Sequential(vit).train()
    x = tiny_models.images()
    copy = relevance()
    before = model.eval()(x)
    model.train()
    token_masking(model, x, copy, how=how)
    assert model.training
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())
    assert torch.equal(copy, relevance())
    assert torch.equal(model.eval()(x), before)
    assert torch.equal(token_masking(vit, x, copy, how=how).values, token_masking(model, x, copy, how=how).values)
    vit.eval()


def test_nothing_is_left_after_an_error(vit):
    from torch.nn.modules.module import _global_forward_pre_hooks

    def broken(x):
        if broken.calls:
            raise ValueError("no")
        broken.calls += 1
        return vit(x)

    broken.calls = 0
    before = len(_global_forward_pre_hooks)
    with pytest.raises(ValueError, match="no"):
        token_masking(broken, tiny_models.images(), relevance(), how="drop")
    assert len(_global_forward_pre_hooks) == before


def test_models_without_prefix_tokens_keep_a_token():
    model = tiny_models.timm_vit(class_token=False, global_pool="avg")
    for how in ("drop", "attention"):
        curve = token_masking(model, tiny_models.images(), relevance(), how=how)
        assert curve.nominal[-1].item() == pytest.approx(0.9)
        assert curve.values.isfinite().all()
        with pytest.raises(ArgumentError, match="fractions"):
            token_masking(model, tiny_models.images(), relevance(), how=how, fractions=[0, 1])


@pytest.mark.parametrize("how", ["drop", "attention"])
def test_windowed_models_are_refused(how):
    with pytest.raises(UnsupportedModelError, match="window"):
        token_masking(tiny_models.timm_swin(), tiny_models.images(), relevance(), how=how)


def test_positions_inside_blocks_are_refused_by_drop():
    class Relative(nn.Module):
        """Adds a bias for sixteen and one tokens inside the block."""

        def __init__(self, block):
            super().__init__()
            self.block = block
            self.bias = nn.Parameter(torch.zeros(1, 17, 1))

        def forward(self, x, *args, **kwargs):
            return self.block(x + self.bias, *args, **kwargs)

    model = tiny_models.timm_vit()
    model.blocks[0] = Relative(model.blocks[0])
    with pytest.raises(UnsupportedModelError, match="positions"):
        token_masking(model, tiny_models.images(), relevance(), how="drop")
    assert token_masking(model, tiny_models.images(), relevance(), how="attention").values.isfinite().all()


def test_wrong_arguments_are_named(vit):
    x = tiny_models.images()
    for change, names in (
        ({"how": "mask"}, "how"),
        ({"score": "loss"}, "score"),
        ({"grid": (2, 2), "how": "drop"}, "grid"),
        ({"relevance": torch.zeros(2, 3, 3), "how": "drop"}, "relevance"),
        ({"fractions": [2.0], "how": "drop"}, "fractions"),
        ({"layout": "vit", "how": "drop"}, "layout: expected a TokenLayout or None, got str"),
        ({"forward": "demo", "how": "drop"}, "forward: expected a module"),
    ):
        with pytest.raises((ArgumentError, ArgumentTypeError), match=names):
            token_masking(**{"forward": vit, "inputs": x, "relevance": relevance(), **change})


@pytest.mark.parametrize("kind", ["none", "float", "float of one", "bool", "causal"])
def test_hidden_keys_add_to_the_model_s_own_mask(kind):
    generator = torch.Generator().manual_seed(0)
    query, key, value = torch.randn(3, 2, 3, 5, 4, generator=generator)
    hidden = torch.tensor([[False, True, False, False, True], [True, False, False, True, False]])
    masks = {
        "float": torch.randn(2, 1, 5, 5, generator=generator),
        "float of one": torch.randn(5, 5, generator=generator),
        "bool": torch.rand(5, 5, generator=generator) > 0.3,
    }
    mask = masks.get(kind)
    scores = query @ key.transpose(2, 3) / 2
    if kind == "bool":
        scores = scores.masked_fill(~mask, -torch.inf)
    elif kind == "causal":
        scores = scores.masked_fill(torch.ones(5, 5, dtype=torch.bool).triu(1), -torch.inf)
    elif mask is not None:
        scores = scores + mask
    scores = scores.masked_fill(hidden[:, None, None], -torch.inf)
    dead = (scores == -torch.inf).all(-1, keepdim=True)  # sees nothing: zero
    expected = scores.masked_fill(dead, 0).softmax(-1).masked_fill(dead, 0) @ value
    with hidden_keys(hidden, layers=1):
        found = F.scaled_dot_product_attention(query, key, value, mask, is_causal=kind == "causal")
    assert torch.allclose(found, expected, atol=1e-6)


def test_nan_maps_are_undefined(vit):
    maps = relevance()
    maps[0, 0, 0] = torch.nan
    for how in ("fill", "drop", "attention"):
        curve = token_masking(vit, tiny_models.images(), maps, how=how, fractions=FRACTIONS)
        assert curve.undefined.tolist() == [True, False]
        assert curve.values.isnan().all(1).tolist() == [True, False]


def test_a_planted_object_beats_the_controls():
    # Only the tokens of a bright patch off the centre move the logits of this model.
    class Bright(nn.Module):
        def forward(self, x):
            bright = (x > 0.5).float().mean((1, 2, 3))
            return torch.stack([60 * bright - 2, torch.zeros_like(bright)], 1)

    x = torch.zeros(4, 3, 32, 32)
    x[:, :, 16:24, :8] = 1
    planted = torch.zeros(4, *GRID)
    planted[:, 2, 0] = 1
    area = {"planted": token_masking(Bright(), x, planted, 0).auc().mean()}
    for name, maps in control_maps(planted).items():
        area[name] = token_masking(Bright(), x, maps, 0).auc().mean()
    assert area["planted"] < min(area["random"], area["centre"]) < area["inverse"]
    reverse = token_masking(Bright(), x, planted, 0, order="negative")
    assert reverse.higher_is_better
    assert reverse.auc().mean() > area["planted"]


def test_control_maps():
    maps = control_maps(relevance(3), seed=1)
    assert {m.shape for m in maps.values()} == {(3, 4, 4)}
    assert torch.equal(maps["inverse"], -relevance(3))
    assert maps["centre"][0, 1:3, 1:3].min() > maps["centre"][0, 0].max()
    assert torch.equal(maps["random"], control_maps(relevance(3), seed=1)["random"])
    assert not torch.equal(maps["random"], control_maps(relevance(3), seed=2)["random"])
