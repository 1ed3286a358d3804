import re
from html.parser import HTMLParser
from importlib.metadata import version

import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image
from tiny_models import timm_vit
from typer.testing import CliRunner

from xattn import cli, demo
from xattn.attributions import methods
from xattn.errors import WeightsError
from xattn.explanation import Explanation
from xattn.models.image import Preprocess
from xattn.models.model import Model

GROUPS = ("animals", "<tools>", "vehicles", "food & drink", "plants")


@pytest.fixture(autouse=True)
def _plain_figures(monkeypatch):
    """Empty figures: drawing takes most of the time and has its own tests."""
    monkeypatch.setattr(Explanation, "plot", lambda self: Figure(figsize=(1, 1)))


class Page(HTMLParser):
    """Tags that are open, links, and the text."""

    def __init__(self, text):
        super().__init__()
        self.open, self.sources, self.links, self.text = [], [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if tag not in ("img", "meta"):
            self.open.append(tag)
        if tag == "img":
            assert attributes["alt"]
            self.sources.append(attributes["src"])
        if tag == "a":
            self.links.append(attributes["href"])

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def tiny(name):
    size = 32 if name == "photos" else 96
    module = timm_vit(img_size=size, patch_size=size // 4).eval()
    return Model(name, module, Preprocess((size, size)), GROUPS)


@pytest.fixture(autouse=True)
def _models(monkeypatch):
    monkeypatch.setattr(demo, "load", tiny)


@pytest.fixture(autouse=True)
def _few_scenes(monkeypatch):
    monkeypatch.setattr(demo, "SCENES", (("test", 0), ("two-object", 0)))


@pytest.fixture
def photographs(monkeypatch, tmp_path):
    """A folder that looks like an installed scikit-image."""
    package = tmp_path / "skimage"
    (package / "data").mkdir(parents=True)
    (package / "__init__.py").touch()
    for name in demo.PHOTOS.values():
        Image.new("RGB", (40, 30), "teal").save(package / "data" / name)

    class Spec:
        origin = str(package / "__init__.py")

    monkeypatch.setattr(demo, "find_spec", lambda name: Spec)
    return package / "data"


def test_the_page_shows_every_picture_with_prediction_and_seconds(photographs, tmp_path):
    steps = []
    made = demo.run_demo(tmp_path / "out", progress=lambda picture, method: steps.append((picture, method)))
    assert not made.notes
    assert made.paths[0].name == "index.html"
    assert sorted(made.paths) == sorted((tmp_path / "out").iterdir())
    titles = [item.title for item in made.items]
    assert titles[:3] == list(demo.PHOTOS)
    assert " and " in titles[4]
    assert steps == [(title, method) for title in titles for method in methods]
    page = Page(made.paths[0].read_text())
    assert page.open == []
    assert page.sources == page.links == [path.name for path in made.paths[1:]]
    for path in made.paths[1:]:
        with Image.open(path) as picture:
            picture.verify()
    for item in made.items:
        best = item.explanation.prediction[0]
        assert f"{best.name} {best.probability:.1%}" in page.text
        for seconds in item.explanation.seconds.values():
            assert f"{seconds:.3f}" in page.text
    for method in methods.values():
        assert method.summary in page.text
    text = " ".join(page.text.split())
    assert "not the published DINOv2" in text
    assert "no evidence that one method is better" in text


def test_it_goes_on_without_the_photographs_model(photographs, tmp_path, monkeypatch):
    def load(name):
        if name == "photos":
            raise WeightsError("model 'photos': run <this>")
        return tiny(name)

    monkeypatch.setattr(demo, "load", load)
    made = demo.run_demo(tmp_path / "out")
    assert made.notes == ("the photographs are left out: model 'photos': run <this>",)
    assert {item.explanation.model for item in made.items} == {"demo"}
    page = Page(made.paths[0].read_text())
    assert "the photographs are left out: model 'photos': run <this>" in page.text
    assert "DINOv2" not in page.text


def test_it_goes_on_without_scikit_image_or_one_of_its_files(photographs, tmp_path, monkeypatch):
    (photographs / "rocket.jpg").unlink()
    made = demo.run_demo(tmp_path / "one")
    assert [item.title for item in made.items][:2] == ["cat", "coffee cup"]
    assert len(made.items) == 4
    assert made.notes == ("this scikit-image does not ship rocket.jpg, so they are left out",)
    monkeypatch.setattr(demo, "find_spec", lambda name: None)
    made = demo.run_demo(tmp_path / "two")
    assert len(made.items) == 2
    assert 'pip install "xattn[photos]"' in made.notes[0]


def test_the_installed_scikit_image_ships_the_photographs():
    pytest.importorskip("skimage", reason="scikit-image comes with the extra photos")
    notes = []
    assert list(demo.photo_files(notes)) == list(demo.PHOTOS), version("scikit-image")
    assert notes == []


def test_share_on_the_objects():
    mask = torch.zeros(8, 8, dtype=torch.bool)
    mask[:, :2] = True  # half of the left patches
    assert demo.share_on(mask.float(), torch.ones(2, 2)) == pytest.approx(0.25)
    assert demo.share_on(mask.float(), torch.tensor([[1.0, 0.0], [0.0, 0.0]])) == pytest.approx(0.5)
    assert demo.share_on(mask.float(), torch.tensor([[-3.0, 1.0], [0.0, 0.0]])) == 0
    assert demo.share_on(mask.float(), torch.zeros(2, 2)) != demo.share_on(mask.float(), torch.zeros(2, 2))


def test_regions_say_how_much_lies_in_them(photographs, tmp_path):
    made = demo.run_demo(tmp_path / "out")
    text = made.paths[0].read_text()
    cat, cup, rocket, scene, _ = made.items
    assert cat.region == ""
    assert cup.area == pytest.approx(0.59 * 0.63, abs=0.05)
    for item in (cup, rocket, scene):
        assert set(item.inside) == set(item.explanation.maps)
        assert 0 < item.area < 1
        assert f"{item.region[1:]}: {item.area:.1%} of the picture" in text
        assert f"{item.inside['center']:.1%}" in text
    for share in (cup.area, cup.inside["column_sum"], cup.inside["tokenrank"], rocket.inside["n_bounce"]):
        assert f'<td class="number">{share:.0%}</td>' in text
    assert scene.inside["center"] == pytest.approx(demo.share_on(*scene_and_center(scene)))


def scene_and_center(item):
    from xattn.models.scenes import Scenes

    return Scenes("test")[0].mask.float(), item.explanation.maps["center"]


def test_the_command_prints_paths_and_seconds(photographs, tmp_path, monkeypatch):
    out = tmp_path / "out"
    result = CliRunner().invoke(cli.app, ["demo", "--out", str(out)])
    assert result.exit_code == 0, result.output
    for path in out.iterdir():
        assert str(path) in result.stdout.splitlines()
    for method in methods:
        assert re.search(rf"^ ?{method} +\d+\.\d{{3}} +\d+\.\d{{3}}", result.stdout, re.MULTILINE), method
    monkeypatch.setattr(demo, "find_spec", lambda name: None)
    result = CliRunner().invoke(cli.app, ["demo", "-o", str(tmp_path / "other")])
    assert "Note: the photographs come with scikit-image" in result.stdout


def test_the_command_refuses_a_file_as_folder(tmp_path):
    (tmp_path / "file").touch()
    result = CliRunner().invoke(cli.app, ["demo", "--out", str(tmp_path / "file")])
    assert result.exit_code == 1
    assert "cannot write into" in result.stderr
