"""The viewer without a browser: uploads, models, walks, curves and files."""

import asyncio
import json
import os
import struct
import subprocess
import sys
import threading
import zlib
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_models import CLASSES, timm_vit
from typer.testing import CliRunner

from xattn import AttentionTap, cli
from xattn.app import drawing, figures, judge, maps, report, server, shelf, upload, viewer, walk
from xattn.app.walk import BOUNCES, Walk
from xattn.attributions import PredictionMap
from xattn.errors import ArgumentError, UnsupportedModelError
from xattn.explain import explain
from xattn.layout import TokenLayout
from xattn.models import read_image
from xattn.models.image import Preprocess
from xattn.models.model import Model

NAMES = ("star", "ring", "cross", "heart", "fish")
LAYOUT = TokenLayout(prefix=("cls",), grid=(4, 4), pooling="token")
METHODS = ["tokenrank", "generic_attention"]


@pytest.fixture(scope="module")
def model():
    assert len(NAMES) == CLASSES
    return Model("tiny", timm_vit().eval(), Preprocess((32, 32)), NAMES)


@pytest.fixture(scope="module")
def picture():
    return torch.rand(3, 32, 32, generator=torch.Generator().manual_seed(3))


@pytest.fixture(scope="module")
def inputs(model, picture):
    return model.preprocess(picture)[None]


@pytest.fixture(scope="module")
def chains(model, inputs):
    """(layers, heads, 17, 17) attention, recorded by hand."""
    with AttentionTap() as tap, torch.no_grad():
        model(inputs)
    return torch.cat(tap.maps).double()


@pytest.fixture
def models(monkeypatch, model):
    """The names that load gives, and how often it was asked."""
    asked = []

    def load(name, device="cpu"):
        asked.append(name)
        return model

    monkeypatch.setattr(shelf, "load", load)
    return asked


@pytest.fixture
def view(models, tmp_path):
    return viewer.Viewer(shelf.ModelShelf(), tmp_path, 1000)


def saved(tmp_path, name, size=(40, 48), **options):
    pixels = np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / name, **options)
    return tmp_path / name


def claim(path, width, height):
    """A PNG file whose header says how large it is, with nothing in it."""
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    empty = b"IDAT" + zlib.compress(b"")
    chunks = [struct.pack(">I", len(part) - 4) + part + struct.pack(">I", zlib.crc32(part)) for part in (header, empty)]
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunks))


def on_patches(chain):
    patches = chain[..., 1:, 1:]
    return patches / patches.sum(-1, keepdim=True)


class TestUpload:
    @pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"])
    def test_the_content_decides_not_the_name(self, tmp_path, kind):
        path = saved(tmp_path, "picture.txt", format=kind)
        assert torch.equal(upload.read_upload(path, 10**6), read_image(path))

    def test_a_text_is_refused(self, tmp_path):
        (tmp_path / "notes.png").write_text("not a picture")
        with pytest.raises(ArgumentError, match=r"notes.png: this is not a picture .* expected PNG, JPEG"):
            upload.read_upload(tmp_path / "notes.png", 1000)

    def test_a_format_that_runs_code_or_reads_files_is_refused(self, tmp_path):
        (tmp_path / "figure.eps").write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n")
        with pytest.raises(ArgumentError, match="not a picture"):
            upload.read_upload(tmp_path / "figure.eps", 1000)

    @pytest.mark.parametrize("kind", ["PNG", "JPEG", "BMP"])
    def test_half_a_picture_is_damaged(self, tmp_path, kind):
        path = saved(tmp_path, "half", format=kind)
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        with pytest.raises(ArgumentError, match="half: the picture is damaged"):
            upload.read_upload(path, 10**6)

    def test_too_many_bytes(self, tmp_path):
        path = saved(tmp_path, "big.png")
        with pytest.raises(ArgumentError, match=r"big.png: the file has .* MB, the limit is 0.000954 MB"):
            upload.read_upload(path, 1000)

    def test_too_many_pixels_are_refused_before_they_are_decoded(self, tmp_path, monkeypatch):
        claim(tmp_path / "bomb.png", 20_000, 4_000)
        monkeypatch.setattr(Image.Image, "thumbnail", lambda *a: pytest.fail("decoded"))
        with pytest.raises(ArgumentError, match="20000x4000 pixels, the limit is 64 million"):
            upload.read_upload(tmp_path / "bomb.png", 10**6)

    def test_even_more_pixels(self, tmp_path):
        claim(tmp_path / "bomb.png", 20_000, 20_000)
        with pytest.raises(ArgumentError, match=r"bomb.png: this is not a picture that can be read"):
            upload.read_upload(tmp_path / "bomb.png", 10**6)

    def test_a_large_picture_is_made_smaller_and_turned_as_its_camera_says(self, tmp_path):
        turned = Image.Exif()
        turned[0x0112] = 6
        Image.new("RGB", (6000, 30), "red").save(tmp_path / "wide.jpg", exif=turned)
        read = upload.read_upload(tmp_path / "wide.jpg", 10**6)
        assert read.shape[1] == upload.LONGEST_SIDE
        assert read.shape[2] < 30


class TestShelf:
    def test_many_at_once_load_a_model_once(self, models):
        store = shelf.ModelShelf()

        def use():
            with store.use("tiny"):
                pass

        threads = [threading.Thread(target=use) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert models == ["tiny"]

    def test_one_computation_at_a_time(self, models):
        store, inside = shelf.ModelShelf(), threading.Event()

        def use():
            with store.use("other"):
                inside.set()

        with store.use("tiny"):
            thread = threading.Thread(target=use)
            thread.start()
            assert not inside.wait(0.1)
        thread.join()
        assert inside.is_set()

    def test_loading_keeps_nobody_from_other_models(self, monkeypatch, model):
        release, store = threading.Event(), shelf.ModelShelf()
        monkeypatch.setattr(shelf, "load", lambda name, device: release.wait(5) and model if name == "slow" else model)
        thread = threading.Thread(target=lambda: store.use("slow").__enter__())
        thread.start()
        with store.use("tiny") as used:
            assert thread.is_alive()
            assert used is model
        release.set()
        thread.join()

    def test_after_the_end_no_computation_begins(self, models):
        store, inside = shelf.ModelShelf(), threading.Event()

        def use():
            with store.use("tiny"):
                inside.set()

        store.close()
        threading.Thread(target=use, daemon=True).start()
        assert not inside.wait(0.1)

    def test_the_ones_used_last_stay(self, models):
        store = shelf.ModelShelf(kept=2)
        for name in ("a", "b", "a", "c", "a", "b"):
            with store.use(name):
                pass
        assert models == ["a", "b", "c", "b"]

    def test_a_model_that_fails_is_tried_again(self, monkeypatch, model):
        answers = iter([ArgumentError("there is no model"), model])

        def load(name, device):
            answer = next(answers)
            if isinstance(answer, Exception):
                raise answer
            return answer

        monkeypatch.setattr(shelf, "load", load)
        store = shelf.ModelShelf()
        with pytest.raises(ArgumentError), store.use("x"):
            pass
        with store.use("x") as used:
            assert used is model

    @pytest.mark.parametrize("name", ["", "  ", None])
    def test_no_name(self, models, name):
        with pytest.raises(ArgumentError, match="choose one"), shelf.ModelShelf().use(name):
            pass

    def test_a_model_that_reads_sentences(self, monkeypatch):
        monkeypatch.setattr(shelf, "load", lambda name, device: object())
        with pytest.raises(UnsupportedModelError, match="xattn explain --model text"), shelf.ModelShelf().use("text"):
            pass


class TestWalk:
    def test_lambda2_of_every_head(self, model, inputs, chains):
        found = walk.survey(model, inputs)
        moduli = np.abs(np.linalg.eigvals(on_patches(chains).numpy()))
        expected = np.sort(moduli, axis=-1)[..., -2]
        np.testing.assert_allclose(found.lambda2, expected, atol=1e-5)
        assert found.layout == LAYOUT

    @pytest.mark.parametrize("head", [None, 1])
    @pytest.mark.parametrize("layer", [0, 1])
    def test_a_film_is_powers_of_the_chain_from_the_token_and_then_their_limit(
        self, model, inputs, chains, layer, head
    ):
        chain = on_patches(chains[layer].mean(0) if head is None else chains[layer][head])
        film = walk.film(model, inputs, Walk(5, layer, head), LAYOUT).flatten(1)
        row = torch.eye(16, dtype=torch.float64)[4]
        for n in range(BOUNCES + 1):
            np.testing.assert_allclose(film[n], row, atol=1e-6)
            row = row @ chain
        google = 0.99 * chain + 0.01 / 16
        np.testing.assert_allclose(film[-1], torch.linalg.matrix_power(google, 4000)[0], atol=1e-5)

    def test_backward_goes_to_those_that_attend_to_the_token(self, model, inputs, chains):
        film = walk.film(model, inputs, Walk(5, 1, None, "backward"), LAYOUT).flatten(1)
        column = on_patches(chains[1].mean(0))[:, 4]
        np.testing.assert_allclose(film[1], column / column.sum(), atol=1e-6)

    def test_the_first_step_of_a_head_counts_the_class_token(self, model, inputs, chains):
        found = walk.attention(model, inputs, Walk(5, 1, 0), LAYOUT)
        np.testing.assert_allclose(found, chains[1, 0, 5], atol=1e-6)

    def test_without_a_token_the_walk_starts_at_the_class_token(self, model, inputs, chains):
        found = walk.attention(model, inputs, Walk(None, 1, 0), LAYOUT)
        np.testing.assert_allclose(found, chains[1, 0, 0], atol=1e-6)


class TestJudge:
    def test_prediction_maps_ask_the_head_after_each_layer(self, model, inputs):
        outputs = []
        handles = [
            block.register_forward_hook(lambda _module, _inputs, out: outputs.append(out))
            for block in model.module.blocks
        ]
        with torch.no_grad():
            model(inputs)
            expected = [model.module.head(model.module.norm(out)).softmax(-1)[0, 1:, 3] for out in outputs]
        for handle in handles:
            handle.remove()
        found = judge.prediction_maps(model, inputs, 3, 2, LAYOUT)
        assert list(found) == ["layer 0", "layer 1"]
        for one, wanted in zip(found.values(), expected, strict=True):
            np.testing.assert_allclose(one.flatten(), wanted, atol=1e-6)

    def test_a_curve_goes_from_the_clean_picture_to_black(self, model, inputs):
        relevance = torch.rand(4, 4, generator=torch.Generator().manual_seed(0))
        found = judge.curve(model, inputs, relevance, 2, "mine", "positive")
        black = model.preprocess(torch.zeros(3, 32, 32))[None]
        with torch.no_grad():
            clean, nothing = (model(x).softmax(-1)[0, 2] for x in (inputs, black))
        assert found.values[0] == pytest.approx(float(clean), abs=1e-6)
        assert found.values[-1] == pytest.approx(float(nothing), abs=1e-6)
        width = np.diff(found.fractions) @ (found.values[1:] + found.values[:-1]).numpy() / 2
        assert found.area == pytest.approx(float(width), abs=1e-5)

    def test_the_first_patches_to_go_are_the_most_relevant(self, model, inputs):
        relevance = torch.zeros(4, 4)
        relevance[1, 2:] = 1
        found = judge.curve(model, inputs, relevance, 2, "mine", "positive")
        without = inputs.clone()
        without[..., 8:16, 16:] = -1  # black, normalised
        with torch.no_grad():
            expected = model(without).softmax(-1)[0, 2]
        assert found.fractions[1] == 2 / 16
        assert found.values[1] == pytest.approx(float(expected), abs=1e-6)

    def test_areas_wait_for_both_orders(self):
        one = judge.MapCurve("a", "positive", torch.zeros(2), torch.zeros(2), 0.25)
        name, positive, negative = judge.area_rows([one])[0]
        assert (name, positive) == ("a", 0.25)
        assert np.isnan(negative)
        assert list(judge.questions({"a": torch.zeros(1)})) == [("a", "positive"), ("a", "negative")]


class TestMaps:
    def test_the_same_as_explain(self, model, picture):
        found, expected = maps.explain_with(model, picture, METHODS, 1), explain(model, picture, METHODS, 1)
        assert found.target == expected.target == 1
        assert all(torch.equal(found.maps[name], expected.maps[name]) for name in METHODS)

    def test_a_method_that_refuses_is_noted(self, picture):
        pooled = timm_vit(global_pool="avg", class_token=False).eval()
        model = Model("pooled", pooled, Preprocess((32, 32)), NAMES)
        found = maps.explain_with(model, picture, ["dino_attention", "tokenrank"])
        assert list(found.maps) == ["tokenrank"]
        assert "class token" in found.skipped["dino_attention"]
        assert list(found.methods) == list(found.seconds) == ["tokenrank"]
        with pytest.raises(UnsupportedModelError, match="class token"):
            maps.explain_with(model, picture, ["dino_attention"])

    def test_at_least_one_method(self, model, picture):
        with pytest.raises(ArgumentError, match="choose at least one"):
            maps.explain_with(model, picture, [])


class TestDrawing:
    def test_every_token_is_found_where_it_is_drawn(self):
        layout, image = TokenLayout(prefix=("cls", "register"), grid=(3, 5)), torch.zeros(3, 30, 50)
        plain = drawing.token_picture(image, layout, None).astype(int)
        assert plain.shape[:2] == drawing.shown_size(image)
        for token in range(2, 17):
            changed = np.abs(drawing.token_picture(image, layout, token).astype(int) - plain).sum(-1)
            y, x = (int(axis.mean()) for axis in np.nonzero(changed))
            assert drawing.token_clicked(x, y, plain.shape[:2], layout) == token

    def test_a_click_on_the_edge(self):
        layout = TokenLayout(grid=(2, 2))
        assert drawing.token_clicked(-1, -1, (10, 10), layout) == 0
        assert drawing.token_clicked(10, 10, (10, 10), layout) == 3

    def test_every_head_is_found_where_it_is_drawn(self):
        values = torch.rand(3, 4, generator=torch.Generator().manual_seed(0))
        plain = drawing.head_table(values, 0, 0).astype(int)
        for layer, head in [(0, 1), (1, 3), (2, 0)]:
            changed = np.abs(drawing.head_table(values, layer, head).astype(int) - plain).sum(-1)
            changed[: drawing.TOP + drawing.CELL + 5, : drawing.LEFT + drawing.CELL + 5] = 0  # the frame that moved
            y, x = (int((axis.min() + axis.max()) / 2) for axis in np.nonzero(changed))
            assert drawing.head_clicked(x, y, (3, 4)) == (layer, head)

    def test_clicks_beside_the_table(self):
        below = drawing.TOP + 3 * drawing.CELL
        assert drawing.head_clicked(drawing.LEFT - 5, drawing.TOP + 5, (3, 4)) == (0, None)
        assert drawing.head_clicked(drawing.LEFT + 5, below, (3, 4)) is None
        assert drawing.head_clicked(drawing.LEFT + 5, drawing.TOP - 5, (3, 4)) is None
        assert drawing.head_clicked(drawing.LEFT + 4 * drawing.CELL, below - 5, (3, 4)) is None

    def test_a_layer_with_fewer_heads(self):
        table = drawing.head_table(torch.tensor([[0.5, float("nan")]]), 0, None)
        inside = table[drawing.TOP + 10, drawing.LEFT + drawing.CELL + 10]
        assert inside.tolist() == [255, 255, 255]

    def test_words_for_frames_and_tokens(self):
        assert [figures.frame_name(n) for n in (0, 1, 2)] == ["start", "after 1 bounce", "after 2 bounces"]
        assert figures.frame_name(BOUNCES + 1) == "limit (TokenRank)"
        name = figures.walk_name(Walk(6, 2, 3, "backward"), LAYOUT)
        assert name == "from patch (row 1, column 1), layer 2, head 3, backward"
        assert "the class token" in figures.walk_name(Walk(), LAYOUT)
        assert "where the answer is read" in figures.walk_name(Walk(), TokenLayout(grid=(2, 2)))


class TestViewer:
    def test_classes_come_with_the_best_first(self, view, picture):
        seen = view.explain("tiny", picture, METHODS)
        best = seen.explanation.prediction[0]
        classes = view.classes(seen)
        assert classes[0] == (f"{best.name} ({best.probability:.1%})", best.index)
        assert sorted(index for _, index in classes) == list(range(CLASSES))

    def test_nothing_is_shared_between_people(self, view, picture):
        first = view.explain("tiny", picture, METHODS)
        kept = first.explanation.maps["tokenrank"].clone()
        second = view.explain("tiny", 1 - picture, METHODS, 4)
        assert torch.equal(first.explanation.maps["tokenrank"], kept)
        assert not torch.equal(second.explanation.maps["tokenrank"], kept)
        assert (first.target == second.target) is (first.explanation.prediction[0].index == 4)

    def test_a_walk_and_prediction_maps(self, view, picture, model, inputs):
        seen = view.explain("tiny", picture, METHODS, 3)
        taken = Walk(5, 0, 1)
        steps = view.step(seen, taken)
        assert torch.equal(steps.film, walk.film(model, inputs, taken, LAYOUT))
        last = PredictionMap(model, layer=1).attribute(inputs, 3, resolution="patch")[0]
        maps, attention = view.prediction_maps(seen)
        assert torch.allclose(maps["layer 1"], last)
        looked = walk.attention(model, inputs, Walk(None, 0), LAYOUT)
        assert torch.allclose(attention[0].flatten(), looked[1:], atol=1e-6)

    def test_curves_come_one_by_one(self, view, picture):
        seen = view.explain("tiny", picture, METHODS)
        found = list(view.curves(seen))
        assert [len(curves) for curves in found] == [1, 2, 3, 4]
        assert [(c.method, c.order) for c in found[-1]] == list(judge.questions(seen.explanation.maps))

    def test_a_picture_is_needed(self, view):
        with pytest.raises(ArgumentError, match="choose an example or upload"):
            view.explain("tiny", None, METHODS)

    def test_without_a_chain_the_reason_is_kept(self, view, picture, monkeypatch):
        def refuse(*_args):
            raise UnsupportedModelError("attention over windows")

        monkeypatch.setattr(walk, "survey", refuse)
        seen = view.explain("tiny", picture, ["token_gradcam"])
        for ask in (seen.walkable, lambda: view.step(seen, Walk()), lambda: view.prediction_maps(seen)):
            with pytest.raises(UnsupportedModelError, match="attention over windows"):
                ask()

    def test_the_size_of_uploads(self, view, tmp_path):
        with pytest.raises(ArgumentError, match="the limit is"):
            view.upload(saved(tmp_path, "big.png"))


class TestFiles:
    @pytest.fixture
    def seen(self, view, picture):
        return view.explain("tiny", picture, METHODS, 2)

    def test_png(self, view, seen, tmp_path):
        path = view.save(seen, None, [], "png")
        assert path.name == "xattn-tiny-cross.png"
        assert tmp_path in path.parents
        with Image.open(path) as image:
            assert image.width > 3 * 200

    def test_npz(self, view, seen):
        with np.load(view.save(seen, None, [], "npz")) as arrays:
            assert arrays["methods"].tolist() == METHODS
            np.testing.assert_array_equal(arrays["map/tokenrank"][0], seen.explanation.maps["tokenrank"])
            assert json.loads(str(arrays["facts"]))[0]["target_name"] == "cross"

    def test_the_report_stands_alone(self, view, seen):
        curves = list(view.curves(seen))[-1]
        text = view.save(seen, view.step(seen, Walk(5, 1)), curves, "html").read_text()
        assert "http" not in text.replace("http-equiv", "")
        assert "<script" not in text
        assert text.count("<img") == 4
        assert f"{curves[0].area:.3f}" in text
        assert "cross" in text

    def test_names_in_the_report_are_text(self, view, seen):
        evil = replace(seen.explanation, target_name="<b>/../x", model="<i>")
        assert "<i>" not in report.page(evil)
        assert "/" not in report.file_stem(evil)

    def test_another_kind(self, view, seen):
        with pytest.raises(ArgumentError, match="expected one of png, npz, html"):
            view.save(seen, None, [], "exe")


class TestAnswers:
    def test_what_follows_by_itself_wipes_no_message_of_a_later_click(self, view, picture, tmp_path, monkeypatch):
        monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
        pytest.importorskip("gradio", reason='gradio is not installed: pip install "xattn[app]"')
        import gradio as gr

        from xattn.app.answers import Answers
        from xattn.app.page import lay_out

        async def make():  # gradio asks for an event loop
            with gr.Blocks():
                return lay_out(["tiny"], "tiny", [], 1)

        parts = asyncio.run(make())
        answers = Answers(view, parts)
        seen = view.explain("tiny", picture, METHODS)
        steps = view.step(seen, seen.first_walk())
        curves = list(view.curves(seen))
        followed = [
            answers.walked(seen, steps, None),
            answers.predictions(seen),
            *(answers.judged(seen, found) for found in curves),
        ]
        assert all(parts.message not in update for update in followed)
        asked = [answers.explained(picture, seen), answers.walked(seen, steps, 2), answers.judged(seen, [])]
        assert all(update[parts.message] == "" for update in asked)


class TestCommand:
    def test_without_gradio_the_extra_is_named(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "gradio", None)
        before = dict(os.environ)
        result = CliRunner().invoke(cli.app, ["app"])
        assert result.exit_code == 1
        assert 'pip install "xattn[app]"' in result.output
        assert dict(os.environ) == before

    def test_a_limit_has_to_be_positive(self):
        result = CliRunner().invoke(cli.app, ["app", "--max-upload-mb", "0"])
        assert result.exit_code == 1
        assert "expected a positive number" in result.output

    def test_clicks_are_answered_in_order_and_none_is_left_out(self, tmp_path, monkeypatch):
        monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
        pytest.importorskip("gradio", reason='gradio is not installed: pip install "xattn[app]"')

        async def make():  # gradio asks for an event loop
            return server.make_page(shelf.ModelShelf(), tmp_path, "demo", 1)

        blocks = asyncio.run(make())
        answers = {fn.fn.__name__: fn for fn in blocks.fns.values() if fn.fn is not None}
        for name in ("_explain", "_follow", "_predict", "_walk"):
            assert (answers[name].trigger_mode, answers[name].concurrency_limit) == ("multiple", 1), name
        assert len({answers[name].concurrency_id for name in ("_follow", "_walk", "_slide")}) == 1

    def test_the_library_does_not_import_gradio(self):
        code = "import sys, xattn, xattn.cli, xattn.app.server; sys.exit('gradio' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("host", ["nonsense.invalid", "192.0.2.1", "." * 300])
def test_an_address_of_another_machine_is_refused_before_a_model_is_loaded(host):
    with pytest.raises(ArgumentError, match=r"host: expected an address of this machine, such as 127\.0\.0\.1"):
        server.serve("no such model", host=host)
