"""Attention over two sequences: the equations as loops, and LXMERT, BART, T5 and BLIP step by step as published."""

import copy

import pytest
import tiny_models as tiny
import torch
import transformers
from torch import nn
from torch.nn import functional as F

from xattn import AttentionTap, TokenLayout
from xattn.attributions import BimodalAttention, GenericAttention
from xattn.attributions.bimodal import Step, bimodal_relevance, normalized
from xattn.errors import ArgumentError, ArgumentTypeError, UnsupportedModelError

EXACT = {"atol": 1e-10, "rtol": 1e-8}
TEXT = {"vocab_size": tiny.VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
IDS = torch.cat([tiny.words(2, 6), torch.full((2, 1), 2)], 1)
FEATURES = torch.randn(2, 6, 8, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
BOXES = torch.rand(2, 6, 4, generator=torch.Generator().manual_seed(4), dtype=torch.float64)


def lxmert():
    config = transformers.LxmertConfig(
        vocab_size=tiny.VOCABULARY, hidden_size=tiny.WIDTH, num_attention_heads=2, intermediate_size=48, l_layers=2,
        x_layers=2, r_layers=1, visual_feat_dim=8, max_position_embeddings=32, num_qa_labels=tiny.CLASSES,
    )  # fmt: skip
    model = tiny.seeded(transformers.LxmertForQuestionAnswering, config).double()
    return lambda ids, features, boxes: model(ids, features, boxes).question_answering_score


def bart():
    config = transformers.BartConfig(
        d_model=tiny.WIDTH, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2, decoder_attention_heads=2,
        encoder_ffn_dim=48, decoder_ffn_dim=48, num_labels=tiny.CLASSES, max_position_embeddings=32, **TEXT,
    )  # fmt: skip
    return tiny.seeded(transformers.BartForSequenceClassification, config).double()


@pytest.mark.filterwarnings("ignore")
def t5():
    config = transformers.T5Config(
        vocab_size=tiny.VOCABULARY, d_model=tiny.WIDTH, d_kv=12, d_ff=48, num_layers=2, num_heads=2,
        decoder_start_token_id=0,
    )  # fmt: skip
    model = tiny.seeded(transformers.T5ForConditionalGeneration, config).double()
    return lambda ids, words: model(input_ids=ids, decoder_input_ids=words).logits


def blip():
    sizes = {**tiny._HF, "projection_dim": 16}
    config = transformers.BlipConfig(
        text_config={**sizes, **TEXT, "encoder_hidden_size": tiny.WIDTH, "max_position_embeddings": 32,
                     "sep_token_id": 2},
        vision_config={**sizes, "image_size": tiny.SIZE, "patch_size": tiny.PATCH},
        projection_dim=16, image_text_hidden_size=16,
    )  # fmt: skip
    model = tiny.seeded(transformers.BlipForImageTextRetrieval, config).double()
    return lambda ids, images: model(ids, images, use_itm_head=True).itm_score


def weighted(forward, arguments, target):
    """(path, kind, (B, n, m) of equation 5) of every attention, in order."""
    with AttentionTap(require_grad=True, consumer=lambda record: record) as tap:
        logits = forward(*arguments)
    score = logits[(slice(None), *target)].sum()
    gradients = torch.autograd.grad(score, tap.maps, allow_unused=True, materialize_grads=True)
    pairs = zip(tap.records, gradients, strict=True)
    return [(r.path, r.kind, (g * r.attention).clamp(min=0).mean(1).detach()) for r, g in pairs]


def residual(r):
    """`handle_residual` of the published code, rows without relevance kept."""
    received = r - torch.eye(len(r))
    sums = received.sum(-1, keepdim=True)
    return torch.nan_to_num(received / sums) + torch.eye(len(r))


def test_the_rules_are_the_equations_written_as_loops():
    generator = torch.Generator().manual_seed(0)
    lengths = (3, 4)
    order = [(0, 0), (1, 1), (0, 1), (1, 0), (1, 1), (0, 1), (0, 0)]
    steps = [Step(torch.rand(1, lengths[s], lengths[q], generator=generator, dtype=torch.float64), s, q)
             for s, q in order]  # fmt: skip
    r = {(s, q): [[float(s == q and i == j) for j in range(lengths[q])] for i in range(lengths[s])]
         for s in (0, 1) for q in (0, 1)}  # fmt: skip

    def product(a, b):
        return [[sum(a[i][k] * b[k][j] for k in range(len(b))) for j in range(len(b[0]))] for i in range(len(a))]

    def plus(a, b):
        return [[x + y for x, y in zip(*rows, strict=True)] for rows in zip(a, b, strict=True)]

    def bar(a):
        rows = [[x - (i == j) for j, x in enumerate(row)] for i, row in enumerate(a)]
        return [[(x / sum(row) if sum(row) else 0) + (i == j) for j, x in enumerate(row)] for i, row in enumerate(rows)]

    index = 0
    while index < len(order):
        s, q = order[index]
        a = steps[index].matrix[0].tolist()
        if s == q:
            o = 1 - s
            r[s, s], r[s, o] = plus(r[s, s], product(a, r[s, s])), plus(r[s, o], product(a, r[s, o]))
            index += 1
            continue
        both = order[index + 1 : index + 2] == [(q, s)]
        old = copy.deepcopy(r)
        for s, q, step in [(s, q, steps[index]), (q, s, steps[index + 1])][: 1 + both]:  # noqa: B020
            a = step.matrix[0].tolist()
            across = product(list(map(list, zip(*bar(old[s, s]), strict=True))), product(a, bar(old[q, q])))
            r[s, q], r[s, s] = plus(r[s, q], across), plus(r[s, s], product(a, old[q, s]))
        index += 1 + both
    for pair, found in bimodal_relevance(steps, lengths).items():
        torch.testing.assert_close(found[0], torch.tensor(r[pair], dtype=torch.float64), **EXACT)


def test_rows_without_relevance_are_not_divided():
    r = torch.eye(3, dtype=torch.float64).expand(2, 3, 3).clone()
    assert torch.equal(normalized(r), r)
    r[0, 1, 2] = 4.0
    assert normalized(r)[0].tolist() == [[1, 0, 0], [0, 1, 1], [0, 0, 1]]


def test_lxmert_is_the_published_order_of_updates():
    forward = lxmert()
    maps = {"text": [], "image": []}
    for sample in range(2):
        arguments = [x[sample : sample + 1] for x in (IDS, FEATURES, BOXES)]
        a = {"lang": [], "vis": [], "x": []}
        for path, _, matrix in weighted(forward, arguments, (2,)):
            key = "vis" if ".r_layers." in path else "x" if ".x_layers." in path else "lang"
            a[key].append(matrix[0])
        tt, ii = torch.eye(7).double(), torch.eye(6).double()
        ti, it = torch.zeros(7, 6).double(), torch.zeros(6, 7).double()
        for cam in a["lang"]:
            tt, ti = tt + cam @ tt, ti + cam @ ti
        for cam in a["vis"]:
            ii, it = ii + cam @ ii, it + cam @ it
        for layer in range(2):
            cam_ti, cam_it, cam_tt, cam_ii = a["x"][4 * layer : 4 * layer + 4]
            ti_added, tt_added = residual(tt).T @ (cam_ti @ residual(ii)), cam_ti @ it
            it_added, ii_added = residual(ii).T @ (cam_it @ residual(tt)), cam_it @ ti
            tt, ti, it, ii = tt + tt_added, ti + ti_added, it + it_added, ii + ii_added
            tt, ti = tt + cam_tt @ tt, ti + cam_tt @ ti
            ii, it = ii + cam_ii @ ii, it + cam_ii @ it
        maps["text"].append(tt[0])
        maps["image"].append(ti[0])
    found = BimodalAttention(forward).attribute((IDS, FEATURES), 2, BOXES)
    assert list(found) == ["lxmert.encoder.layer", "lxmert.encoder.r_layers"]
    for relevance, expected in zip(found.values(), maps.values(), strict=True):
        torch.testing.assert_close(relevance, torch.stack(expected), **EXACT)


@pytest.mark.parametrize("length", [7, 4])
def test_an_encoder_and_a_decoder(length):
    model, decoder = bart(), IDS[:, -length:]

    def forward(ids, words):
        states = model.model(input_ids=ids, decoder_input_ids=words).last_hidden_state
        return model.classification_head(states[:, -1])

    for sample in range(2):
        arguments = IDS[sample : sample + 1], decoder[sample : sample + 1]
        ee, dd = torch.eye(7).double(), torch.eye(length).double()
        de = torch.zeros(length, 7).double()
        for path, kind, matrix in weighted(forward, arguments, (1,)):
            cam = matrix[0]
            if ".encoder." in path or path.startswith("encoder"):
                ee = ee + cam @ ee
            elif kind == "self":
                dd, de = dd + cam @ dd, de + cam @ de
            else:
                de = de + residual(dd).T @ (cam @ residual(ee))
        encoder_map, decoder_map = BimodalAttention(forward).attribute(arguments, 1).values()
        torch.testing.assert_close(encoder_map[0], de[-1], **EXACT)
        torch.testing.assert_close(decoder_map[0], dd[-1], **EXACT)


def test_the_row_of_the_word_that_is_asked_for():
    words = tiny.words(2, 3)
    found = BimodalAttention(t5()).attribute((IDS, words), target=(1, 7))
    assert {name: tuple(x.shape) for name, x in found.items()} == {"encoder.block": (2, 7), "decoder.block": (2, 3)}
    assert (found["decoder.block"][:, 2] == 0).all()  # a later word has no part in it
    assert (found["decoder.block"][:, 1] >= 1).all()
    assert (found["encoder.block"].sum(1) > 0).all()


def test_text_that_looks_at_an_image():
    images = tiny.images(dtype=torch.float64)
    found = BimodalAttention(blip()).attribute((IDS, images), 1)
    assert {name: tuple(x.shape) for name, x in found.items()} == {
        "vision_model.encoder.layers": (2, 17),
        "text_encoder.encoder.layer": (2, 7),
    }
    assert not torch.equal(*(next(iter(BimodalAttention(blip()).attribute((IDS, images), t).values())) for t in (0, 1)))


def test_both_modalities_in_one_sequence_are_generic_attention_with_a_layout():
    config = transformers.ViltConfig(
        **tiny._HF, vocab_size=tiny.VOCABULARY, image_size=tiny.SIZE, patch_size=tiny.PATCH, max_image_length=-1,
        max_position_embeddings=32, num_labels=tiny.CLASSES,
    )  # fmt: skip
    vilt, images = tiny.seeded(transformers.ViltForQuestionAnswering, config).double(), tiny.images().double()
    forward = lambda images, ids: vilt(input_ids=ids, pixel_values=images).logits  # noqa: E731
    layout = TokenLayout(("cls",), words=23, pooling="token")  # 7 word pieces, the image's own class token, 16 patches
    found = GenericAttention(forward, layout=layout).attribute(images, 1, IDS, resolution="token")
    relevance = torch.eye(24).double()
    for _, _, matrix in weighted(forward, (images, IDS), (1,)):
        relevance = relevance + matrix @ relevance
    torch.testing.assert_close(found, relevance[:, 0], **EXACT)
    with pytest.raises(UnsupportedModelError, match="no sequence is seen to attend"):
        BimodalAttention(forward).attribute((images, IDS), 1)


MODELS = {"lxmert": (lxmert, (IDS, FEATURES), BOXES), "bart": (bart, (IDS,), None)}


@pytest.mark.parametrize("name", MODELS)
def test_laws(name):
    build, inputs, args = MODELS[name]
    explainer = BimodalAttention(build())
    batch = explainer.attribute(inputs, 1, args)
    for i in range(2):
        one = [x[i : i + 1] for x in inputs], None if args is None else args[i : i + 1]
        single = explainer.attribute(tuple(one[0]), [1], one[1])
        for key, relevance in batch.items():
            torch.testing.assert_close(relevance[i], single[key][0], **EXACT)
    with torch.inference_mode():
        again = explainer.attribute(tuple(x.clone() for x in inputs), 1, args)
    for key, relevance in batch.items():
        assert torch.equal(again[key], relevance)
        assert relevance.min() >= 0
        assert not relevance.requires_grad


def test_padding_gets_nothing_and_changes_nothing():
    forward, mask = lxmert_with_mask(), torch.ones(2, 7, dtype=torch.long)
    mask[1, 4:] = 0
    other = torch.where(mask == 1, IDS, 9)
    first, second = (BimodalAttention(forward).attribute((ids, FEATURES), 1, (BOXES, mask)) for ids in (IDS, other))
    text = first["lxmert.encoder.layer"]
    assert (text[1, 4:] == 0).all()
    assert (text[:, :4] > 0).all()
    for key, relevance in first.items():
        torch.testing.assert_close(second[key], relevance, **EXACT)


def lxmert_with_mask():
    model = next(cell.cell_contents for cell in lxmert().__closure__)
    return lambda ids, features, boxes, mask: model(ids, features, boxes, attention_mask=mask).question_answering_score


def test_the_model_is_left_as_it_was():
    model = bart()
    model.train()
    flags = [module.training for module in model.modules()]
    model.requires_grad_(False)
    BimodalAttention(model).attribute(IDS, 1)
    with pytest.raises(ArgumentError, match=r"target: expected an index in 0\.\.4"):
        BimodalAttention(model).attribute(IDS, 9)
    assert [module.training for module in model.modules()] == flags
    assert not any(parameter.requires_grad or parameter.grad is not None for parameter in model.parameters())


class Crossing(nn.Module):
    """One shared stack in which two sequences of the same length attend to each other."""

    def __init__(self, cross=True):
        super().__init__()
        self.layers = nn.ModuleList(tiny.ToyBlock() for _ in range(2))
        self.cross_attn = nn.Identity()
        self.cross = cross
        self.head = nn.Linear(tiny.WIDTH, 3)

    def forward(self, a, b):
        for layer in self.layers:
            a, b = layer(a), layer(b)
        if self.cross:
            a = a + F.scaled_dot_product_attention(a[:, None], b[:, None], b[:, None]).squeeze(1)
        return self.head(a[:, 0] + (0 if self.cross else b[:, 0]))


def test_what_cannot_be_told_apart_is_asked_for():
    model = tiny.seeded(Crossing)
    a, b = torch.randn(2, 2, 5, tiny.WIDTH, generator=torch.Generator().manual_seed(0))
    with pytest.raises(ArgumentError, match=r"sequences_of: both sequences have 5 tokens.*pass sequences_of="):
        BimodalAttention(model).attribute((a, b), 1)
    seen = iter([("a", "a"), ("b", "b"), ("a", "a"), ("b", "b"), ("a", "b")])
    found = BimodalAttention(model, sequences_of=lambda record: next(seen)).attribute((a, b), 1)
    assert list(found) == ["a", "b"]
    assert all(relevance.shape == (2, 5) for relevance in found.values())
    with pytest.raises(ArgumentError, match=r"sequences_of: expected two names, got 1: \['a'\]"):
        BimodalAttention(model, sequences_of=lambda record: ("a", "a")).attribute((a, b), 1)


def test_co_attention_of_equal_lengths_needs_names():
    """LXMERT's crossing of two sequences of one length looks like self-attention."""
    boxes, features = (torch.cat([x, x[:, :1] + 0.1], 1) for x in (BOXES, FEATURES))
    arguments = (IDS, features), 1, boxes
    with pytest.raises(UnsupportedModelError, match=r"no sequence is seen to attend.*pass sequences_of="):
        BimodalAttention(lxmert()).attribute(*arguments)
    crossings = iter([("text", "image"), ("image", "text")] * 2)

    def names(record):
        if "visual_attention" in record.path:
            return next(crossings)
        own = "image" if "r_layers" in record.path or "visn" in record.path else "text"
        return own, own

    found = BimodalAttention(lxmert(), sequences_of=names).attribute(*arguments)
    assert {name: tuple(x.shape) for name, x in found.items()} == {"text": (2, 7), "image": (2, 7)}
    assert (found["image"] > 0).all()


def test_refusals():
    images = tiny.images()
    with pytest.raises(UnsupportedModelError, match=r"no sequence is seen to attend to another one.*GenericAttention"):
        BimodalAttention(tiny.timm_vit()).attribute(images, 1)
    with pytest.raises(UnsupportedModelError, match="of kind 'pooling'"):
        BimodalAttention(tiny.timm_vit(class_token=False, global_pool="map")).attribute(images, 1)
    with pytest.raises(UnsupportedModelError, match="the score does not depend on attention"):
        BimodalAttention(lambda x: bart()(x).logits.detach()).attribute(IDS, 1)
    with pytest.raises(ArgumentError, match=r"got an output without .logits"):
        BimodalAttention(lambda x: {"states": bart()(x).encoder_last_hidden_state}).attribute(IDS, 1)
    with pytest.raises(ArgumentTypeError, match="inputs: expected a tensor or a tuple"):
        BimodalAttention(bart()).attribute([IDS], 1)
    with pytest.raises(ArgumentTypeError, match="sequences_of: expected a callable"):
        BimodalAttention(bart(), sequences_of=3)
    with pytest.raises(ArgumentTypeError, match="forward_func: expected a module"):
        BimodalAttention(3)


def test_one_modality_is_the_same_rule():
    """Self-attention alone: R_ss += A R_ss is GenericAttention."""
    model, images = tiny.timm_vit().double(), tiny.images(dtype=torch.float64)
    steps = [Step(matrix, 0, 0) for _, _, matrix in weighted(model, (images,), (1,))]
    expected = GenericAttention(model).attribute(images, 1, resolution="token")
    state = bimodal_relevance(steps, (17, 3))
    torch.testing.assert_close(state[0, 0][:, 0, 1:], expected[:, 1:], **EXACT)
