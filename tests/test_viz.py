import io
import re
import warnings

import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from xattn import viz
from xattn.errors import ArgumentError, ArgumentTypeError

IMAGE = torch.rand(3, 24, 32, generator=torch.Generator().manual_seed(0))
UNSIGNED = torch.rand(3, 4, generator=torch.Generator().manual_seed(1)) / 100
SIGNED = torch.randn(3, 4, generator=torch.Generator().manual_seed(2))


def colours(figure):
    """The relevance image of the first panel."""
    return figure.axes[0].images[1]


def texts(figure):
    figure.draw_without_rendering()
    found = [t.get_text() for ax in figure.axes for t in (*ax.texts, ax.title, ax.yaxis.label)]
    found += [figure.get_suptitle(), figure.get_supxlabel()]
    return [t.replace("\n", ", ") for t in found if t]


def bars(figure):
    """Tick labels of each colour bar."""
    figure.draw_without_rendering()
    bar_axes = [ax for ax in figure.axes if ax.get_label() == "<colorbar>" and ax.axison]
    return [[label.get_text() for label in ax.get_xticklabels()] for ax in bar_axes]


def test_signed_maps_diverge_symmetrically_around_zero():
    figure = viz.overlay(IMAGE, SIGNED)
    image = colours(figure)
    largest = float(SIGNED.abs().max())
    assert (image.norm.vmin, image.norm.vmax) == pytest.approx((-largest, largest))
    assert image.get_cmap().name == viz.DIVERGING
    zero = np.array(image.get_cmap()(image.norm(0.0)))[:3]
    assert zero.min() > 0.9  # the middle is white


def test_unsigned_maps_run_from_least_to_most_and_the_bar_says_so():
    figure = viz.overlay(IMAGE, UNSIGNED)
    image = colours(figure)
    assert (image.norm.vmin, image.norm.vmax) == pytest.approx((float(UNSIGNED.min()), float(UNSIGNED.max())))
    assert image.get_cmap().name == "magma"
    assert bars(figure) == [[f"{float(UNSIGNED.min()):.3g}", f"{float(UNSIGNED.max()):.3g}"]]


def test_raw_values_are_drawn_and_max_divides_by_the_largest_magnitude():
    assert torch.equal(torch.tensor(np.asarray(colours(viz.overlay(IMAGE, SIGNED)).get_array())), SIGNED.double())
    scaled = np.asarray(colours(viz.overlay(IMAGE, SIGNED, normalize="max")).get_array())
    assert np.abs(scaled).max() == pytest.approx(1)
    assert scaled == pytest.approx((SIGNED / SIGNED.abs().max()).numpy())


def test_the_map_lies_exactly_on_the_picture():
    figure = viz.overlay(IMAGE, UNSIGNED)
    picture, relevance = figure.axes[0].images
    assert list(picture.get_extent()) == list(relevance.get_extent()) == [-0.5, 31.5, 23.5, -0.5]


@pytest.mark.parametrize(
    ("relevance", "note"),
    [
        (torch.full((3, 4), 0.0039), "constant map: 0.0039"),
        (torch.zeros(3, 4), "constant map: 0"),
        (torch.full((3, 4), -2.0), "constant map: -2"),
        (-UNSIGNED - 1e-3, "all negative"),
        (torch.where(UNSIGNED > 0.005, 0.0, -1.0), "no positive value"),
        (torch.full((3, 4), float("nan")), "no finite value, 12 NaN"),
        (torch.where(UNSIGNED > 0.005, float("nan"), UNSIGNED), f"{int((UNSIGNED > 0.005).sum())} NaN"),
        (torch.tensor([[1.0, float("inf")]]), "constant map: 1, 1 infinite"),
    ],
)
def test_what_colours_cannot_show_is_written(relevance, note):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = viz.overlay(IMAGE, relevance, title="method")
        assert texts(figure) == [note, "method"]


def test_all_negative_maps_are_blue_not_blank():
    image = colours(viz.overlay(IMAGE, -UNSIGNED - 1e-3))
    red, _, blue, _ = image.get_cmap()(image.norm(float((-UNSIGNED - 1e-3).min())))
    assert blue > red + 0.2


def test_nan_cells_are_hatched_and_the_others_keep_their_scale():
    relevance = UNSIGNED.clone()
    relevance[0, 0] = float("nan")
    figure = viz.overlay(IMAGE, relevance)
    (hatching,) = figure.axes[0].collections
    assert hatching.hatches == ["xxxx"]
    (outline,) = hatching.get_paths()
    x, y = outline.vertices.max(0)  # the first cell of 3 x 4 ends at pixel edge (7.5, 7.5)
    assert (x, y) == pytest.approx((7.5, 7.5), abs=1.1)
    assert colours(figure).norm.vmax == pytest.approx(float(UNSIGNED.flatten()[1:].max()))
    assert not viz.overlay(IMAGE, UNSIGNED).axes[0].collections


def test_a_given_axes_is_drawn_into():
    figure = Figure()
    left, right = figure.subplots(1, 2)
    assert viz.overlay(IMAGE, UNSIGNED, ax=right, colorbar=False) is figure
    assert len(right.images) == 2
    assert not left.images
    assert len(figure.axes) == 2


def test_images_outside_their_range_are_clipped_with_a_warning():
    with pytest.warns(UserWarning, match=r"outside 0\.\.1 are clipped"):
        picture = viz.as_picture(IMAGE * 3 - 1)
    assert (picture.min(), picture.max()) == (0, 1)


def test_tensors_arrays_bytes_and_pil_images_are_the_same_picture():
    data = (np.arange(6 * 5 * 3) % 256).astype(np.uint8).reshape(6, 5, 3)
    expected = data / 255
    for image in (data, expected, Image.fromarray(data), torch.from_numpy(data).permute(2, 0, 1)):
        assert viz.as_picture(image) == pytest.approx(expected)
    grey = viz.as_picture(data[..., 0])
    assert grey.shape == (6, 5, 3)
    assert (grey[..., 0] == grey[..., 2]).all()


def test_comparison_names_every_method_and_its_scale():
    maps = {"tokenrank": UNSIGNED, "signed": SIGNED, "flat": torch.ones(3, 4)}
    figure = viz.comparison(IMAGE, maps, title="a title", columns=2)
    found = texts(figure)
    assert {"image", "tokenrank", "signed", "flat", "a title", "constant map: 1"} < set(found)
    assert any("own colour scale" in text for text in found)
    assert len(bars(figure)) == 3
    assert bars(figure)[1][1] == "0"


@pytest.mark.parametrize(("methods", "columns"), [(1, 2), (9, 5), (20, 7), (11, 6)])
def test_panels_fill_their_rows(methods, columns):
    figure = viz.comparison(IMAGE, {str(i): UNSIGNED for i in range(methods)})
    assert figure.axes[0].get_gridspec().ncols == columns


def test_a_shared_scale_is_shared_and_said():
    figure = viz.comparison(IMAGE, {"small": UNSIGNED, "large": UNSIGNED * 10}, scale="shared")
    norms = [ax.images[1].norm for ax in figure.axes if len(ax.images) == 2]
    assert {(n.vmin, n.vmax) for n in norms} == {(float(UNSIGNED.min()), float((UNSIGNED * 10).max()))}
    assert "All maps share one colour scale." in texts(figure)
    mixed = viz.comparison(IMAGE, {"small": UNSIGNED, "signed": SIGNED}, scale="shared")
    norms = [ax.images[1].norm for ax in mixed.axes if len(ax.images) == 2]
    assert all(n.vmin == -n.vmax for n in norms)
    assert norms[0].vmax == norms[1].vmax == pytest.approx(float(SIGNED.abs().max()))


@pytest.mark.parametrize("other", [torch.full((3, 4), float("nan")), torch.full((3, 4), 0.005)])
def test_a_shared_scale_is_that_of_the_values(other):
    figure = viz.comparison(IMAGE, {"map": UNSIGNED, "other": other}, scale="shared")
    norm = figure.axes[1].images[1].norm
    assert (norm.vmin, norm.vmax) == (float(UNSIGNED.min()), float(UNSIGNED.max()))


def test_grid_has_a_row_per_image_and_labels_gaps():
    figure = viz.grid([IMAGE, IMAGE], [{"a": UNSIGNED, "b": SIGNED}, {"a": UNSIGNED}], labels=["one", "two"])
    found = texts(figure)
    assert found.count("a") == found.count("b") == 1
    assert {"one", "two", "not available"} < set(found)
    assert len(bars(figure)) == 3


def test_titles_do_not_overlap():
    names = ["lambda2_rollout", "attention_rollout", "dino_attention", "raw_attention", "column_sum", "n_bounce"]
    figure = viz.comparison(torch.rand(3, 24, 24), dict.fromkeys(names, UNSIGNED), title="photos: a group 97.3%")
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    boxes = [ax.title.get_window_extent(renderer) for ax in figure.axes if ax.get_title()]
    boxes += [figure._suptitle.get_window_extent(renderer), figure._supxlabel.get_window_extent(renderer)]
    boxes += [label.get_window_extent(renderer) for ax in figure.axes if ax.axison for label in ax.get_xticklabels()]
    for i, one in enumerate(boxes):
        assert not any(one.overlaps(other) for other in boxes[i + 1 :])


def test_pyplot_is_never_touched():
    from matplotlib import pyplot

    before = pyplot.get_fignums()
    viz.comparison(IMAGE, {"a": UNSIGNED})
    assert pyplot.get_fignums() == before


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: viz.overlay(IMAGE, torch.zeros(3)), r"relevance: expected a map"),
        (lambda: viz.overlay(IMAGE, torch.zeros(0, 3)), r"relevance: expected a map"),
        (lambda: viz.overlay(torch.zeros(7, 3, 3), UNSIGNED), r"image: expected \(C, H, W\).*\(7, 3, 3\)"),
        (lambda: viz.overlay(np.zeros((3, 8, 8)), UNSIGNED), r"image: expected \(H, W, C\)"),
        (lambda: viz.overlay(IMAGE, UNSIGNED, normalize="minmax"), "normalize: expected None or"),
        (lambda: viz.overlay(IMAGE, UNSIGNED, alpha=2), "alpha: expected"),
        (lambda: viz.comparison(IMAGE, {}), "maps: expected at least one"),
        (lambda: viz.comparison(IMAGE, {"a": UNSIGNED}, scale="all"), "scale: expected"),
        (lambda: viz.comparison(IMAGE, {"a": UNSIGNED}, columns=0), "columns: expected"),
        (lambda: viz.grid([IMAGE], [{"a": UNSIGNED}] * 2), "maps: expected one set of maps per image"),
        (lambda: viz.grid([IMAGE], [{"a": UNSIGNED}], labels=[]), "labels: expected one per image"),
        (lambda: viz.tokens_html(["a", "b"], torch.zeros(3)), "relevance: expected one number per token"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ArgumentError, match=message):
        call()


def test_a_map_that_is_no_array_is_a_type_error():
    with pytest.raises(ArgumentTypeError, match="relevance: expected a tensor or an array, got str"):
        viz.overlay(IMAGE, "tokenrank")


def test_tokens_are_coloured_by_sign_and_escaped():
    markup = viz.tokens_html(["no", "<b>", "zero", "gone"], torch.tensor([-0.5, 1.0, 0.0, float("nan")]))
    assert "&lt;b&gt;" in markup
    assert "<b>" not in markup
    backgrounds = [tuple(int(c[i : i + 2], 16) for i in (0, 2, 4)) for c in re.findall("background:#(.{6})", markup)]
    negative, positive, zero = backgrounds
    assert negative[2] > negative[0]  # blue
    assert positive[0] > positive[2]  # red
    assert min(zero) > 230  # white
    assert 'title="-0.5"' in markup
    assert "1 NaN" in markup
    assert "-1 <span" in markup  # the bar of colours, between the values at their ends
    assert "linear-gradient" in markup
    assert "</span> 1 (1 NaN)" in markup
    constant = viz.tokens_html(["a", "b"], torch.ones(2))
    assert "constant map: 1" in constant
    assert "linear-gradient" not in constant


def test_letters_that_the_font_lacks_are_boxes_without_a_warning():
    figure = viz.tokens(["a", "\N{DOG FACE}", "\u00e9", "\u4e2d$"], {"up": torch.arange(4.0)}, title="\N{DOG FACE}")
    figure.savefig(io.BytesIO())
    drawn = [text for text, *_ in words_of(figure)]
    assert drawn.count("\u25a1") == 2
    assert "\u00e9" in drawn
    assert "\u25a1\\$" in drawn


def words_of(figure):
    return [(t.get_text(), *t.get_position()) for t in figure.axes[0].texts]


def test_a_sentence_is_drawn_once_per_method_and_folded():
    sentence = ["one", "two", "three", "four", "five", "six"]
    maps = {"up": torch.arange(6.0), "signed": torch.arange(6.0) - 3}
    figure = viz.tokens(sentence, maps, title="model: class", width=14)
    drawn = words_of(figure)
    names = [text for text, *_ in drawn]
    assert [names.count(text) for text in (*sentence, "up", "signed", "model: class")] == [2] * 6 + [1] * 3
    places = [(x, y) for text, x, y in drawn if text in sentence]
    assert len(set(places)) == 12
    right = max(x + len(text) for text, x, _ in drawn if text in sentence)
    assert right <= len("signed") + 2 + 14
    assert {"0 to 5", "-3 to 3"} <= set(names)
    assert "Each row has its own colours" in names[-1]
    boxes = [patch.get_facecolor() for patch in figure.axes[0].patches]
    assert boxes[6][2] > boxes[6][0]  # -3 is blue
    assert boxes[11][0] > boxes[11][2]  # 2 is red


def test_sentences_share_a_scale_and_say_what_is_not_seen():
    figure = viz.token_grid(
        [["a", "b"], ["c", "d", "$x$"]],
        [{"m": torch.tensor([0.0, 1.0])}, {"m": torch.tensor([3.0, 2.0, float("nan")])}],
        labels=["first", "second"],
        scale="shared",
    )
    names = [text for text, *_ in words_of(figure)]
    assert names.count("0 to 3") == 1
    assert "1 NaN" in names
    assert {"first", "second", r"\$x\$"} <= set(names)
    assert figure.axes[0].patches[4].get_facecolor()[3] == 0  # NaN is not coloured
    figure.draw_without_rendering()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: viz.tokens(["a"], {"m": torch.zeros(2)}), "relevance: expected one number per token"),
        (lambda: viz.tokens(["a"], {}), "maps: expected at least one map"),
        (lambda: viz.token_grid([["a"]], [{"m": torch.zeros(1)}], labels=[]), "labels: expected one per sentence"),
        (lambda: viz.tokens(["a"], {"m": torch.zeros(1)}, scale="all"), "scale: expected"),
    ],
)
def test_bad_arguments_of_token_figures_are_named(call, message):
    with pytest.raises(ArgumentError, match=message):
        call()
