"""The layout object by itself."""

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from xattn import TokenLayout
from xattn.errors import ArgumentError, ArgumentTypeError, LayoutError, XattnError
from xattn.layout import find_image_layout, find_text_layout

WIDE = TokenLayout(prefix=("cls", "register", "register"), grid=(2, 3), pooling="token")
TEXT = TokenLayout(prefix=("cls",), words=4)


def test_counts():
    assert (WIDE.num_prefix, WIDE.num_patches, WIDE.num_tokens) == (3, 6, 9)
    assert (TEXT.num_prefix, TEXT.num_patches, TEXT.num_tokens) == (1, 4, 5)
    assert WIDE.is_image
    assert not TEXT.is_image
    assert WIDE.cls_index == 0
    assert TokenLayout(prefix=("register", "cls"), grid=(1, 1)).cls_index == 1
    assert TokenLayout(grid=(2, 3)).cls_index is None


def test_patches_are_cut_row_by_row_after_the_prefix():
    tokens = torch.arange(9.0).expand(2, -1)
    assert WIDE.patches(tokens).tolist() == [[[3, 4, 5], [6, 7, 8]]] * 2
    assert TEXT.patches(torch.arange(5)).tolist() == [1, 2, 3, 4]


def test_prefix_tokens_get_nothing():
    assert WIDE.tokens(torch.arange(1.0, 7)).tolist() == [0, 0, 0, 1, 2, 3, 4, 5, 6]


@given(h=st.integers(1, 7), w=st.integers(1, 7), prefix=st.integers(0, 5), batch=st.integers(1, 3))
def test_tokens_and_patches_are_inverse(h, w, prefix, batch):
    layout = TokenLayout(prefix=("register",) * prefix, grid=(h, w))
    patches = torch.rand(batch, h, w)
    tokens = layout.tokens(patches.flatten(1))
    assert tokens.shape == (batch, layout.num_tokens)
    assert torch.equal(layout.patches(tokens), patches)


@given(h=st.integers(1, 6), w=st.integers(1, 6), patch=st.integers(1, 5), prefix=st.integers(0, 3), data=st.data())
def test_token_of_a_pixel(h, w, patch, prefix, data):
    layout = TokenLayout(prefix=("register",) * prefix, grid=(h, w))
    y, x = data.draw(st.integers(0, h * patch - 1)), data.draw(st.integers(0, w * patch - 1))
    tokens = torch.zeros(layout.num_tokens)
    tokens[layout.token_at(y, x, (h * patch, w * patch))] = 1
    assert layout.patches(tokens)[y // patch, x // patch] == 1


@pytest.mark.parametrize("pixel", [(-1, 0), (0, -1), (16, 0), (0, 24)])
def test_pixels_outside_are_refused(pixel):
    with pytest.raises(ArgumentError, match=r"lies outside the image of size \(16, 24\)"):
        WIDE.token_at(*pixel, (16, 24))


def test_words_have_no_pixels():
    with pytest.raises(LayoutError, match="needs tokens on a grid"):
        TEXT.token_at(0, 0, (8, 8))


@pytest.mark.parametrize(
    "kwargs",
    [
        {},
        {"words": -3},
        {"grid": (2, 2), "words": 4},
        *({"grid": grid} for grid in [(0, 2), (2, -1), (4,), (2, 2, 2), (2.0, 2.0), 4, "ab"]),
        {"words": 2.5},
        {"words": 4, "pooling": "median"},
    ],
)
def test_contradictions_are_refused(kwargs):
    with pytest.raises(ArgumentError, match="layout: ") as error:
        TokenLayout(**kwargs)
    assert isinstance(error.value, ValueError)
    assert isinstance(error.value, XattnError)


@pytest.mark.parametrize("prefix", [-1, "cls", ["cls"], (1,)])
def test_a_prefix_is_a_tuple_of_roles(prefix):
    with pytest.raises(ArgumentTypeError, match=r"layout: prefix must be a tuple of roles such as \('cls',\), got "):
        TokenLayout(prefix=prefix, grid=(2, 2))


def test_layouts_are_frozen_and_compare_by_value():
    with pytest.raises(dataclasses.FrozenInstanceError):
        WIDE.grid = (3, 3)
    assert dataclasses.replace(WIDE) == WIDE
    assert hash(dataclasses.replace(WIDE)) == hash(WIDE)


def test_grid_is_never_guessed_from_the_number_of_tokens():
    assert find_image_layout(16, (2, 8), None, (16, 64)).grid == (2, 8)
    with pytest.raises(LayoutError, match=r"N=9 tokens for an input of 32x32 pixels.*layout=TokenLayout"):
        find_image_layout(9, (2, 2), None, (32, 32))
    with pytest.raises(LayoutError, match=r"N=16.*no convolution made them.*layout=TokenLayout"):
        find_image_layout(16, None, None, (32, 32))


@pytest.mark.parametrize(
    ("causal", "has_cls", "expected"),
    [
        (True, True, TokenLayout(words=5, pooling="last")),
        (False, True, TokenLayout(prefix=("cls",), words=4, pooling="token")),
        (False, False, TokenLayout(words=5, pooling="avg")),
    ],
)
def test_text_layouts(causal, has_cls, expected):
    assert find_text_layout(5, causal, has_cls) == expected


def test_a_single_word():
    assert find_text_layout(1, False, True).num_tokens == 1
