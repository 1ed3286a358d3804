"""The families table: what every family of models gives, or why it is refused; `docs/families.md` is made from it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import family_models as family
import pytest
import tiny_models as tiny
import torch
from torch import Tensor, nn

from xattn import AttentionTap, TokenLayout
from xattn.attributions import AttentionRollout, NBounceAttention, TokenRank
from xattn.attributions._forward import run_forward
from xattn.errors import UnsupportedModelError

DOCS = Path(__file__).parents[1] / "docs" / "families.md"
ROLES = {"cls": "class token", "dist": "distillation token", "register": "register"}
CLS, DIST, REGISTERS = ("cls",), ("cls", "dist"), ("register",) * 4


@dataclass(frozen=True)
class Row:
    """A family: its model, an input, and either a layout or the reason of the refusal, as a pattern."""

    library: str
    name: str
    build: Callable[[], nn.Module]
    inputs: Tensor
    layout: TokenLayout | None = None
    refusal: str = ""
    note: str = ""


def grid(prefix: tuple[str, ...] = CLS, size: tuple[int, int] = (4, 4), pooling: str = "token") -> TokenLayout:
    return TokenLayout(prefix=prefix, grid=size, pooling=pooling)


def text(pooling: str = "token") -> TokenLayout:
    return (
        TokenLayout(prefix=CLS, words=6, pooling="token")
        if pooling == "token"
        else TokenLayout(words=7, pooling=pooling)
    )


WINDOWS, CHANNELS = "runs over windows", "runs over channels"
STAGES, REDUCED = "hierarchical model", "attend to other tokens than their own"
SMALL, LARGE, WORDS = tiny.images(), tiny.images(size=(64, 64)), tiny.words()
ROWS = [
    Row("timm", "ViT", tiny.timm_vit, SMALL, grid()),
    Row("timm", "DeiT, distilled", tiny.timm_deit_distilled, SMALL, grid(DIST)),
    Row(
        "timm",
        "DINOv2 with registers",
        lambda: tiny.timm_dinov2(True),
        tiny.images(size=(28, 28)),
        grid(CLS + REGISTERS, (2, 2)),
    ),
    Row("timm", "DINOv3", family.timm_dinov3, SMALL, grid(CLS + REGISTERS, pooling="avg"), note="rotary positions"),
    Row("timm", "EVA02", family.timm_eva02, SMALL, grid(pooling="avg"), note="rotary positions, SwiGLU"),
    Row("timm", "BEiT", family.timm_beit, SMALL, grid(pooling="avg"), note="relative position bias"),
    Row("timm", "SigLIP", family.timm_siglip, SMALL, grid((), pooling="map"), note="attention pooling"),
    Row(
        "timm",
        "CaiT",
        family.timm_cait,
        SMALL,
        grid((), pooling="map"),
        note="talking heads; the class token joins late",
    ),
    Row("timm", "XCiT", family.timm_xcit, LARGE, refusal=CHANNELS, note="here as many channels as patches"),
    Row("timm", "LeViT", family.timm_levit, LARGE, refusal=STAGES),
    Row("timm", "Swin", tiny.timm_swin, SMALL, refusal=WINDOWS),
    Row("timm", "MaxViT", family.timm_maxvit, LARGE, refusal=WINDOWS),
    Row("timm", "Hiera", family.timm_hiera, LARGE, refusal=WINDOWS),
    Row("timm", "SAM encoder", family.timm_sam, LARGE, refusal=WINDOWS),
    Row("timm", "PVTv2", family.timm_pvt, LARGE, refusal=REDUCED),
    Row("timm", "MViTv2", family.timm_mvit, LARGE, refusal=REDUCED),
    Row("torchvision", "ViT", tiny.torchvision_vit, SMALL, grid()),
    Row("torchvision", "Swin", tiny.torchvision_swin, SMALL, refusal=WINDOWS),
    Row("open_clip", "ViT", family.open_clip_vit, SMALL, grid()),
    Row("transformers", "ViT", tiny.hf_vit, SMALL, grid()),
    Row("transformers", "DeiT", family.hf_deit, SMALL, grid(DIST)),
    Row("transformers", "DINOv2 with registers", family.hf_dinov2, SMALL, grid(CLS + REGISTERS)),
    Row(
        "transformers", "SigLIP, images", family.siglip_images, SMALL, grid((), pooling="map"), note="attention pooling"
    ),
    Row("transformers", "SigLIP, text", family.siglip_words, WORDS, text("last"), note="no class token"),
    Row(
        "transformers",
        "BLIP, images",
        family.blip_images,
        SMALL,
        grid(),
        note="the decoder's cross-attention is told apart",
    ),
    Row("transformers", "Swin", tiny.hf_swin, SMALL, refusal=WINDOWS),
    Row("transformers", "BERT", tiny.hf_bert, WORDS, text()),
    Row("transformers", "DistilBERT", family.hf_distilbert, WORDS, text()),
    Row("transformers", "RoBERTa", family.hf_roberta, WORDS, text()),
    Row("transformers", "GPT-2", tiny.hf_gpt2, WORDS, text("last"), note="causal"),
    Row("transformers", "Llama", family.hf_llama, WORDS, text("last"), note="causal, grouped-query attention"),
    Row("transformers", "T5, encoder", family.t5_words, WORDS, text("avg"), note="no class token"),
]
KEYS = [f"{row.library} {row.name}" for row in ROWS]
every_row = pytest.mark.parametrize("key", KEYS)
read_row = pytest.mark.parametrize("key", [key for key, row in zip(KEYS, ROWS, strict=True) if row.layout])
refused_row = pytest.mark.parametrize("key", [key for key, row in zip(KEYS, ROWS, strict=True) if row.refusal])


@cache
def row_and_model(key: str) -> tuple[Row, nn.Module]:
    row = ROWS[KEYS.index(key)]
    pytest.importorskip(row.library, reason=f"{row.library} is not installed")
    return row, row.build()


def scores(output: object) -> Tensor:
    return output if isinstance(output, Tensor) else output.logits


@every_row
def test_logits_are_those_of_the_untouched_model(key):
    row, model = row_and_model(key)
    with torch.no_grad():
        expected = scores(model(row.inputs))
        with AttentionTap() as tap:
            found = scores(model(row.inputs))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    for record in tap.records:
        assert torch.allclose(record.attention.sum(-1), torch.ones(()), atol=1e-5)


@read_row
@pytest.mark.parametrize("layers", ["all", -1])
def test_layout(key, layers):
    row, model = row_and_model(key)
    found = run_forward(model, row.inputs, layers=layers)
    assert found.layout == row.layout
    assert len(found.records) == (tiny.DEPTH if layers == "all" else 1)
    read = found.tokens_read()
    assert read.shape == (2, row.layout.num_tokens)
    torch.testing.assert_close(read.sum(-1), torch.ones(2))


@read_row
@pytest.mark.parametrize("method", [TokenRank, NBounceAttention, AttentionRollout])
def test_chain_methods_are_finite_and_sample_by_sample(key, method):
    row, model = row_and_model(key)
    relevance = method(model).attribute(row.inputs, resolution="token")
    assert relevance.shape == (2, row.layout.num_tokens)
    assert relevance.isfinite().all()
    assert (relevance >= 0).all()
    assert (relevance.sum(-1) > 0).all()
    assert not torch.allclose(relevance[0], relevance[1])


@refused_row
@pytest.mark.parametrize("method", [TokenRank, NBounceAttention, AttentionRollout])
def test_refusals_say_why_and_what_works(key, method):
    row, model = row_and_model(key)
    with pytest.raises(UnsupportedModelError, match=rf"{row.refusal}.*Saliency"):
        method(model).attribute(row.inputs)


@pytest.mark.parametrize("words", [15, 16, 17])
def test_the_image_towers_pooling_says_nothing_about_words(words):
    """With 16 words, its weights have the shape of weights over the text."""
    model = family.Answer(
        family.hf_siglip(), lambda output: output.logits_per_text, "input_ids", pixel_values=tiny.images()
    )
    found = run_forward(model, tiny.words(2, words))
    assert found.layout == TokenLayout(words=words, pooling="last")
    assert (found.tokens_read()[:, -1] == 1).all()


def test_channel_attention_is_refused_where_its_matrices_look_like_those_of_patches():
    with AttentionTap() as tap:
        family.timm_xcit()(LARGE)
    channels = [record for record in tap.records if record.kind == "channel"]
    assert len(channels) == tiny.DEPTH
    assert all(record.attention.shape[-2:] == (16, 16) and record.grid == (4, 4) for record in channels)


OLDER = [
    "## Older releases",
    "",
    "Besides the newest releases (timm 1.0.31, transformers 5.24.0), the oldest supported ones were tried once, on",
    "torch 2.14.1: timm 1.0.15 with transformers 4.49.0 (tokenizers 0.21.4, huggingface_hub 0.36.2). All tests of",
    "families, capture, layout, models and methods passed but for what these releases do not have: timm 1.0.15 has no",
    "DINOv3, transformers 4.49.0 no fused attention for Swin (its own attention is refused just the same), and its ViT",
    "and CLIP name their modules differently. timm 1.0.15 makes torch 2.14 warn about `torch.jit`.",
]


def table() -> str:
    """The page of documentation about families."""
    lines = [
        "# Model families",
        "",
        "Random tiny configurations of each, run by `tests/test_families.py`, which also writes this page:",
        "`python tests/test_families.py`. Captured and untouched logits agree to 1e-5 in every row.",
        "",
        "| library | family | tokens before the patches or words | answer read from | chain methods | note |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    return "\n".join([*lines, *(_line(row) for row in ROWS), "", *OLDER]) + "\n"


def _line(row: Row) -> str:
    if row.layout is None:
        cells = [row.library, row.name, "", "", f"refused: {row.refusal}", row.note]
    else:
        read = {"token": "class token", "avg": "mean", "map": "attention pooling", "last": "last token"}
        cells = [row.library, row.name, _prefix(row.layout), read[row.layout.pooling], "yes", row.note]
    return f"| {' | '.join(cells)} |"


def _prefix(layout: TokenLayout) -> str:
    counts = {role: layout.prefix.count(role) for role in layout.prefix}
    return (
        ", ".join(ROLES[role] if count == 1 else f"{count} {ROLES[role]}s" for role, count in counts.items()) or "none"
    )


def test_the_documentation_is_this_table():
    assert DOCS.read_text() == table()


if __name__ == "__main__":
    DOCS.parent.mkdir(exist_ok=True)
    DOCS.write_text(table())
