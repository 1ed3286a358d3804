"""Tiny random models of every family that the families table lists; see `tiny_models` for the commonest."""

from typing import Any

import tiny_models
import torch
from tiny_models import CLASSES, DEPTH, HEADS, MAX_WORDS, SIZE, VOCABULARY, WIDTH, images, seeded, words
from torch import Tensor, nn

_EVA = {"img_size": SIZE, "patch_size": 8, "embed_dim": WIDTH, "depth": DEPTH, "num_heads": HEADS}


def timm_model(name: str, **kwargs: Any) -> nn.Module:
    """A timm entry point with random weights and few classes."""
    import timm

    return seeded(timm.create_model, name, **{"num_classes": CLASSES, **kwargs})


def timm_dinov3() -> nn.Module:
    """DINOv3: rotary positions, four registers behind the class token."""
    return timm_model("vit_small_patch16_dinov3", **{**_EVA, "embed_dim": 32})


def timm_eva02() -> nn.Module:
    """EVA02: SwiGLU, rotary positions, mean of the patches."""
    return timm_model("eva02_tiny_patch14_224", **{**_EVA, "embed_dim": 32})


def timm_beit() -> nn.Module:
    """BEiT: relative position bias inside the attention."""
    return timm_model("beit_base_patch16_224", **_EVA)


def timm_siglip() -> nn.Module:
    """SigLIP's image tower: no class token, attention pooling."""
    return timm_model("vit_base_patch16_siglip_224", **_EVA)


def timm_cait() -> nn.Module:
    """CaiT: talking heads on patches, the class token joins for the last layers."""
    return timm_model("cait_xxs24_224", **_EVA)


def timm_xcit(size: int = 64) -> nn.Module:
    """XCiT: attention between channels; with 64 pixels it has as many patches as channels in a head."""
    return timm_model("xcit_nano_12_p16_224", img_size=size, embed_dim=32, depth=DEPTH, num_heads=2)


def timm_levit() -> nn.Module:
    """LeViT: convolutions, then stages of attention with fewer and fewer tokens."""
    return timm_model("levit_128s", img_size=64)


def timm_maxvit() -> nn.Module:
    """MaxViT: attention in windows and on a grid, among convolutions."""
    return timm_model("maxvit_tiny_tf_224", img_size=64, embed_dim=(32, 32, 32, 32), depths=(1, 1, 1, 1))


def timm_hiera() -> nn.Module:
    """Hiera: attention within mask units, then everywhere, with pooled queries between."""
    return timm_model("hiera_tiny_224", img_size=(64, 64), embed_dim=16, stages=(1, 1, 1, 1), num_heads=1)


def timm_sam() -> nn.Module:
    """SAM's encoder: windows, with some layers of full attention."""
    sizes = {**_EVA, "img_size": 64, "depth": 2, "window_size": 4, "global_attn_indexes": (1,)}
    return timm_model("samvit_base_patch16_224", **sizes)


def timm_pvt() -> nn.Module:
    """PVTv2: stages, keys reduced by a convolution."""
    return timm_model("pvt_v2_b0", depths=(1, 1, 1, 1))


def timm_mvit() -> nn.Module:
    """MViTv2: stages, queries and keys pooled by convolutions."""
    from timm.models.mvitv2 import MultiScaleVit, MultiScaleVitCfg

    config = MultiScaleVitCfg(depths=(1, 1, 1, 1), embed_dim=16)
    return seeded(MultiScaleVit, config, img_size=(64, 64), num_classes=CLASSES)


_HF = {"hidden_size": WIDTH, "num_hidden_layers": DEPTH, "num_attention_heads": HEADS, "intermediate_size": 2 * WIDTH}
_IMAGE = {**_HF, "image_size": SIZE, "patch_size": 8}
_TEXT = {"vocab_size": VOCABULARY, "max_position_embeddings": MAX_WORDS, "pad_token_id": 0}
_IDS = {"bos_token_id": 1, "eos_token_id": 2}


def open_clip_vit() -> nn.Module:
    """open_clip's image tower: torch's multi-head attention in residual blocks."""
    from open_clip.transformer import VisionTransformer

    sizes = {"image_size": 32, "patch_size": 8, "width": 24, "layers": DEPTH, "heads": 2, "output_dim": 5}
    return seeded(VisionTransformer, **sizes, mlp_ratio=2.0)


def hf_siglip() -> nn.Module:
    """SigLIP with both towers."""
    from transformers import SiglipConfig, SiglipModel

    return seeded(SiglipModel, SiglipConfig(text_config={**_HF, **_TEXT, **_IDS}, vision_config=_IMAGE))


def hf_deit(distilled: bool = True) -> nn.Module:
    """DeiT with class and distillation token, which both its versions have."""
    from transformers import DeiTConfig, DeiTForImageClassification, DeiTForImageClassificationWithTeacher

    head = DeiTForImageClassificationWithTeacher if distilled else DeiTForImageClassification
    return seeded(head, DeiTConfig(**_IMAGE, num_labels=CLASSES))


def hf_blip() -> nn.Module:
    """BLIP's image encoder and its text decoder, which looks at the image by cross-attention."""
    from transformers import BlipConfig, BlipForConditionalGeneration

    text = {**_HF, **_TEXT, **_IDS, "encoder_hidden_size": WIDTH, "sep_token_id": 3}
    return seeded(BlipForConditionalGeneration, BlipConfig(text_config=text, vision_config=_IMAGE))


def hf_distilbert() -> nn.Module:
    """DistilBERT with a classification head."""
    from transformers import DistilBertConfig, DistilBertForSequenceClassification

    sizes = {"dim": WIDTH, "n_layers": DEPTH, "n_heads": HEADS, "hidden_dim": 2 * WIDTH, "num_labels": CLASSES}
    return seeded(DistilBertForSequenceClassification, DistilBertConfig(**sizes, **_TEXT))


def hf_roberta() -> nn.Module:
    """RoBERTa with a classification head."""
    from transformers import RobertaConfig, RobertaForSequenceClassification

    return seeded(RobertaForSequenceClassification, RobertaConfig(**_HF, **_TEXT, **_IDS, num_labels=CLASSES))


def hf_llama() -> nn.Module:
    """Llama with two query heads for one key head, and a classification head on the last token."""
    from transformers import LlamaConfig, LlamaForSequenceClassification

    config = LlamaConfig(**_HF, **_TEXT, **_IDS, num_key_value_heads=1, num_labels=CLASSES)
    return seeded(LlamaForSequenceClassification, config)


def hf_t5() -> nn.Module:
    """T5: encoder and decoder with relative position bias."""
    from transformers import T5Config, T5Model

    sizes = {"d_model": WIDTH, "d_kv": 12, "d_ff": 2 * WIDTH, "num_layers": DEPTH, "num_heads": HEADS}
    return seeded(T5Model, T5Config(**sizes, vocab_size=VOCABULARY, decoder_start_token_id=0))


class Answer(nn.Module):
    """A model's answer as a tensor (B, scores): what `read` takes from its output.

    Args:
        model: Called with the explained input by position, or by the keyword `name`.
        read: From the output to scores.
        name: Keyword of the explained input.
        others: Further keyword arguments.
    """

    def __init__(self, model: nn.Module, read: Any, name: str = "", **others: Any) -> None:
        super().__init__()
        self.model, self._read, self._name, self._others = model, read, name, others

    def forward(self, x: Tensor) -> Tensor:
        output = self.model(**{self._name: x}, **self._others) if self._name else self.model(x, **self._others)
        return self._read(output)


def siglip_images() -> nn.Module:
    """SigLIP's scores of three texts for the image."""
    return Answer(hf_siglip(), lambda out: out.logits_per_image, "pixel_values", input_ids=words(3))


def siglip_words() -> nn.Module:
    """SigLIP's scores of two images for the text."""
    return Answer(hf_siglip(), lambda out: out.logits_per_text, "input_ids", pixel_values=images())


def hf_dinov2() -> nn.Module:
    """DINOv2 with four registers; the class token's state is the answer."""
    return Answer(tiny_models.hf_dinov2(registers=True), lambda out: out.last_hidden_state[:, 0])


def blip_images() -> nn.Module:
    """BLIP's scores of the next word, for the image."""
    return Answer(hf_blip(), lambda out: out.logits[:, -1], "pixel_values", input_ids=words())


def t5_words() -> nn.Module:
    """The decoder's first state for the encoder's words."""
    start = torch.zeros(2, 1, dtype=torch.long)
    return Answer(hf_t5(), lambda out: out.last_hidden_state[:, 0], "input_ids", decoder_input_ids=start)
