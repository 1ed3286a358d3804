"""Runs: rows equal direct calls, nothing is mixed, nothing is lost, and what cannot be used is counted."""

import contextlib
import errno
import os

import numpy as np
import pytest
import torch
from PIL import Image
from run_models import Painted, Picked, tiny, values

from xattn.attributions import RawAttention, TokenRank
from xattn.errors import ArgumentError, ArgumentTypeError, UnsupportedModelError
from xattn.evaluation import (
    JUDGES,
    Measured,
    benchmark,
    load_dataset,
    perturbation,
    perturbation_2021,
    pointing_game,
    segmentation_scores,
    token_masking,
)
from xattn.evaluation import judges as judges_module
from xattn.evaluation._rows import MEASURED, SCHEMA
from xattn.evaluation.datasets import BrokenSampleError
from xattn.evaluation.judges import Judge, register
from xattn.evaluation.metrics import Metric

METHODS = ["token_rank", "raw_attention"]
SCENES = load_dataset("demo", n=5, seed=5)


@pytest.fixture
def model():
    return tiny()


@pytest.fixture(scope="module")
def scenes():
    return SCENES


def same(rows):
    return rows.drop_columns(MEASURED).to_pylist()


def batch(data, model):
    samples = list(data.samples(model))
    return torch.stack([s.image for s in samples]), torch.stack([s.mask for s in samples])


def close(found, expected):
    np.testing.assert_allclose(list(found.values()), expected.detach().numpy(), atol=1e-6)


def test_rows_are_those_of_direct_calls(model, scenes, tmp_path):
    protocols = ["perturbation", "segmentation", "localization", "token-masking", "insertion-deletion"]
    rows = benchmark(model, scenes, METHODS, protocols, tmp_path, chunk_size=2).rows
    assert rows.schema == SCHEMA
    x, mask = batch(scenes, model)
    target = model(x).argmax(1)
    relevance = TokenRank(model).attribute(x, target=target, resolution="patch")
    for order in ("positive", "negative"):
        curve = perturbation(model, x, relevance, target, order=order)
        close(values(rows, "tokenrank", "perturbation", order), curve.auc())
        stored = values(rows, "tokenrank", "perturbation", order, column="curve")
        close(stored, curve.values)
    scores = segmentation_scores(relevance, mask)
    for name in ("tp", "iou", "ap"):
        close(values(rows, "tokenrank", "segmentation", name), scores[name])
    close(values(rows, "tokenrank", "localization", "pointing_game"), pointing_game(relevance, mask))
    for how in ("fill", "drop", "attention"):
        curve = token_masking(model, x, relevance, target, how=how)
        close(values(rows, "tokenrank", "token-masking", f"{how}_positive"), curve.auc())
    first = rows.to_pylist()[0]
    assert first["prediction"] == first["target"] == int(target[0])
    assert first["sample"] == "0"
    assert first["model"] == "tiny"
    assert '"torch"' in first["versions"]


def test_the_label_can_be_explained(model, scenes, tmp_path):
    labelled = [i for i, s in enumerate(scenes.samples(model)) if s.label is not None]
    assert labelled != list(range(len(scenes)))
    with pytest.raises(ArgumentError, match="has none"):
        benchmark(model, scenes, METHODS, out=tmp_path, target="label")
    data = Picked(scenes, labelled)
    rows = benchmark(model, data, "raw_attention", ["perturbation-2021"], tmp_path, target="label").rows
    sample = data.sample(0, model)
    x = sample.image[None]
    relevance = RawAttention(model).attribute(x, resolution="patch")
    curve = perturbation_2021(model, x, relevance, torch.tensor([sample.label]))["hit"]
    assert values(rows, "raw_attention", "perturbation-2021", "positive")[0] == curve.auc("published_2021").item()
    assert values(rows, "raw_attention", column="target")[0] == sample.label


def test_two_objects_are_told_apart_by_class_specific_methods_only(model, tmp_path):
    data = load_dataset("demo-two-object", n=40)
    known = [i for i in range(40) if len(data.sample(i, model).object_labels) == 2]
    data = Picked(data, known)
    rows = benchmark(model, data, ["raw_attention", "prediction_map"], ["discrimination"], tmp_path).rows
    assert set(values(rows, "raw_attention", "discrimination", "both").values()) == {0.0}
    assert set(values(rows, "raw_attention", "discrimination", "per_target").values()) == {0.5}
    assert len(values(rows, "prediction_map", "discrimination", "both")) == len(known) > 2


def test_maps_and_clean_answers_are_computed_once_per_chunk(model, scenes, tmp_path):
    benchmark(model, scenes, "raw_attention", ["segmentation"], tmp_path / "a", chunk_size=5)
    assert model.module.rows == 10  # clean answers, and the method's own forward
    benchmark(
        model, scenes, "raw_attention", ["segmentation", "localization", "perturbation"], tmp_path / "b", chunk_size=5
    )
    assert model.module.rows == 20 + 5 + 2 * 9 * 5  # what all methods end with; both orders, the steps between


def test_what_all_methods_end_with_is_asked_once_per_chunk(model, scenes, tmp_path):
    both = ["perturbation", "token-masking"]
    benchmark(model, scenes, METHODS, both, tmp_path, chunk_size=5, batch_size=5)
    own, ends, between = len(METHODS), 1 + 2, len(METHODS) * 9 * (2 + 3)
    # Clean pictures once; black ones for pixels and tokens alike, and no token left once for each way to take them.
    # One row more finds the tokens each time.
    assert model.module.rows == 5 * (1 + own + ends + between) + len(METHODS) * 2


def test_the_first_samples_are_kept_as_examples(model, scenes, tmp_path):
    for _ in range(2):
        found = benchmark(
            model, scenes, {"rank": "token_rank", "painted": Painted()}, "segmentation", tmp_path
        ).examples
        assert [example.name for example in found] == ["0", "1", "2"]
        x, _ = batch(scenes, model)
        torch.testing.assert_close(found[1].maps["rank"], TokenRank(model).attribute(x, resolution="patch")[1])
        assert found[1].maps["painted"].shape == (32, 32)
        torch.testing.assert_close(found[1].image, model.denormalize(x[1]))


def test_nothing_is_done_twice(model, scenes, tmp_path):
    first = benchmark(model, scenes, METHODS, out=tmp_path, chunk_size=2)
    before = model.module.rows
    assert same(benchmark(model, scenes, METHODS, out=tmp_path, chunk_size=2).rows) == same(first.rows)
    assert model.module.rows == before
    longer = benchmark(model, load_dataset("demo", n=7, seed=5), METHODS, out=tmp_path, chunk_size=2)
    assert same(longer.rows)[: 4 * 4] == same(first.rows)[: 4 * 4]
    assert model.module.rows - before == 3 * (1 + 1 + 2 * (1 + 18))  # samples 4 to 6: their chunk has grown


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"target": "label"},
        {"chunk_size": 5},
        {"methods": {"raw_attention": "token_rank"}},
        {"protocols": JUDGES["perturbation"].configured(fill="mean")},
        {"model": tiny(crop="squash")},
        {"dataset": load_dataset("demo", n=2, seed=1)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_changed_configuration_never_meets_old_rows(change, tmp_path):
    known = [i for i, sample in enumerate(SCENES.samples(tiny())) if sample.label is not None]
    arguments = {"model": tiny(), "dataset": Picked(SCENES, known[:2]), "methods": "raw_attention", "chunk_size": 2}
    arguments["protocols"] = "perturbation"
    benchmark(**arguments, out=tmp_path)
    files = set(tmp_path.rglob("*.parquet"))
    benchmark(**arguments | change, out=tmp_path)
    assert len(set(tmp_path.rglob("*.parquet"))) == 2 * len(files)


def test_weights_are_part_of_the_configuration(scenes, tmp_path):
    model = tiny()
    first = benchmark(model, scenes, "raw_attention", out=tmp_path)
    with torch.no_grad():
        model.module.inner.head.bias[0] += 1
    second = benchmark(model, scenes, "raw_attention", out=tmp_path)
    assert first.facts["model_hash"] != second.facts["model_hash"]
    assert values(first.rows, "raw_attention") != values(second.rows, "raw_attention")


def test_batch_and_chunk_sizes_do_not_matter(model, scenes, tmp_path):
    found = [
        benchmark(model, scenes, METHODS, ["perturbation", "token-masking", "segmentation"], tmp_path, **sizes).rows
        for sizes in ({"chunk_size": 5}, {"chunk_size": 2, "batch_size": 3})
    ]
    key = ("method", "protocol", "metric", "sample_index")
    first, second = ({tuple(r[k] for k in key): r["value"] for r in rows.to_pylist()} for rows in found)
    assert first.keys() == second.keys()
    np.testing.assert_allclose([first[k] for k in first], [second[k] for k in first], atol=1e-6)


def test_equal_sizes_give_equal_bits(model, scenes, tmp_path):
    protocols = [JUDGES["perturbation"].configured(fill="noise"), "segmentation"]
    one, two = (benchmark(model, scenes, ["random"], protocols, tmp_path / n).rows for n in "ab")
    assert same(one) == same(two)


def test_broken_samples_are_counted_or_fatal(model, tmp_path):
    folder = tmp_path / "data"
    for name in ("images", "masks"):
        (folder / name).mkdir(parents=True)
    generator = np.random.default_rng(0)
    for i in range(4):
        Image.fromarray(generator.integers(0, 255, (40, 40, 3), np.uint8)).save(folder / "images" / f"{i}.png")
        mask = np.zeros((40, 40 if i != 2 else 39), np.uint8)
        mask[10:20, 10:30] = 255
        Image.fromarray(mask).save(folder / "masks" / f"{i}.png")
    (folder / "images" / "1.png").write_bytes(b"no picture")
    run = (model, folder, "raw_attention", ["segmentation"])
    for _ in range(2):  # computed, then read back
        results = benchmark(*run, tmp_path / "out", chunk_size=1)
        assert set(values(results.rows, "raw_attention", "segmentation", "iou")) == {0, 3}
        assert set(results.skipped) == {"images/1.png", "images/2.png"}
        assert "not a readable picture" in results.skipped["images/1.png"]
        assert "39x40 pixels, the picture 40x40" in results.skipped["images/2.png"]
        assert results.facts["skipped"] == 2
    with pytest.raises(BrokenSampleError, match=r"images/1\.png"):
        benchmark(*run, tmp_path / "out", on_broken="raise")
    Image.fromarray(np.zeros((40, 40, 3), np.uint8)).save(folder / "images" / "1.png")
    before = model.module.rows
    assert set(benchmark(*run, tmp_path / "out", chunk_size=1).skipped) == {"images/2.png"}
    assert model.module.rows - before == 2  # the repaired picture alone


def test_undefined_maps_are_counted_and_not_averaged(model, scenes, tmp_path):
    x, _ = batch(scenes, model)
    limit = x[:, 0, 0, 0].sort().values[-2].item()  # one picture lies above
    bad = int(x[:, 0, 0, 0].argmax())
    methods = {"good": Painted(), "bad": Painted(limit), "flat": Painted(constant=True)}
    results = benchmark(model, scenes, methods, ["perturbation", "segmentation"], tmp_path)
    assert np.isnan(values(results.rows, "bad", "perturbation", "positive")[bad])
    assert values(results.rows, "bad", "perturbation", column="undefined")[bad]
    table = results.table()
    cells = {(method, c.protocol, c.metric.name): cell for (method, c), cell in table.cells.items()}
    good, partly = values(results.rows, "good", "segmentation", "iou"), cells["bad", "segmentation", "iou"]
    assert partly.interval.estimate == pytest.approx(np.mean([v for i, v in good.items() if i != bad]))
    for metric in ("iou", "miou_dataset", "ap"):
        assert cells["bad", "segmentation", metric].interval.undefined == 1
        assert cells["flat", "segmentation", metric].interval.undefined == 5
    assert cells["bad", "perturbation", "positive"].interval.n == 4
    assert cells["flat", "perturbation", "positive"].constant == 5
    assert cells["flat", "perturbation", "positive"].interval.undefined == 0


def test_a_full_disk_says_so_and_keeps_what_was_done(model, scenes, tmp_path, monkeypatch):
    from xattn.evaluation import _rows

    write, calls = _rows.pq.write_table, []

    def full(*args, **kwargs):
        calls.append(args)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(*args, **kwargs)

    monkeypatch.setattr(_rows.pq, "write_table", full)
    with pytest.raises(ArgumentError, match=r"No space left on device.*goes on from there"):
        benchmark(model, scenes, METHODS, out=tmp_path)
    assert [file.suffix for file in tmp_path.rglob("*") if file.is_file()] == [".parquet"]
    before = model.module.rows
    benchmark(model, scenes, METHODS, out=tmp_path)
    assert model.module.rows - before == 5 * (1 + 1 + 1 + 18)


def test_an_interrupt_leaves_what_was_finished(model, scenes, tmp_path, monkeypatch):
    whole = same(benchmark(model, scenes, METHODS, out=tmp_path / "whole", chunk_size=2).rows)
    inner, calls = model.module.inner.forward, []

    def interrupted(x):
        calls.append(x)
        if len(calls) == 12:
            raise KeyboardInterrupt
        return inner(x)

    monkeypatch.setattr(model.module.inner, "forward", interrupted)
    with pytest.raises(KeyboardInterrupt):
        benchmark(model, scenes, METHODS, out=tmp_path / "cut", chunk_size=2)
    assert 0 < len(list((tmp_path / "cut").rglob("*.parquet"))) < 6
    assert same(benchmark(model, scenes, METHODS, out=tmp_path / "cut", chunk_size=2).rows) == whole


def test_a_damaged_file_is_made_again(model, scenes, tmp_path):
    whole = same(benchmark(model, scenes, METHODS, out=tmp_path).rows)
    file = next(tmp_path.rglob("*.parquet"))
    file.write_bytes(file.read_bytes()[:100])
    assert same(benchmark(model, scenes, METHODS, out=tmp_path).rows) == whole


def test_abandoned_files_are_removed(model, scenes, tmp_path):
    benchmark(model, scenes, "raw_attention", out=tmp_path)
    folder = next(tmp_path.rglob("*.parquet")).parent
    for name, age in (("old", 7200), ("young", 0)):
        (folder / f".{name}.partial").touch()
        when = (folder / f".{name}.partial").stat().st_mtime - age
        os.utime(folder / f".{name}.partial", (when, when))
    benchmark(model, scenes, "raw_attention", out=tmp_path)
    assert [file.name for file in folder.glob(".*")] == [".young.partial"]


def test_methods_that_refuse_the_model_are_reported_or_fatal(scenes, tmp_path):
    from tiny_models import timm_vit

    from xattn.models.image import Preprocess
    from xattn.models.model import Model

    pooled = Model("pooled", timm_vit(class_token=False, global_pool="avg"), Preprocess((32, 32)))
    results = benchmark(pooled, scenes, None, ["segmentation"], tmp_path, limit=1)
    assert "class token" in results.refused["dino_attention"]
    assert "dino_attention" not in results.methods
    assert "tokenrank" in results.methods
    with pytest.raises(UnsupportedModelError, match="class token"):
        benchmark(pooled, scenes, ["dino_attention"], ["segmentation"], tmp_path / "b", limit=1)


def test_a_protocol_of_ones_own(model, scenes, tmp_path, monkeypatch):
    monkeypatch.setattr(judges_module, "JUDGES", dict(JUDGES))

    def area(chunk, relevance, *, above=0.0):
        return {"area": Measured((relevance > above).double().mean((1, 2)))}

    about = Metric("area", False, (0.0, 1.0), False, False, "part with relevance")
    judge = register(Judge("area", area, (about,)))
    results = benchmark(model, scenes, METHODS, ["area"], tmp_path)
    assert set(values(results.rows, "tokenrank", "area", "area").values()) == {1.0}
    high = benchmark(model, scenes, METHODS, [judge.configured(above=2.0)], tmp_path)
    assert set(values(high.rows, "tokenrank", "area", "area").values()) == {0.0}
    assert "area ↓" in str(results.table())
    with pytest.raises(ArgumentError, match="already"):
        register(judge)


ABOUT = Metric("area", False, (0.0, 1.0), False, False, "part with relevance")


def test_what_a_protocol_of_ones_own_writes_into_reaches_nobody_else(model, scenes, tmp_path):
    def careless(chunk, relevance):
        for given in (relevance, chunk.inputs, chunk.clean, chunk.target, chunk.samples[0].mask):
            given.zero_()
        chunk.inputs.numpy()[:] = 3
        chunk.samples[0].image.fill_(1)
        return {"area": Measured(relevance.double().mean((1, 2)))}

    protocols = ["perturbation", "segmentation"]
    alone = benchmark(model, scenes, METHODS, protocols, tmp_path / "alone").rows
    both = benchmark(model, scenes, METHODS, [Judge("mine", careless, (ABOUT,)), *protocols], tmp_path / "both").rows
    assert [row for row in same(both) if row["protocol"] != "mine"] == same(alone)


def test_a_model_that_works_in_place_is_judged_as_any_other(scenes, tmp_path):
    def run(first_step, **options):
        model = tiny()
        forward = model.module.forward
        model.module.forward = lambda x: forward(first_step(x))
        out = tmp_path / str(len(list(tmp_path.iterdir())))
        rows = benchmark(model, scenes, METHODS, ["perturbation", "token-masking", "average-drop"], out, **options).rows
        return rows.column("value").to_pylist()

    for batch_size in (1, 8):
        assert run(lambda x: x.mul_(2), batch_size=batch_size) == run(lambda x: x * 2, batch_size=batch_size)


class Differentiated:
    """Input times gradient, as a user would write it."""

    def __init__(self, model):
        self.model = model

    def attribute(self, inputs, target=None):
        scores = self.model(inputs).gather(1, target[:, None]).sum()
        return inputs * torch.autograd.grad(scores, inputs)[0]


@pytest.mark.parametrize("around", ["inference", "autocast", "no gradient", "float64"])
def test_rows_do_not_depend_on_what_is_around_the_call(model, scenes, tmp_path, around):
    methods = {"tokenrank": TokenRank, "own": Differentiated(model)}

    def run(out):
        rows = benchmark(model, scenes, methods, ["token-masking", "infidelity"], out, limit=2).rows
        return same(rows) + same(benchmark(model, scenes, TokenRank, ["sensitivity"], out, limit=2).rows)

    expected = run(tmp_path / "plain")
    contexts = {
        "inference": torch.inference_mode(),
        "autocast": torch.autocast("cpu", torch.bfloat16),
        "no gradient": torch.no_grad(),
    }
    torch.set_default_dtype(torch.float64 if around == "float64" else torch.float32)
    try:
        with contexts.get(around, contextlib.nullcontext()):
            assert run(tmp_path / "around") == expected
            assert torch.is_inference_mode_enabled() == (around == "inference")
            assert torch.is_autocast_enabled("cpu") == (around == "autocast")
            assert torch.is_grad_enabled() == (around in ("autocast", "float64"))
        assert torch.get_default_dtype() == (torch.float64 if around == "float64" else torch.float32)
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("name", ["a/b", "..", " ", "n" * 300, "✓ü" * 100, "a|b<b>$_&%"])
def test_names_of_any_kind_stay_in_the_folder(model, scenes, tmp_path, name):
    judge = Judge(name, lambda chunk, relevance: {"area": Measured(relevance.double().mean((1, 2)))}, (ABOUT,))
    results = benchmark(model, scenes, {name: TokenRank}, [judge], tmp_path / "out", limit=2)
    assert set(results.rows.column("method").to_pylist()) == set(results.rows.column("protocol").to_pylist()) == {name}
    assert len(list((tmp_path / "out" / "rows").glob("*/*/*/*.parquet"))) == 1
    before = model.module.rows
    benchmark(model, scenes, {name: TokenRank}, [judge], tmp_path / "out", limit=2)
    assert model.module.rows == before


def test_a_protocol_that_fails_is_named(model, scenes, tmp_path):
    def broken(chunk, relevance):
        return 1 / 0

    with pytest.raises(ZeroDivisionError) as failed:
        benchmark(model, scenes, METHODS, [Judge("mine", broken, (ABOUT,))], tmp_path)
    assert failed.value.__notes__[0].startswith("protocol 'mine', samples ")


class Foreign:
    """A method of another library."""

    def __init__(self, function):
        self.function = function

    def attribute(self, inputs, target=None):
        return self.function(inputs)


@pytest.mark.parametrize(
    ("function", "got"),
    [
        (lambda x: x.detach().numpy(), "got ndarray"),
        (lambda x: (x,), "got tuple"),
        (lambda x: x.sum(1), "of torch.float32"),
        (lambda x: x[:1], r"got \(1, 3, "),
        (lambda x: x + 1j, "of torch.complex64"),
    ],
)
def test_what_a_method_of_another_library_returns_is_checked(model, scenes, tmp_path, function, got):
    with pytest.raises(ArgumentTypeError, match=rf"methods: Foreign\.attribute must return a real tensor.*{got}"):
        benchmark(model, scenes, {"mine": Foreign(function)}, out=tmp_path, limit=2)


def test_a_method_that_fails_is_named(model, scenes, tmp_path):
    with pytest.raises(ZeroDivisionError) as failed:
        benchmark(model, scenes, {"mine": Foreign(lambda x: 1 / 0)}, out=tmp_path, limit=2)
    assert failed.value.__notes__[0].startswith("method 'mine', samples ")


ONES = torch.ones(2, dtype=torch.float64)


@pytest.mark.parametrize(
    ("returned", "error", "message"),
    [
        (None, ArgumentTypeError, "got None"),
        (ONES, ArgumentTypeError, r"got a tensor \(2,\)$"),
        ({"area": ONES}, ArgumentTypeError, r"got a tensor \(2,\) for 'area'"),
        ({"area": Measured(1.0)}, ArgumentTypeError, "got 1.0 as values of 'area'"),
        ({"area": Measured(torch.ones(3))}, ArgumentError, r"expected values \(2,\) of 'area', got \(3,\)"),
        ({"area": Measured(ONES, constant=torch.ones(1))}, ArgumentError, r"expected constant \(2,\)"),
        ({"area": Measured(ONES, curves=torch.ones(2, 5))}, ArgumentError, r"expected curves \(2, 0\)"),
        ({"areas": Measured(ONES)}, ArgumentError, "the metrics declared are 'area', got 'areas'"),
        ({"area": Measured(ONES), "more": Measured(ONES)}, ArgumentError, "got 'area', 'more'"),
        ({}, ArgumentError, "got none"),
        (
            {"area": Measured(ONES, undefined=ONES)},
            ArgumentTypeError,
            "expected undefined of 'area' to be bool",
        ),
        ({"area": Measured(ONES * 1j)}, ArgumentTypeError, "got torch.complex128 as values of 'area'"),
    ],
)
def test_what_a_protocol_of_ones_own_returns_is_checked(model, scenes, tmp_path, returned, error, message):
    about = Metric("area", False, (0.0, 1.0), False, False, "part with relevance")
    judge = Judge("mine", lambda chunk, relevance: returned, (about,))
    expected = r"protocol: 'mine' must return a mapping of metrics to Measured with values \(2,\).*"
    with pytest.raises(error, match=expected + message):
        benchmark(model, scenes, "raw_attention", [judge], tmp_path, limit=2)


@pytest.mark.parametrize("value", [-0.1, 2.0, torch.inf])
def test_values_out_of_the_declared_range_are_refused(model, scenes, tmp_path, value):
    judge = Judge("mine", lambda chunk, relevance: {"area": Measured(ONES * value)}, (ABOUT,))
    with pytest.raises(ArgumentError, match=r"'mine' declares 'area' to lie in 0\.\.1, got values in "):
        benchmark(model, scenes, "raw_attention", [judge], tmp_path, limit=2)


def test_only_judges_are_registered():
    with pytest.raises(ArgumentTypeError, match="expected a Judge"):
        register(lambda chunk, relevance: {})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"protocols": "perturbate"}, "protocol: expected one of .*localization.*got 'perturbate'"),
        ({"protocols": []}, "at least one"),
        ({"protocols": ["segmentation", "segmentation"]}, "each name once"),
        ({"protocols": "discrimination"}, "two objects"),
        ({"methods": "nonsense"}, "method: expected one of"),
        ({"dataset": "nowhere"}, "no file or folder 'nowhere'"),
        ({"model": "nothing"}, "there is no model 'nothing'"),
        ({"engine": "spark"}, "engine: expected local, ray"),
        ({"limit": 0}, "limit: expected a positive integer"),
        ({"chunk_size": True}, "chunk_size"),
        ({"target": "best"}, "target: expected one of predicted, label"),
        ({"on_broken": "ignore"}, "on_broken"),
    ],
)
def test_wrong_arguments_are_refused_before_any_work(change, message, scenes, tmp_path):
    model = tiny()
    arguments = {"model": model, "dataset": scenes, "methods": METHODS, "out": tmp_path} | change
    with pytest.raises(ArgumentError, match=message):
        benchmark(**arguments)
    assert model.module.rows == 0


def test_only_models_are_taken(scenes, tmp_path):
    with pytest.raises(ArgumentTypeError, match="Preprocess"):
        benchmark(tiny().module, scenes, METHODS, out=tmp_path)
    with pytest.raises(ArgumentError, match="no option 'colour'"):
        JUDGES["perturbation"].configured(colour="red")


def test_out_must_be_a_folder(model, scenes, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ArgumentError, match="cannot make the folder"):
        benchmark(model, scenes, METHODS, out=tmp_path / "file")


def test_several_seeds_repeat_what_is_random_and_nothing_else(model, scenes, tmp_path):
    protocols = ["segmentation", "localization", JUDGES["perturbation"].configured(fill="noise", orders=("positive",))]
    results = benchmark(model, scenes, ["token_rank", "random"], protocols, tmp_path, seeds=3)
    rows = results.rows.to_pylist()
    seeds = {}
    for row in rows:
        seeds.setdefault((row["method"], row["protocol"]), set()).add(row["seed"])
    assert seeds == {
        ("tokenrank", "segmentation"): {0},
        ("tokenrank", "localization"): {0},
        ("tokenrank", "perturbation"): {0, 1, 2},
        ("random", "segmentation"): {0, 1, 2},
        ("random", "localization"): {0, 1, 2},
        ("random", "perturbation"): {0, 1, 2},
    }
    for seed in (1, 2):  # each seed gives the rows of a run with that seed alone
        alone = benchmark(model, scenes, ["token_rank", "random"], protocols, tmp_path / "alone", seed=seed).rows
        expected = [r for r in same(alone) if r["method"] == "random" or r["protocol"] == "perturbation"]
        assert [r for r in same(results.rows) if r["seed"] == seed] == expected
    per_seed = np.array(
        [
            [r["value"] for r in rows if r["seed"] == s and (r["method"], r["metric"]) == ("random", "ap")]
            for s in range(3)
        ]
    )
    cells = {(method, c.protocol, c.metric.name): cell for (method, c), cell in results.table().cells.items()}
    cell = cells["random", "segmentation", "ap"]
    assert cell.interval.estimate == pytest.approx(per_seed.mean())
    assert cell.deviation == pytest.approx(per_seed.mean(1).std(ddof=1))
    assert (cell.seeds, cells["tokenrank", "segmentation", "ap"].seeds) == (3, 1)
    assert np.isnan(cells["tokenrank", "segmentation", "ap"].deviation)
    assert cells["random", "segmentation", "miou_dataset"].deviation > 0
    assert f"{cell.interval.estimate:.3f} ± {cell.deviation:.3f} [" in str(results.table())
    assert "± standard deviation over 3 seeds" in str(results.table())


def test_more_seeds_take_up_a_run_with_fewer(model, scenes, tmp_path):
    benchmark(model, scenes, "random", "segmentation", tmp_path, seeds=2)
    before = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*.parquet")}
    rows = benchmark(model, scenes, "random", "segmentation", tmp_path, seeds=[0, 1, 5]).rows
    assert {file: file.stat().st_mtime_ns for file in before} == before
    assert set(rows["seed"].to_pylist()) == {0, 1, 5}


@pytest.mark.parametrize("seeds", [0, [], [1, 1], [0.5]])
def test_seeds_are_different_integers(model, scenes, tmp_path, seeds):
    with pytest.raises(ArgumentError, match="seeds: expected"):
        benchmark(model, scenes, "random", "segmentation", tmp_path, seeds=seeds)
