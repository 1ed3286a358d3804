"""How the head is found: which tails answer single tokens, and which are refused."""

import pytest
import tiny_models as tiny
import torch
import transformers
from method_cases import CLASSES, case
from torch import nn

from xattn.attributions import PredictionAttention, PredictionMap
from xattn.errors import ArgumentError, UnsupportedModelError

EXACT = {"atol": 1e-10, "rtol": 1e-8}


class Toy(nn.Module):
    """Patches, a class token, blocks, and whatever tail a test wants."""

    def __init__(self, tail=None, cls=True):
        super().__init__()
        self.patch = nn.Conv2d(3, tiny.WIDTH, tiny.PATCH, tiny.PATCH)
        self.cls_token = nn.Parameter(torch.randn(1, 1, tiny.WIDTH)) if cls else None
        self.blocks = nn.ModuleList(tiny.ToyBlock() for _ in range(3))
        self.norm = nn.LayerNorm(tiny.WIDTH)
        self.head = nn.Linear(tiny.WIDTH, CLASSES)
        self.tail = tail

    def forward(self, images):
        x = self.patch(images).flatten(2).mT
        if self.cls_token is not None:
            x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1)
        outputs = []
        for block in self.blocks:
            x = self.run(block, x)
            outputs.append(x)
        return self.tail(self, outputs)

    def run(self, block, x):
        return block(x)


def toy(tail, cls=True, kind=Toy):
    return tiny.seeded(kind, tail, cls).double()


def images(batch=2):
    return tiny.images(batch, dtype=torch.float64)


def plain(model, outputs):
    return model.head(model.norm(outputs[-1])[:, 0])


TAILS = {
    "functions in place of modules": lambda m, o: torch.nn.functional.linear(
        torch.tanh(m.norm(o[-1]).select(1, 0)), m.head.weight * 2.0
    ),
    "in place": lambda m, o: m.head(m.norm(o[-1])[:, 0].clone().mul_(2).add_(1)),
    "two readings": lambda m, o: m.head(m.norm(o[-1])[:, 0]) + m.head(m.norm(o[-1])[:, 1:].mean(1)),
    "split and stacked": lambda m, o: m.head(torch.stack(m.norm(o[-1]).unbind(1)[:1])[0]),
    "half of the classes": lambda m, o: m.head(m.norm(o[-1])[:, 0])[:, :3],
    "the tensor itself twice": lambda m, o: m.head(m.norm(o[-1] * 0.5 + o[-1] * 0.5)[:, 0]),
}

MIXING = {
    "centred tokens": lambda m, o: m.head(m.norm(o[-1] - o[-1].mean(1, keepdim=True))[:, 0]),
    "maximum": lambda m, o: m.head(m.norm(o[-1])[:, 1:].amax(1)),
    "sum": lambda m, o: m.head(m.norm(o[-1]).sum(1)),
    "attention over tokens": lambda m, o: m.head((o[-1] @ o[-1].mT / 1e3).softmax(-1)[:, 0:1].matmul(o[-1])[:, 0]),
    "norm after a norm after the mean": lambda m, o: m.head(m.norm(m.norm(o[-1]).mean(1))),
    "fixed number of tokens": lambda m, o: m.head(o[-1].mT.reshape(len(o[-1]), tiny.WIDTH, 17)[..., 0]),
    "centred patches": lambda m, o: m.head(m.norm(o[-1] - o[-1].mean(1, keepdim=True))[:, 1:].mean(1)),
    "compared with a patch": lambda m, o: m.head(m.norm(o[-1][:, 0] - o[-1][:, 1])),
    "gated by the patches": lambda m, o: m.head(m.norm(o[-1])[:, 0] * o[-1][:, 1:].mean(1).sigmoid()),
    "one particular patch": lambda m, o: m.head(m.norm(o[-1])[:, 7]),
}

OTHER_LAYERS = {
    "class tokens of two layers": lambda m, o: m.head(m.norm(o[-1])[:, 0]) + m.head(m.norm(o[-2])[:, 0]),
    "sum of layers": lambda m, o: m.head((o[-1] + o[0])[:, 0]),
    "an earlier layer": lambda m, o: m.head(m.norm(o[0])[:, 0]),
    "no gradient, no graph": lambda m, o: torch.from_numpy(plain(m, o).detach().numpy()),
}


@pytest.mark.parametrize("name", TAILS)
def test_tails_of_functions_are_found(name):
    model = toy(TAILS[name])
    seen = []
    handle = model.blocks[-2].register_forward_hook(lambda _, args, output: seen.append(output.detach()))
    actual = PredictionMap(model, space="logit").maps(images()).flatten(2)
    handle.remove()
    for sample, tokens in enumerate(seen[0][:, 1:]):
        for patch, token in enumerate(tokens):
            alone = token.detach().expand(1, 2, -1)
            torch.testing.assert_close(actual[sample, :, patch], model.tail(model, [None, None, alone])[0].detach())


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("name", [*MIXING, *OTHER_LAYERS])
def test_other_tails_are_refused(name, batch):
    model = toy({**MIXING, **OTHER_LAYERS}[name])
    for method in (PredictionMap, PredictionAttention):
        with pytest.raises(UnsupportedModelError, match="forward_func: "):
            method(model).attribute(images(batch))


@pytest.mark.parametrize("name", MIXING)
def test_the_refusal_says_what_to_pass(name):
    model = toy(MIXING[name])
    with pytest.raises(UnsupportedModelError, match=r"pass head=, a function from tokens \(\.\.\., D\)"):
        PredictionMap(model).attribute(images())
    own = PredictionMap(model, head=lambda tokens: model.head(model.norm(tokens)), space="logit").maps(images())
    torch.testing.assert_close(own, PredictionMap(toy(plain), space="logit").maps(images()), **EXACT)


class OuterResiduals(Toy):
    """Attention and MLP are numbered pairs, skip connections are outside of them."""

    def __init__(self, tail, cls):
        super().__init__(tail, cls)
        parts = [(block.attn, block.mlp) for block in self.blocks]
        self.blocks = nn.ModuleList(nn.ModuleList(pair) for pair in parts)

    def run(self, block, x):
        attention, mlp = block
        x = x + attention(x)
        return x + mlp(x)


class SplitLists(OuterResiduals):
    """Attentions in a list of their own, which are given normed tokens: nobody can tell what their blocks are."""

    def __init__(self, tail, cls):
        super().__init__(tail, cls)
        self.attn = nn.ModuleList(pair[0] for pair in self.blocks)
        self.mlps = nn.ModuleList(pair[1] for pair in self.blocks)
        self.blocks = self.attn

    def run(self, block, x):
        index = list(self.attn).index(block)
        x = x + block(self.norm(x))
        return x + self.mlps[index](x)


def test_skip_connections_outside_of_the_blocks():
    inside, outside = toy(plain), toy(plain, kind=OuterResiduals)
    blocks = {f"blocks.{i}.{j}": f"blocks.{i}.{part}" for i in range(3) for j, part in enumerate(("attn", "mlp"))}
    weights = inside.state_dict()
    outside.load_state_dict(
        {
            name: weights[".".join([blocks[".".join(name.split(".")[:3])], *name.split(".")[3:]])]
            if name.startswith("blocks")
            else weights[name]
            for name in outside.state_dict()
        }
    )
    expected = PredictionMap(inside).maps(images())
    torch.testing.assert_close(PredictionMap(outside).maps(images()), expected, **EXACT)


def test_tokens_that_are_not_the_residual_stream_are_refused():
    with pytest.raises(UnsupportedModelError, match="tokens between layers could not be told"):
        PredictionMap(toy(plain, kind=SplitLists)).attribute(images())


def test_sequence_first_encoders():
    model = tiny.torch_encoder(batch_first=False).double()
    other = tiny.torch_encoder().double()
    other.load_state_dict(model.state_dict())
    words = torch.randn(4, 6, tiny.WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    head = nn.Linear(tiny.WIDTH, 3).double()
    transposed = PredictionMap(lambda x: head(model(x.transpose(0, 1)).mean(0))).maps(words)
    torch.testing.assert_close(transposed, PredictionMap(lambda x: head(other(x).mean(1))).maps(words), **EXACT)


def test_a_model_inside_others_is_found():
    model = tiny.timm_vit().double()
    expected = PredictionMap(model).maps(images())
    for forward in (nn.Sequential(nn.Identity(), model), lambda x: model(x) * 1.0, nn.DataParallel(model)):
        torch.testing.assert_close(PredictionMap(forward).maps(images()), expected, **EXACT)


def test_heads_over_concatenated_layers():
    """DINO's linear evaluation: the class tokens of several layers, concatenated."""
    linear = nn.Linear(2 * tiny.WIDTH, CLASSES).double()

    def concatenated(m, outputs):
        return linear(torch.cat([m.norm(o)[:, 0] for o in outputs[-2:]], -1))

    model = toy(concatenated)
    with pytest.raises(UnsupportedModelError, match="pass head="):
        PredictionMap(model).attribute(images())

    def head(tokens):
        return linear(torch.cat([model.norm(t) for t in tokens.chunk(2, -1)], -1))

    outputs = []
    handles = [b.register_forward_hook(lambda _, args, output: outputs.append(output)) for b in model.blocks[1:]]
    logits = model(images())
    for handle in handles:
        handle.remove()
    both = torch.cat(outputs, -1)
    torch.testing.assert_close(head(both)[:, 0], logits, **EXACT)
    actual = PredictionMap(model, layer=[-2, -1], head=head, space="logit").maps(images()).flatten(2)
    torch.testing.assert_close(actual, head(both)[:, 1:].mT.detach(), **EXACT)


def test_attention_pooling_with_a_head_of_its_own():
    this = case("attention pooling")
    model = this.model
    with pytest.raises(UnsupportedModelError, match=r"does not run on single tokens.*pass head="):
        PredictionMap(model).attribute(this.inputs)

    def head(tokens):
        pooled = model.attn_pool(model.norm(tokens).flatten(0, -2).unsqueeze(1))
        return model.head(model.fc_norm(pooled)).unflatten(0, tokens.shape[:-1])

    for method in (PredictionMap, PredictionAttention):
        relevance = method(model, head=head).attribute(this.inputs, resolution="patch")
        assert relevance.shape == (5, 4, 4)
        assert relevance.std() > 0


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (lambda tokens: tokens, r"head: expected \(\.\.\., 5\) logits"),
        (lambda tokens: tokens[:, 0, :5], "head: expected"),
        (lambda tokens: (tokens,), "got tuple"),
        (nn.Linear(7, 5), "head: it failed on tokens of shape"),
    ],
)
def test_wrong_heads(head, message):
    with pytest.raises(ArgumentError, match=message):
        PredictionMap(case("cls").model, head=head).attribute(case("cls").inputs)


def test_a_given_head_runs_in_eval_mode_and_is_left_as_it_was():
    model = case("cls").model
    head = nn.Sequential(model.norm, nn.Dropout(0.9), model.head)
    head.train()
    model.eval()
    head[1].train()
    expected = PredictionMap(model).attribute(case("cls").inputs)
    torch.testing.assert_close(PredictionMap(model, head=head).attribute(case("cls").inputs), expected)
    assert head[1].training


def test_models_in_training_mode_do_not_drop_anything():
    model = tiny.timm_vit(drop_rate=0.5, proj_drop_rate=0.5)
    expected = PredictionMap(model).attribute(tiny.images())
    model.train()
    torch.testing.assert_close(PredictionMap(model).attribute(tiny.images()), expected)


IMAGE = tiny._HF_IMAGE
TEXT = {**tiny._HF, **tiny._HF_TEXT}
HUGGING_FACE = {
    "deit": (transformers.DeiTForImageClassification, transformers.DeiTConfig, IMAGE),
    "deit distilled": (transformers.DeiTForImageClassificationWithTeacher, transformers.DeiTConfig, IMAGE),
    "beit": (transformers.BeitForImageClassification, transformers.BeitConfig, IMAGE),
    "dinov2": (transformers.Dinov2ForImageClassification, transformers.Dinov2Config, IMAGE),
    "siglip": (
        transformers.SiglipForImageClassification,
        transformers.SiglipConfig,
        {"vision_config": IMAGE, "text_config": TEXT},
    ),
    "electra": (transformers.ElectraForSequenceClassification, transformers.ElectraConfig, TEXT),
    "roberta": (
        transformers.RobertaForSequenceClassification,
        transformers.RobertaConfig,
        {**TEXT, "max_position_embeddings": 40},
    ),
    "distilbert": (
        transformers.DistilBertForSequenceClassification,
        transformers.DistilBertConfig,
        {"vocab_size": 60, "dim": 24, "n_layers": 2, "n_heads": 2, "hidden_dim": 48, "max_position_embeddings": 32},
    ),
    "albert": (transformers.AlbertForSequenceClassification, transformers.AlbertConfig, {**TEXT, "embedding_size": 16}),
}


@pytest.mark.parametrize("name", HUGGING_FACE)
def test_transformers_families_work_as_they_are(name):
    model, config, kwargs = HUGGING_FACE[name]
    built = tiny.seeded(model, config(**kwargs, num_labels=CLASSES))
    inputs = tiny.words() if "sequence" in model.__name__.lower() else tiny.images()
    maps = PredictionMap(built).maps(inputs)
    assert maps.shape[:2] == (2, CLASSES)
    torch.testing.assert_close(maps.sum(1), torch.ones_like(maps[:, 0]))
    assert PredictionAttention(built).attribute(inputs).abs().sum() > 0


def test_dinov2_of_transformers_reads_class_token_and_mean_patch():
    model, config, kwargs = HUGGING_FACE["dinov2"]
    built = tiny.seeded(model, config(**kwargs, num_labels=CLASSES)).double()
    with torch.no_grad():
        tokens = built(images(), output_hidden_states=True).hidden_states[-2][:, 1:]
        tokens = built.dinov2.layernorm(tokens)
        expected = built.classifier(torch.cat([tokens, tokens], -1)).mT
    torch.testing.assert_close(PredictionMap(built, space="logit").maps(images()).flatten(2), expected, **EXACT)


@pytest.mark.parametrize(
    "name",
    ["eva02_tiny_patch14_224", "beit_base_patch16_224", "deit3_small_patch16_224", "vit_base_patch16_siglip_gap_224"],
)
def test_timm_families_work_as_they_are(name):
    import timm

    size = 28 if "patch14" in name else 32
    sizes = {"img_size": size, "embed_dim": 24, "depth": 2, "num_heads": 2, "num_classes": CLASSES}
    model = tiny.seeded(timm.create_model, name, **sizes)
    assert PredictionMap(model).maps(tiny.images(size=(size, size))).shape == (2, CLASSES, 2, 2)


def test_causal_models_that_read_their_last_word_are_refused():
    with pytest.raises(UnsupportedModelError, match="pass head="):
        PredictionMap(tiny.hf_gpt2()).attribute(tiny.words())
