"""The viewer in a real browser: one server, headless Chromium, no network."""

import base64
import io
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest
from PIL import Image

from xattn.app import drawing, figures, judge, walk
from xattn.app.walk import BOUNCES, Walk
from xattn.explain import explain
from xattn.models import load
from xattn.models.scenes import Scenes

CHROMIUM = shutil.which("chromium")
if CHROMIUM is None:
    pytest.skip(
        "Chromium is not installed, so the page is not tried in a browser (Debian: apt-get install chromium)",
        allow_module_level=True,
    )
pytest.importorskip("gradio", reason='gradio is not installed: pip install "xattn[app]"')
sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
LIMIT_MB = 1

# The server, with a record of what it writes outside its temporary folder and whom it talks to.
SERVER = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in the background ignore it
record, allowed = open(sys.argv[1], "a", buffering=1), sys.argv[2]
def hook(event, args):
    if event == "open" and isinstance(args[0], (str, bytes)) and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        path = os.path.realpath(os.fsdecode(args[0]))
        if not path.startswith((allowed, "/dev/")):
            record.write(f"wrote {path}\\n")
    elif event == "socket.connect" and isinstance(args[1], tuple) and args[1][0] != "127.0.0.1":
        record.write(f"connected to {args[1]}\\n")
    elif event == "socket.getaddrinfo" and args[0] not in (None, "127.0.0.1", "localhost"):
        record.write(f"looked up {args[0]}\\n")
sys.addaudithook(hook)
from xattn.cli import main
main(sys.argv[3:])
"""


class Server:
    """A running `xattn app`."""

    def __init__(self, folder):
        self.record, self.temporary = folder / "record.txt", folder / "temporary"
        self.record.touch()
        self.temporary.mkdir()
        (folder / "home").mkdir()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = ["app", "--no-browser", "--port", str(port), "--max-upload-mb", str(LIMIT_MB)]
        environment = {
            **os.environ,
            "HOME": str(folder / "home"),
            "TMPDIR": str(self.temporary),
            "MPLCONFIGDIR": str(self.temporary / "matplotlib"),
            "XATTN_CACHE": str(folder / "home"),
            "OMP_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        self._log = (folder / "log.txt").open("w+")
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVER, str(self.record), str(self.temporary), *command],
            cwd=folder / "home",
            env=environment,
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )
        self.url = f"http://127.0.0.1:{port}"
        self._wait()

    def log(self):
        self._log.seek(0)
        return self._log.read()

    def _wait(self):
        stop = time.monotonic() + 60
        while "The viewer is at" not in self.log():
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < stop, self.log()
            time.sleep(0.2)

    def close(self):
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(90)  # a busy machine takes its time
        finally:
            self.process.kill()
            self.process.wait()
            self._log.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    running = Server(tmp_path_factory.mktemp("viewer"))
    yield running
    running.close()
    assert list(running.temporary.glob("xattn-app-*")) == []  # gone with the server
    assert running.record.read_text() == ""


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield running
        running.close()


@pytest.fixture(scope="module")
def model():
    return load("demo")


class Visits:
    """Pages of several people, and whom their browser talked to."""

    def __init__(self, server, browser):
        self._server, self._browser = server, browser
        self.asked, self.failed = [], []

    def open(self):
        page = self._browser.new_context(viewport={"width": 1400, "height": 1000}).new_page()
        page.set_default_timeout(60_000)  # a busy machine takes its time
        page.on("request", lambda request: self.asked.append(request.url))
        page.on("pageerror", lambda error: self.failed.append(str(error)))
        page.goto(self._server.url)
        page.wait_for_selector("#maps img")
        settle(page)
        return page

    def outside(self):
        return [url for url in self.asked if not url.startswith((self._server.url, "data:", "blob:"))]


@pytest.fixture(scope="module")
def visits(server, browser):
    return Visits(server, browser)


@pytest.fixture(scope="module")
def first_visit(visits):
    return visits.open()


@pytest.fixture
def page(first_visit, visits, server):
    """The page of one person, who goes on where the test before ended."""
    tab(first_visit, "Methods side by side")
    yield first_visit
    assert visits.failed == []
    assert "Traceback" not in server.log()


def settle(page):
    """Waits until nothing is being computed for this page: the last thing that a new picture gets are its maps."""
    tab(page, "Prediction per layer")
    page.wait_for_selector("#predictions img")
    tab(page, "Methods side by side")


def tab(page, name):
    page.get_by_role("tab", name=name).click()


def says(page, name):
    """Waits for the first prediction."""
    page.wait_for_function(
        "name => document.querySelector('#says .says span')?.textContent === name", arg=name, polling=50
    )


def frame_is(page, alt):
    """Waits for a frame of the walk by the beginning of its description."""
    page.wait_for_function("alt => document.querySelector('#frame img')?.alt.startsWith(alt)", arg=alt, polling=50)


def shown(page, selector):
    """Pixels of a figure on the page."""
    source = page.locator(f"{selector} img.figure").get_attribute("src")
    return pixels(base64.b64decode(source.partition(",")[2]))


def pixels(png):
    with Image.open(io.BytesIO(png)) as image:
        return np.asarray(image.convert("RGB")).astype(int)


def scene(index, split="test"):
    return Scenes(split)[index]


def choose(page, number, name):
    """Clicks an example; its number is that on the page."""
    if page.locator("#says .says span").first.inner_text() != name:
        page.locator("#examples button.thumbnail-item").nth(number).click()
        says(page, name)


def drawn(page, selector):
    """Waits until there is something to click at: an image that is still being fetched has no size."""
    there = "one => { const image = document.querySelector(one); return image?.complete && image.naturalWidth > 0 }"
    page.wait_for_function(there, arg=f"{selector} img", polling=50)


def click(page, selector, x, y):
    """Clicks at a share of an image's width and height."""
    drawn(page, selector)
    image = page.locator(f"{selector} img")
    box = image.bounding_box()
    image.click(position={"x": x * box["width"], "y": y * box["height"]})


def slide(page, n):
    page.locator("#bounces input[type=range]").fill(str(n))


def upload(page, path):
    page.locator("input[type=file]").first.set_input_files(path)


def picture_file(folder, image, name="mine.png"):
    Image.fromarray((image.permute(1, 2, 0).numpy() * 255).round().astype(np.uint8)).save(folder / name)
    return folder / name


def test_the_first_page_shows_predictions_and_maps(page, model):
    first = scene(0)
    best = explain(model, first.image, ["tokenrank"]).prediction[0]
    assert page.locator("#says .says span").first.inner_text() == best.name == first.names[0]
    assert page.locator("#says .says b").first.inner_text() == f"{best.probability:.1%}"
    alt = page.locator("#maps img").get_attribute("alt")
    assert all(name in alt for name in ("tokenrank", "n_bounce", "generic_attention", "attnlrp"))
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def test_an_example_and_another_class(page, model):
    ring = scene(5)
    choose(page, 3, ring.names[0])
    page.locator("#target input").click()
    page.get_by_role("option", name=re.compile("^star")).click()
    tab(page, "Prediction per layer")
    page.wait_for_selector("#predictions img[alt*='of star']")
    inputs, star = model.preprocess(ring.image)[None], model.classes.index("star")
    maps = judge.prediction_maps(model, inputs, star, 6, model.layout)
    attention = judge.attention_maps(model, inputs, model.layout)
    expected = pixels(drawing.as_png(figures.prediction_figure(ring.image, maps, attention, "star")))
    assert np.abs(shown(page, "#predictions") - expected).mean() < 1
    assert page.locator("#says .says span").first.inner_text() == "ring"


def test_of_quick_choices_the_last_one_wins(page):
    for number in (0, 3, 1):
        page.locator("#examples button.thumbnail-item").nth(number).click()
    says(page, "mushroom")
    tab(page, "Prediction per layer")
    page.wait_for_selector("#predictions img[alt*='of mushroom']")
    assert page.locator("#says .says span").first.inner_text() == "mushroom"


def test_methods_are_chosen(page):
    box = page.locator("#methods input")
    box.click()
    page.get_by_role("option", name="column_sum").click()
    page.keyboard.press("Escape")
    page.locator("#explain").click()
    page.wait_for_selector("#maps img[alt*='column_sum']")


def test_a_clicked_token_is_where_the_walk_starts(page, model):
    image = scene(0).image
    choose(page, 0, "tree")
    inputs = model.preprocess(image)[None]
    token = model.layout.num_prefix + 7 * 12 + 4  # row 7, column 4 of 12 x 12
    tab(page, "Walk over tokens")
    page.wait_for_selector("#frame img[alt*='from the class token, layer 5']")
    click(page, "#tokens", 4.5 / 12, 7.5 / 12)
    page.wait_for_selector("#frame img[alt*='from patch (row 7, column 4), layer 5']")
    for n, name in [(3, "after 3 bounces"), (0, "start"), (BOUNCES + 1, "limit (TokenRank)")]:
        slide(page, n)
        frame_is(page, name)
        film = walk.film(model, inputs, Walk(token, 5), model.layout)
        expected = pixels(drawing.as_png(figures.frame_figure(image, film, n)))
        assert np.abs(shown(page, "#frame") - expected).mean() < 1


def test_of_quick_clicks_the_last_one_wins(page):
    choose(page, 0, "tree")
    tab(page, "Walk over tokens")
    page.wait_for_selector("#frame img")
    image = page.locator("#tokens img")
    image.scroll_into_view_if_needed()
    drawn(page, "#tokens")
    box = image.bounding_box()
    for column in range(4):
        page.mouse.click(box["x"] + (column + 0.5) / 12 * box["width"], box["y"] + 2.5 / 12 * box["height"])
    page.wait_for_selector("#frame img[alt*='from patch (row 2, column 3)']")


def test_direction_layer_and_head(page, model):
    image = scene(0).image
    choose(page, 0, "tree")
    tab(page, "Walk over tokens")
    page.wait_for_selector("#heads img")
    page.locator("#from-class").click()
    page.wait_for_selector("#frame img[alt*='from the class token']")
    width, height = drawing.LEFT + 6 * drawing.CELL + 10, drawing.TOP + 6 * drawing.CELL + 10
    click(page, "#heads", (drawing.LEFT + 2.5 * drawing.CELL) / width, (drawing.TOP + 3.5 * drawing.CELL) / height)
    page.wait_for_selector("#frame img[alt*='layer 3, head 2, forward']")
    assert page.locator("#layer input").input_value() == "3"
    assert page.locator("#head input").input_value() == "2"
    page.get_by_label("backward").check()
    page.wait_for_selector("#frame img[alt*='layer 3, head 2, backward']")
    taken = Walk(None, 3, 2, "backward")
    attention = walk.attention(model, model.preprocess(image)[None], taken, model.layout)
    expected = pixels(drawing.as_png(figures.attention_figure(image, attention, taken, model.layout)))
    assert np.abs(shown(page, "#attention") - expected).mean() < 1
    assert f"{float(attention[0]):.1%} of this step" in page.locator("#attention").inner_text()


def test_curves_of_the_shown_maps(page):
    page.locator("#evaluate").click()
    page.wait_for_selector("#progress progress")
    page.wait_for_selector("#judged table")
    page.wait_for_selector("#progress progress", state="detached")
    names = page.locator("#judged td code").all_inner_texts()
    assert names == page.locator("#maps img").get_attribute("alt").removeprefix("Maps: ").split(", ")
    borders = "[...document.querySelectorAll('#judged table, #judged tr')].map(e => getComputedStyle(e).borderTopWidth)"
    assert set(page.evaluate(borders)) == {"0px"}  # lines between rows alone
    assert "One picture is no evidence" in page.locator("#judged").inner_text()


def test_downloads(page, model, tmp_path):
    choose(page, 0, "tree")
    files = {}
    for kind in ("png", "npz", "html"):
        with page.expect_download() as download:
            page.locator(f"#save-{kind}").click()
        files[kind] = tmp_path / download.value.suggested_filename
        download.value.save_as(files[kind])
    assert {kind: path.suffix for kind, path in files.items()} == {"png": ".png", "npz": ".npz", "html": ".html"}
    assert pixels(files["png"].read_bytes()).std() > 10
    with np.load(files["npz"]) as arrays:
        names = arrays["methods"].tolist()
        expected = explain(model, scene(0).image, names)
        assert "tokenrank" in names
        for name in names:
            np.testing.assert_allclose(arrays[f"map/{name}"][0], expected.maps[name], atol=1e-4)
        assert json.loads(str(arrays["facts"]))[0]["model"] == "demo"
    assert files["html"].read_text().count("<img") == 3 + page.locator("#judged table").count()


def test_an_upload(page, model, tmp_path):
    image = scene(17).image
    path = picture_file(tmp_path, image)
    best = explain(model, path, ["tokenrank"]).prediction[0]
    upload(page, path)
    says(page, best.name)
    assert page.locator("#says .says b").first.inner_text() == f"{best.probability:.1%}"


def test_files_that_are_no_pictures(page, tmp_path):
    whole = picture_file(tmp_path, scene(3).image, "half.png").read_bytes()
    (tmp_path / "half.png").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "notes.txt").write_text("not a picture at all\n" * 20)
    (tmp_path / "renamed.png").write_text("not a picture either\n" * 20)
    (tmp_path / "empty.png").write_bytes(b"")
    choose(page, 0, "tree")
    for name, message in {
        "half.png": "half.png: the picture is damaged",
        "notes.txt": "notes.txt: this is not a picture that can be read; expected PNG",
        "renamed.png": "renamed.png: this is not a picture",
    }.items():
        upload(page, tmp_path / name)
        page.wait_for_function(
            "text => document.querySelector('#message .problem')?.textContent.startsWith(text)", arg=message
        )
    assert page.locator("#says .says span").first.inner_text() == "tree"
    upload(page, picture_file(tmp_path, scene(17).image))
    says(page, scene(17).names[0])
    assert page.locator("#message .problem").count() == 0


def test_a_file_that_is_too_large(page, tmp_path):
    (tmp_path / "large.png").write_bytes(b"\x89PNG\r\n\x1a\n" + os.urandom(LIMIT_MB * 2**20 + 1))
    upload(page, tmp_path / "large.png")
    page.get_by_text("exceed the maximum allowed size of 1.0 Mb").first.wait_for()
    upload(page, picture_file(tmp_path, scene(17).image))
    says(page, scene(17).names[0])


def test_the_server_refuses_a_large_file_whatever_the_page_says(server):
    import urllib.error
    import urllib.request

    body = b'--x\r\nContent-Disposition: form-data; name="files"; filename="a.png"\r\n\r\n'
    body += bytes(LIMIT_MB * 2**20 + 1) + b"\r\n--x--\r\n"
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    request = urllib.request.Request(f"{server.url}/gradio_api/upload", body, headers)
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=20)
    assert refused.value.code == 413
    refused.value.close()


def test_a_model_that_does_not_exist(page):
    box = page.locator("#model input")
    box.click()
    box.fill("dmo")
    box.press("Enter")
    page.get_by_text("there is no model 'dmo'").wait_for()
    assert "Did you mean 'demo'?" in page.locator("#message").inner_text()
    box.click()
    box.fill("demo")
    box.press("Enter")
    page.wait_for_selector("#message .problem", state="detached")


def test_looking_at_the_models_changes_nothing(page):
    choose(page, 3, "ring")
    page.locator("#target input").click()
    page.get_by_role("option", name=re.compile("^star")).click()
    page.wait_for_function("document.querySelector('#target input').value.startsWith('star')", polling=50)
    page.locator("#model input").click()
    page.locator("#says").click()
    page.wait_for_timeout(2000)  # nothing is to happen, so there is nothing to wait for
    page.locator("#methods input").click()
    page.get_by_role("option", name="raw_attention").click()
    page.keyboard.press("Escape")
    page.locator("#explain").click()
    page.wait_for_selector("#maps img[alt*='raw_attention']")
    assert page.locator("#target input").input_value().startswith("star")


def test_two_people_do_not_disturb_each_other(visits, model):
    one, two = visits.open(), visits.open()
    tab(one, "Walk over tokens")
    one.wait_for_selector("#tokens img")
    two.locator("#examples button.thumbnail-item").nth(3).click()
    click(one, "#tokens", 0.5 / 12, 0.5 / 12)
    says(two, "ring")
    one.wait_for_selector("#frame img[alt*='row 0, column 0']")
    tab(two, "Walk over tokens")
    two.wait_for_selector("#tokens img")
    click(two, "#tokens", 11.5 / 12, 11.5 / 12)
    slide(one, 2)
    two.wait_for_selector("#frame img[alt*='row 11, column 11']")
    frame_is(one, "after 2 bounces from patch (row 0, column 0)")
    assert one.locator("#says .says span").first.inner_text() == scene(0).names[0]
    image = scene(0).image
    film = walk.film(model, model.preprocess(image)[None], Walk(1, 5), model.layout)
    expected = pixels(drawing.as_png(figures.frame_figure(image, film, 2)))
    assert np.abs(shown(one, "#frame") - expected).mean() < 1


def test_only_this_machine_is_listened_to(server):
    port = int(server.url.rpartition(":")[2])
    with socket.socket() as other, pytest.raises(OSError, match="refused"):
        other.connect(("127.0.0.2", port))


def test_nobody_else_was_asked_and_nothing_written_elsewhere(page, visits, server):
    assert len(visits.asked) > 10
    assert visits.outside() == []
    assert server.record.read_text() == ""


def test_it_stops_while_a_page_listens(browser, tmp_path):
    running = Server(tmp_path)
    visit = Visits(running, browser)
    page = visit.open()
    stream = next(url for url in visit.asked if "/queue/data" in url)
    page.evaluate("async url => { window.stream = await fetch(url) }", stream)  # nothing comes that would end it
    begun = time.monotonic()
    running.close()
    assert time.monotonic() - begun < 8
    assert running.process.returncode == 0
    assert "Traceback" not in (tmp_path / "log.txt").read_text()
