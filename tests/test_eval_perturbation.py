"""Perturbation curves: the published numbers, closed forms for linear models, and what must not matter."""

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import nn

from xattn.errors import ArgumentError, ArgumentTypeError
from xattn.evaluation import (
    Removal,
    average_drop_increase,
    deletion,
    insertion,
    perturbation,
    perturbation_2021,
    perturbation_curves,
    road,
)

REFERENCE = Path(__file__).parent / "reference"
SIDE = 8


class Linear(nn.Module):
    """Logits linear in the pixels."""

    def __init__(self, classes=3, side=SIDE, channels=3):
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.weight = nn.Parameter(torch.randn(classes, channels, side, side, generator=generator) * 0.3)

    def forward(self, x):
        return torch.einsum("bchw,kchw->bk", x, self.weight.to(x.dtype))


@pytest.fixture(scope="module")
def linear():
    return Linear()


def images(batch=3, side=SIDE, dtype=torch.float32):
    return torch.rand(batch, 3, side, side, generator=torch.Generator().manual_seed(0)).to(dtype)


def maps(batch=3, side=SIDE):
    return torch.randn(batch, side, side, generator=torch.Generator().manual_seed(1))


def captured(forward=None, **kwargs):
    """The images that the model received, without clean ones, and the curve.

    Those with everything removed come first, if a step asks for them, then the others in the order (step, sample).
    """
    seen = []

    def model(x):
        seen.append(x.clone())
        return torch.stack([x.mean((1, 2, 3)), x.amax((1, 2, 3))], 1)

    x = kwargs.pop("inputs", images(2))
    curve = perturbation(model, x, kwargs.pop("relevance", maps(2)), **kwargs)
    return torch.cat(seen)[len(x) :], curve, x


# -- the published evaluation ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def published():
    from timm.models.vision_transformer import VisionTransformer

    meta = json.loads((REFERENCE / "lrp_vit" / "meta.json").read_text())
    with torch.random.fork_rng(devices=[]):
        model = VisionTransformer(**meta["model"]["timm_VisionTransformer_kwargs"]).eval()
    model.load_state_dict(load_file(REFERENCE / "lrp_vit" / "weights.safetensors"))
    data = load_file(REFERENCE / "metrics" / "inputs.safetensors")
    expected = load_file(REFERENCE / "metrics" / "expected.safetensors")
    limits = json.loads((REFERENCE / "metrics" / "meta.json").read_text())["perturbation"]
    return model, data, expected, limits


@pytest.mark.parametrize("order", ["positive", "negative"])
def test_published_quantities(published, order):
    model, data, expected, limits = published
    raw, target = data["perturbation.images_raw"], data["perturbation.target"]
    curves = perturbation_2021(
        model, (raw - 0.5) / 0.5, data["perturbation.saliency"], target, order=order, mean=[0.5], std=[0.5]
    )
    key = f"perturbation.{order}.per."
    clear = expected[key + "tie_at_cut"].T == 0
    names = {
        "hit": ("hits", 0),
        "dissimilarity": ("dissimilarities", "dissimilarity"),
        "logit_difference": ("logit_diff", "logit_diff"),
        "probability_difference": ("prob_diff", "prob_diff"),
    }
    for name, (stored, tolerance) in names.items():
        ours, theirs = curves[name].values, expected[f"{key}perturbations_{stored}"].T
        limit = limits["tolerances"][tolerance] if tolerance else 0
        assert (ours[:, 1:] - theirs)[clear].abs().max() <= limit, name
    assert torch.equal(curves["hit"].values[:, 0], expected[key + "model_hits"].float())
    removed = (curves["hit"].fractions[1:] * raw[0, 0].numel()).round().int().tolist()
    assert removed == limits["pixels_removed"]


@pytest.mark.parametrize("order", ["positive", "negative"])
def test_published_pixels_are_removed(published, order):
    _, data, expected, limits = published
    saliency = data["perturbation.saliency"]
    x = torch.ones(len(saliency), 3, 32, 32)
    seen = []

    def model(batch):
        seen.append(batch.clone())
        return batch.mean((2, 3))

    perturbation_2021(model, x, saliency, 0, order=order)
    ours = (torch.cat(seen[1:]) == 0).all(1).view(9, len(saliency), 32, 32).transpose(0, 1)
    assert ours.sum((2, 3)).tolist() == [limits["pixels_removed"]] * len(saliency)
    theirs = expected[f"perturbation.{order}.per.removed_pixels"].transpose(0, 1).bool()
    clear = expected[f"perturbation.{order}.per.tie_at_cut"].T == 0
    assert torch.equal(ours[clear], theirs[clear])


# -- what is removed ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fill", ["black", "mean", "blur", "noise", "linear"])
def test_whole_pixels_exactly_as_many_as_asked(fill):
    fractions = [0.1, 0.33, 0.5, 0.99]
    seen, curve, x = captured(fractions=fractions, fill=fill)
    changed = (seen.view(4, 2, 3, SIDE, SIDE) != x).sum((3, 4))
    counts = [round(f * SIDE * SIDE) for f in fractions]
    assert changed.tolist() == [[[count] * 3] * 2 for count in counts]  # all three channels of each pixel
    assert torch.allclose(curve.fractions, torch.tensor(counts) / SIDE**2)
    assert torch.allclose(curve.nominal, torch.tensor(fractions))


def test_road_on_rgb_removes_round_p_hw_pixels():
    seen = []
    x = images(1)

    def model(batch):
        seen.append(batch.clone())
        return batch.mean((2, 3))

    curve = road(model, x, maps(1), batch_size=100)
    changed = (seen[1] != x).all(1).sum((1, 2)).tolist()
    assert changed == [round(p / 10 * SIDE * SIDE) for p in range(1, 10)]
    assert torch.allclose(curve.fractions * SIDE**2, torch.tensor(changed).float())


@pytest.mark.parametrize("size", [(3, 3), (32, 3), (6, 10)])
def test_images_of_any_size_lose_whole_pixels(size):
    x = torch.rand(2, 3, *size, generator=torch.Generator().manual_seed(0)) + 0.1
    relevance = torch.rand(2, *size, generator=torch.Generator().manual_seed(1))
    seen, _, _ = captured(inputs=x, relevance=relevance, fractions=[0.5])
    count = round(size[0] * size[1] / 2)
    expected = torch.zeros(2, size[0] * size[1], dtype=torch.bool)
    expected.scatter_(1, relevance.flatten(1).topk(count).indices, True)
    assert torch.equal(seen != x, expected.view(2, 1, *size).expand_as(x))


def test_noise_has_the_mean_and_deviation_of_the_image():
    x = 0.4 + 0.2 * images(2, side=64)
    seen, _, _ = captured(inputs=x, relevance=maps(2, 64), fractions=[1.0], fill="noise")
    torch.testing.assert_close(seen.mean((2, 3)), x.mean((2, 3)), atol=5e-3, rtol=0)
    torch.testing.assert_close(seen.std((2, 3)), x.std((2, 3)), atol=5e-3, rtol=0)


@pytest.mark.parametrize("fill", ["mean", "blur", "noise", "linear"])
def test_a_constant_image_stays_constant(fill):
    seen, _, _ = captured(inputs=torch.full((2, 3, SIDE, SIDE), 0.37), fractions=[0.25, 0.9, 1], fill=fill)
    assert (seen - 0.37).abs().max() < 1e-6


def test_endpoints_are_the_clean_and_the_filled_image():
    seen, curve, _ = captured()
    assert curve.fractions[0] == 0
    assert curve.fractions[-1] == 1
    assert (seen[:2] == 0).all()
    assert ((seen[2:] == 0).all(1).flatten(1).sum(1) < SIDE * SIDE).all()


def test_black_is_zero_before_normalisation():
    mean, std = [0.4, 0.5, 0.6], [0.2, 0.25, 0.3]
    x = images(1)
    seen, _, _ = captured(inputs=x, relevance=maps(1), fractions=[1.0], mean=mean, std=std)
    raw = seen * torch.tensor(std).view(3, 1, 1) + torch.tensor(mean).view(3, 1, 1)
    assert raw.abs().max() < 1e-6


def test_normalisation_of_an_xattn_model_is_known():
    from xattn.models.image import Preprocess
    from xattn.models.model import Model

    model = Model("tiny", Linear(), Preprocess((SIDE, SIDE), mean=(0.5,) * 3, std=(0.25,) * 3))
    x = images()
    ours = perturbation(model, x, maps(), 0, score="logit")
    given = perturbation(model.module, x, maps(), 0, score="logit", mean=[0.5], std=[0.25])
    assert torch.equal(ours.values, given.values)
    raw = perturbation(model.module, x, maps(), 0, score="logit")
    assert not torch.allclose(ours.values, raw.values)


def test_patches_go_as_a_whole():
    relevance = torch.tensor([[[4.0, 1.0], [2.0, 3.0]]])
    seen, curve, x = captured(inputs=images(1), relevance=relevance, unit="patch", fractions=[0.25, 0.5, 1])
    gone = (seen == 0).all(1)
    assert gone[0].all()  # everything, the last step
    assert gone[1, :4, :4].all()
    assert gone[1].sum() == 16
    assert gone[2, 4:, 4:].all()
    assert curve.settings["unit"] == "patch"
    by_pixels = perturbation(lambda z: z.mean((2, 3)), x, relevance.repeat_interleave(4, 1).repeat_interleave(4, 2),
                             unit="patch", grid=(2, 2), fractions=[0.25, 0.5, 1])  # fmt: skip
    direct = perturbation(lambda z: z.mean((2, 3)), x, relevance, unit="patch", fractions=[0.25, 0.5, 1])
    assert torch.equal(by_pixels.values, direct.values)


def test_ties_go_row_by_row_from_the_top_left():
    seen, curve, _ = captured(relevance=torch.zeros(2, SIDE, SIDE), fractions=[0.25])
    assert (seen[:, :, :2] == 0).all()
    assert (seen[:, :, 2:] > 0).all()
    assert curve.constant.all()
    assert not curve.undefined.any()


# -- the score ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["positive", "negative"])
def test_logit_of_a_linear_model_is_a_cumulative_sum(linear, order):
    x = images(dtype=torch.float64)
    contributions = x * linear.weight[1].double()
    curve = perturbation(linear, x, contributions, 1, order=order, score="logit", fractions=torch.linspace(0, 1, 65))
    per_pixel = contributions.sum(1).flatten(1).detach()
    ordered = per_pixel.sort(1, descending=order == "positive").values
    removed = torch.nn.functional.pad(ordered.cumsum(1), (1, 0))
    assert torch.allclose(curve.values, per_pixel.sum(1, keepdim=True) - removed, atol=1e-12)


def test_scores_follow_from_the_logits(linear):
    x, target = images(), torch.tensor([0, 1, 2])
    removal = Removal(fractions=[0, 0.5, 1])
    names = ("logit", "probability", "accuracy", "log_odds")
    curves = perturbation_curves(linear, x, maps(), target, removal, names)
    p = linear(x).softmax(1)[range(3), target]
    assert torch.allclose(curves["probability"].values[:, 0], p)
    assert torch.allclose(curves["log_odds"].values[:, 0], (p / (1 - p)).log(), atol=1e-6)
    assert torch.equal(curves["accuracy"].values[:, 0], (linear(x).argmax(1) == target).float())
    assert torch.allclose(curves["logit"].values[:, 2], torch.zeros(3))
    for name in names:
        single = perturbation(linear, x, maps(), target, fractions=[0, 0.5, 1], score=name)
        assert torch.equal(single.values, curves[name].values)
        assert single.settings["score"] == name


@pytest.mark.parametrize("flat", [True, False])
def test_a_single_output_is_the_log_odds_against_one_other_class(flat):
    def single(x):
        logits = Linear(1)(x)
        return logits.squeeze(1) if flat else logits

    def both(x):
        return torch.nn.functional.pad(Linear(1)(x), (0, 1))

    names = ("logit", "probability", "accuracy", "log_odds")
    removal = Removal(fractions=[0, 0.5, 1])
    ours = perturbation_curves(single, images(), maps(), None, removal, names)
    expected = perturbation_curves(both, images(), maps(), 0, removal, names)
    z = Linear(1)(images())[:, 0]
    assert torch.allclose(ours["probability"].values[:, 0], z.sigmoid())
    assert torch.allclose(ours["log_odds"].values[:, 0], z)
    for name in names:
        assert torch.equal(ours[name].values, expected[name].values)
    published = [perturbation_2021(model, images(), maps(), 0) for model in (single, both)]
    assert all(torch.equal(published[0][name].values, published[1][name].values) for name in published[0])
    drops = [average_drop_increase(model, images(), maps(), 0) for model in (single, both)]
    assert all(torch.equal(drops[0][name], drops[1][name]) for name in drops[0])
    assert drops[0]["drop"].max() > 0


def test_settings_name_the_protocol(linear):
    chosen = {"order": "negative", "fill": "blur", "score": "log_odds", "seed": 3, "nan": "first"}
    settings = perturbation(linear, images(), maps(), **chosen).settings
    assert {name: settings[name] for name in chosen} == chosen
    assert perturbation(linear, images(), maps()).settings["fill"] == "black"


def test_target_none_is_the_clean_prediction_resolved_once(linear):
    x = images()
    predicted = linear(x).argmax(1)
    free = perturbation(linear, x, maps(), score="logit")
    assert torch.equal(free.target, predicted)
    for target in (predicted, predicted.tolist()):
        assert torch.equal(free.values, perturbation(linear, x, maps(), target, score="logit").values)


def test_insertion_shows_what_deletion_removes(linear):
    x = images(dtype=torch.float64)
    relevance = maps().double()
    inserted = insertion(linear, x, relevance, 0, fill="black", score="logit")
    kept = perturbation(linear, x, relevance, 0, order="negative", score="logit")
    assert torch.allclose(inserted.values, kept.values.flip(1))
    total = deletion(linear, x, relevance, 0, score="logit").values + inserted.values
    assert torch.allclose(total, linear(x)[:, :1].expand_as(total))
    assert inserted.higher_is_better
    assert deletion(linear, x, relevance).higher_is_better is False


@pytest.mark.parametrize("fill", ["black", "mean", "blur", "noise", "linear"])
def test_a_planted_map_beats_chance_and_chance_beats_its_inverse(fill):
    x = 0.1 + 0.1 * images(8)
    inside = torch.zeros(SIDE, SIDE)
    inside[2:5, 3:6] = 1
    x = x + 0.7 * inside

    def model(z):  # sees the object alone
        score = (z * inside).mean((1, 2, 3))
        return torch.stack([50 * (score - 0.06), torch.zeros_like(score)], 1)

    oracle, noise = inside.expand(8, -1, -1), maps(8)
    for protocol, sign in ((deletion, -1), (insertion, 1)):
        areas = [protocol(model, x, m, 0, fill=fill).auc().mean().item() * sign for m in (oracle, noise, -oracle)]
        assert areas[0] > areas[1] > areas[2]


def test_drop_and_increase(linear):
    x = images()
    everything = torch.ones(3, SIDE, SIDE)
    everything[:, 0, 0] = 0
    result = average_drop_increase(linear, x, everything, 1)
    dark = x.clone()
    dark[:, :, 0, 0] = 0
    p, q = (linear(z).softmax(1)[:, 1] for z in (x, dark))
    assert torch.allclose(result["drop"], ((p - q) / p).clamp(min=0), atol=1e-6)
    assert torch.equal(result["increase"], (q > p).float())
    broken = average_drop_increase(linear, x, torch.zeros(3, SIDE, SIDE), 1)
    assert broken["drop"].isnan().all()
    assert broken["undefined"].all()


# -- what must not matter -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [1, 4, 7, 1000])
@pytest.mark.parametrize("fill", ["black", "noise", "linear"])
def test_batch_size_bounds_the_rows_and_changes_nothing(linear, batch_size, fill):
    rows = []

    def model(x):
        rows.append(len(x))
        return linear(x)

    curve = perturbation(model, images(), maps(), batch_size=batch_size, fill=fill, score="logit", seed=5)
    expected = perturbation(linear, images(), maps(), fill=fill, score="logit", seed=5)
    assert max(rows) <= batch_size
    assert torch.allclose(curve.values, expected.values, atol=1e-5)


@pytest.mark.parametrize("fill", ["black", "mean", "blur", "noise", "linear"])
def test_a_batch_is_its_samples(linear, fill):
    x, relevance = images(), maps()
    together = perturbation(linear, x, relevance, fill=fill, score="logit")
    alone = [perturbation(linear, x[i : i + 1], relevance[i : i + 1], fill=fill, score="logit") for i in range(3)]
    assert torch.allclose(together.values, torch.cat([curve.values for curve in alone]), atol=1e-5)


def test_equal_seeds_are_bit_identical_and_others_differ(linear):
    runs = [perturbation(linear, images(), maps(), fill="noise", seed=seed).values for seed in (1, 1, 2)]
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 1000), st.sampled_from([torch.exp, torch.atan, lambda v: v**3, lambda v: 7 * v - 100]))
def test_monotone_transforms_of_the_map_change_nothing(seed, transform):
    generator = torch.Generator().manual_seed(seed)
    relevance = torch.randperm(SIDE * SIDE, generator=generator).view(1, SIDE, SIDE).double() / 40 - 0.8
    ours = perturbation(Linear(), images(1), relevance)
    assert torch.equal(ours.values, perturbation(Linear(), images(1), transform(relevance)).values)


def test_all_negative_maps_are_maps(linear):
    relevance = maps()
    shifted = relevance - relevance.max() - 1
    assert torch.equal(perturbation(linear, images(), relevance).values, perturbation(linear, images(), shifted).values)


def test_every_shape_of_relevance(linear):
    x, relevance = images(), maps()
    expected = perturbation(linear, x, relevance).values
    channels = torch.randn(3, 3, SIDE, SIDE)
    channels[:, 2] = relevance - channels[:, 0] - channels[:, 1]
    assert torch.equal(perturbation(linear, x, relevance[:, None]).values, expected)
    assert torch.allclose(perturbation(linear, x, channels.double()).values, expected, atol=1e-6)
    coarse = torch.randn(3, 4, 4)
    spread = coarse.repeat_interleave(2, 1).repeat_interleave(2, 2)
    assert torch.equal(perturbation(linear, x, coarse).values, perturbation(linear, x, spread).values)


@pytest.mark.parametrize("shape", [(3, 7, 8), (2, 8, 8), (3, 64), (3, 16, 16), (3, 3, 5, 8), (0, 8, 8)])
def test_a_wrong_shape_names_both(linear, shape):
    with pytest.raises(ArgumentError, match=r"relevance.*" + str(shape).replace("(", r"\(").replace(")", r"\)")):
        perturbation(linear, images(), torch.zeros(shape))


@pytest.mark.parametrize(
    ("change", "error", "names"),
    [
        ({"order": "up"}, ArgumentError, "order"),
        ({"fill": "grey"}, ArgumentError, "fill"),
        ({"score": "softmax"}, ArgumentError, "score"),
        ({"unit": "block"}, ArgumentError, "unit"),
        ({"unit": "patch"}, ArgumentError, "grid"),
        ({"unit": "patch", "grid": (3, 3)}, ArgumentError, "grid"),
        ({"fractions": []}, ArgumentError, "fractions"),
        ({"fractions": [0.5, 0.2]}, ArgumentError, "fractions"),
        ({"fractions": [0, 1.2]}, ArgumentError, "fractions"),
        ({"mean": [0.5]}, ArgumentError, "mean"),
        ({"mean": [0.5, 0.5], "std": [1]}, ArgumentError, "mean"),
        ({"target": 9}, ArgumentError, "target"),
        ({"target": [0, 1]}, ArgumentError, "target"),
        ({"target": -1}, ArgumentError, r"target: expected an index in 0..2, got -1"),
        ({"batch_size": 0}, ArgumentError, "batch_size"),
        ({"batch_size": 1.5}, ArgumentTypeError, "batch_size: expected an integer, got 1.5"),
        ({"seed": 1.5}, ArgumentTypeError, "seed: expected an integer, got 1.5"),
        ({"fractions": [0, torch.nan]}, ArgumentError, "fractions"),
        ({"fractions": [torch.nan]}, ArgumentError, "fractions"),
        ({"fractions": None}, ArgumentTypeError, "fractions: expected increasing numbers in 0..1, got None"),
        ({"fractions": 0.5}, ArgumentTypeError, "fractions: expected increasing numbers in 0..1, got 0.5"),
        ({"fractions": "01"}, ArgumentTypeError, "fractions: expected increasing numbers in 0..1, got '01'"),
        ({"unit": "patch", "grid": 4}, ArgumentError, r"grid: expected \(h, w\) that divides \(8, 8\), got 4"),
        ({"unit": "patch", "grid": (4.0, 4.0)}, ArgumentError, "grid"),
        ({"mean": "a", "std": "b"}, ArgumentTypeError, "mean: expected numbers"),
        ({"forward": lambda x: x[:, :0, 0, 0]}, ArgumentError, r"forward: expected logits \(3, classes\)"),
        ({"mean": [0.5], "std": [0.0]}, ArgumentError, "std: expected positive numbers"),
        ({"mean": [torch.nan], "std": [1.0]}, ArgumentError, "mean: expected finite numbers"),
        ({"nan": "drop"}, ArgumentError, "nan"),
        ({"interpolation": "bicubic"}, ArgumentError, "interpolation"),
        ({"inputs": torch.zeros(3, 8, 8)}, ArgumentError, "inputs"),
        ({"inputs": torch.zeros(3, 3, 8, 8, dtype=torch.uint8)}, ArgumentTypeError, "inputs"),
        ({"relevance": [[1.0]]}, ArgumentTypeError, "relevance"),
        ({"inputs": torch.zeros(3, 3, 8, 8, device="meta")}, ArgumentError, "inputs: .*meta device"),
        ({"relevance": torch.zeros(3, 8, 8, device="meta")}, ArgumentError, "relevance: .*meta device"),
        ({"forward": lambda x: x}, ArgumentError, "forward"),
        ({"forward": "demo"}, ArgumentTypeError, "forward: expected a module or a function .* got 'demo'"),
        ({"forward": lambda x: x.mean((2, 3)) / 0}, ArgumentError, "forward: expected numbers .* NaN or infinity"),
        ({"forward": nn.Sequential(nn.Flatten(), nn.Linear(192, 3).half())}, ArgumentError, "inputs: they are torch.f"),
    ],
)
def test_wrong_arguments_are_named(linear, change, error, names):
    arguments = {"forward": linear, "inputs": images(), "relevance": maps(), "target": None, **change}
    with pytest.raises(error, match=names):
        perturbation(**arguments)


def test_nan_maps_are_undefined_and_marked(linear):
    relevance = maps()
    relevance[1, 2, 3] = torch.nan
    curve = perturbation(linear, images(), relevance)
    assert curve.undefined.tolist() == [False, True, False]
    assert curve.values.isnan().all(1).tolist() == [False, True, False]
    clean = perturbation(linear, images(), maps())
    assert torch.equal(curve.values[[0, 2]], clean.values[[0, 2]])
    assert curve.auc().isnan().tolist() == [False, True, False]


@pytest.mark.parametrize("order", ["positive", "negative"])
def test_nan_goes_first_on_request(order):
    relevance = maps(1)
    relevance[0, 5, 5] = torch.nan
    relevance[0, 0, 0] = torch.inf if order == "positive" else -torch.inf
    seen, curve, _ = captured(
        inputs=images(1), relevance=relevance, order=order, nan="first", fractions=[1 / 64, 2 / 64]
    )
    assert (seen[0, :, 5, 5] == 0).all()
    assert (seen[0, :, 0, 0] != 0).all()
    assert (seen[1, :, 0, 0] == 0).all()
    assert not curve.undefined.any()


def test_model_and_arguments_are_left_as_they_were():
    model = nn.Sequential(nn.Dropout(0.5), Linear())
    model.train()
    x, relevance = images(), maps()
    copies = x.clone(), relevance.clone()
    state = torch.get_rng_state()
    first = perturbation(model, x, relevance, fill="noise")
    assert torch.equal(state, torch.get_rng_state())
    assert model.training
    assert model[0].training
    assert torch.equal(first.values, perturbation(model[1], x, relevance, fill="noise").values)
    assert torch.equal(x, copies[0])
    assert torch.equal(relevance, copies[1])


@pytest.mark.parametrize("batch_size", [1, 2, 32])
def test_a_model_that_works_in_place(linear, batch_size):
    def in_place(x):
        return linear(x.sub_(0.5).mul_(2))

    x = images()
    found = perturbation(in_place, x, maps(), batch_size=batch_size)
    expected = perturbation(lambda x: linear((x - 0.5) * 2), images(), maps(), batch_size=batch_size)
    assert torch.equal(found.values, expected.values)
    assert torch.equal(x, images())


def test_state_is_restored_when_the_model_fails():
    class Broken(nn.Module):
        def forward(self, x):
            raise RuntimeError("no")

    model = Broken().train()
    with pytest.raises(RuntimeError, match="no"):
        perturbation(model, images(), maps())
    assert model.training


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("fill", ["black", "blur", "linear"])
def test_any_floating_type(linear, dtype, fill):
    curve = perturbation(linear, images(dtype=dtype), maps().to(dtype), 0, fill=fill)
    assert curve.values.dtype == torch.promote_types(dtype, torch.float32)
    reference = perturbation(linear, images(dtype=dtype).double(), maps().to(dtype), 0, fill=fill)
    assert torch.allclose(curve.values.double(), reference.values, atol=0.1)


def test_outputs_with_logits_and_extra_gradients(linear):
    class Output:
        def __init__(self, logits):
            self.logits = logits

    x = images().requires_grad_()
    curve = perturbation(lambda z: Output(linear(z)), x, maps().requires_grad_())
    assert not curve.values.requires_grad
    assert torch.equal(curve.values, perturbation(linear, images(), maps()).values)
