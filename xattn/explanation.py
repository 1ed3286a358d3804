"""The result of one `explain` call: maps with everything needed to read, show and repeat them."""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
from torch import Tensor
from torch.nn import functional as F

from xattn._files import write_atomically as write_atomically
from xattn.errors import ArgumentError, UnsupportedModelError

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

_FORMAT = 1
_KEY = "xattn_explanation"
_TENSORS = ("image", "input")


@dataclass(frozen=True)
class ClassProbability:
    """One class and its probability."""

    name: str
    index: int
    probability: float


@dataclass(frozen=True, eq=False, repr=False)
class Explanation:
    """Relevance maps of one picture or sentence by one or several methods. All tensors are on the CPU.

    Attributes:
        image: (3, H, W) in 0..1: what the model saw, for display; None for a sentence.
        input: (C, H, W), or the token ids (N,) of a sentence: what the model was given.
        maps: Method name to raw relevance of the patches (h, w) or of the word pieces (N,); a method that is not of
            this library and works on pixels gives (H, W). `map` and `per_word` give other resolutions.
        prediction: The most probable classes, best first; empty where the model has no class scores.
        target: The class that was explained, None if no method asked for one and the model has no class scores.
        target_name: Its name.
        methods: Method name to its class and configuration.
        model: The model's name.
        seconds: Method name to the wall time it took; passes through the model that several methods share are divided
            among them.
        skipped: Methods that refused this model, with the reason.
        warnings: Method name to what it warned of.
        versions: Of the libraries involved.
        source: File the picture came from, "" if none.
        text: The sentence, "" for a picture.
        tokens: Its word pieces, special tokens included.
        words: Its words and punctuation marks.
        spans: (start, stop) of each word among the tokens.
    """

    image: Tensor | None
    input: Tensor
    maps: dict[str, Tensor]
    prediction: tuple[ClassProbability, ...] = ()
    target: int | tuple[int, ...] | None = None
    target_name: str = ""
    methods: dict[str, dict[str, Any]] = field(default_factory=dict)
    model: str = ""
    seconds: dict[str, float] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    warnings: dict[str, list[str]] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    source: str = ""
    text: str = ""
    tokens: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    spans: tuple[tuple[int, int], ...] = ()

    def __repr__(self) -> str:
        maps = ", ".join(f"{name} {tuple(relevance.shape)}" for name, relevance in self.maps.items())
        return f"<Explanation {self.title or 'of a model'}; {maps}>"

    @property
    def is_text(self) -> bool:
        """Whether a sentence was explained."""
        return bool(self.tokens)

    def map(
        self,
        method: str,
        resolution: Literal["patch", "input"] = "input",
        interpolation: Literal["nearest", "bilinear"] = "nearest",
    ) -> Tensor:
        """One method's map.

        Args:
            method: A key of `maps`.
            resolution: "input" spreads a patch's value over its pixels (H, W); "patch" is the map as it is kept. For
                a sentence both are (N,).
            interpolation: How it is spread.
        """
        self._check(method)
        if resolution not in ("patch", "input") or interpolation not in ("nearest", "bilinear"):
            raise ArgumentError(
                'resolution: expected "patch" or "input", interpolation "nearest" or "bilinear"; '
                f"got {resolution!r} and {interpolation!r}"
            )
        relevance = self.maps[method]
        if resolution == "patch" or self.is_text:
            return relevance
        mode = "nearest-exact" if interpolation == "nearest" else "bilinear"
        return F.interpolate(relevance[None, None], self.input.shape[-2:], mode=mode)[0, 0]

    def per_word(self, method: str) -> Tensor:
        """One method's relevance summed over the pieces of each word of the sentence, (words,).

        Special tokens belong to no word, so the words' sum may be less than the map's.

        Raises:
            ArgumentError: If there is no such map.
            UnsupportedModelError: If a picture was explained.
        """
        from xattn.models.wordpiece import Words

        self._check(method)
        if not self.is_text:
            raise UnsupportedModelError("per_word: a picture was explained, it has no words; use map")
        return Words(self.words, self.spans, self.tokens).per_word(self.maps[method])

    def shown_tokens(self, method: str, *, pieces: bool = False) -> tuple[tuple[str, ...], Tensor]:
        """The words of the sentence, or its word pieces, and their relevance."""
        return (self.tokens, self.map(method)) if pieces else (self.words, self.per_word(method))

    def _check(self, method: str) -> None:
        if method not in self.maps:
            raise ArgumentError(f"method: expected one of {', '.join(self.maps)}; got {method!r}")

    @property
    def prediction_line(self) -> str:
        """The predicted class with its probability, and the target where it is another one."""
        parts = []
        if self.prediction:
            best = self.prediction[0]
            parts.append(f"{best.name} {best.probability:.1%}")
        if self.target is not None and self.target not in [entry.index for entry in self.prediction[:1]]:
            parts.append(f"explained: {self.target_name}")
        return ", ".join(parts)

    @property
    def title(self) -> str:
        """One line: model, prediction and target."""
        return ": ".join(part for part in (self.model, self.prediction_line) if part)

    def plot(self, *, pieces: bool = False, **options: Any) -> "Figure":  # noqa: ANN401
        """The picture and one overlay per method, or the words coloured by each method.

        Args:
            pieces: Colour word pieces, special tokens included, in place of words.
            options: Of `xattn.viz.comparison`, or of `xattn.viz.tokens` for a sentence.
        """
        from xattn import viz

        options = {"title": self.title, **options}
        if not self.is_text:
            return viz.comparison(self.image, self.maps, **options)
        shown = {name: self.shown_tokens(name, pieces=pieces)[1] for name in self.maps}
        return viz.tokens(self.tokens if pieces else self.words, shown, **options)

    def agreement(self) -> "DataFrame":
        """Spearman's rank correlation of every pair of maps (methods x methods), of words for a sentence.

        Maps of pixels and of patches meet at pixels. A constant map, or one with NaN, agrees with nothing: NaN.
        """
        from xattn._agreement import rank_agreement

        if self.is_text:
            return rank_agreement({name: self.per_word(name) for name in self.maps})
        is_mixed = len({relevance.shape for relevance in self.maps.values()}) > 1
        return rank_agreement({name: self.map(name, "input" if is_mixed else "patch") for name in self.maps})

    def facts(self) -> dict[str, Any]:
        """Everything but the tensors, in the types of JSON."""
        return {f.name: _as_json(getattr(self, f.name)) for f in fields(self) if f.name not in (*_TENSORS, "maps")}

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write everything to one safetensors file, its facts as JSON in the file's metadata.

        The file appears under its name only when it is complete.
        """
        from safetensors.torch import save

        facts = self.facts() | {"format": _FORMAT, "names": list(self.maps)}
        tensors = {f"map/{name}": relevance.contiguous() for name, relevance in self.maps.items()}
        tensors |= {name: getattr(self, name).contiguous() for name in _TENSORS if getattr(self, name) is not None}
        content = save(tensors, {_KEY: json.dumps(facts)})
        return write_atomically(path, lambda file: file.write(content))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Explanation":
        """Read what `save` wrote.

        Raises:
            ArgumentError: If there is no such file, it is damaged, or it is something else.
        """
        from safetensors import SafetensorError, safe_open

        path = Path(path)
        if not path.is_file():
            raise ArgumentError(f"path: there is no file {str(path)!r}")
        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise ArgumentError(
                f"path: {str(path)!r} is damaged or not written by Explanation.save ({error})"
            ) from None
        if _KEY not in metadata:
            raise ArgumentError(f"path: {str(path)!r} is a safetensors file, but not one of Explanation.save")
        facts = json.loads(metadata[_KEY])
        if facts.pop("format") != _FORMAT:
            raise ArgumentError(f"path: {str(path)!r} was written by a newer xattn ({facts.get('versions')})")
        facts["maps"] = {name: tensors[f"map/{name}"] for name in facts.pop("names")}
        facts["prediction"] = tuple(ClassProbability(**entry) for entry in facts["prediction"])
        for name in ("target", "tokens", "words"):
            if isinstance(facts.get(name), list):
                facts[name] = tuple(facts[name])
        facts["spans"] = tuple((start, stop) for start, stop in facts.get("spans", ()))
        return cls(image=tensors.get("image"), input=tensors["input"], **facts)

    def html(self, *, pieces: bool = False) -> str:
        """The maps as HTML: a figure of the picture, or the words coloured by each method.

        Args:
            pieces: Colour word pieces, special tokens included, in place of words.
        """
        from xattn._explanation_html import fragment

        return fragment(self, pieces=pieces)

    def _repr_html_(self) -> str:
        """For notebooks."""
        return self.html()


def save_arrays(explanations: "Sequence[Explanation]", path: str | os.PathLike[str]) -> Path:
    """Write K explanations of one model as NumPy arrays (.npz).

    `methods` (M,), `map/NAME` for each of them, and `facts`: JSON with prediction, target, configuration, versions and
    seconds of each. Pictures: `images` (K, 3, H, W), maps (K, h, w). Sentences: `tokens` (K, N), maps (K, N), `words`
    (K, W) and `words/NAME` (K, W), where shorter sentences are filled up with empty strings and zeros.
    """
    if not explanations:
        raise ArgumentError("explanations: expected at least one, got none")
    names, shape = list(explanations[0].maps), _shape(explanations[0])
    if any(list(e.maps) != names or _shape(e) != shape for e in explanations):
        raise ArgumentError("explanations: expected the same methods and image sizes in all")
    arrays: dict[str, Any] = {
        f"map/{name}": _stack([e.maps[name].float().numpy() for e in explanations]) for name in names
    }
    if shape is None:
        arrays |= {f"words/{name}": _stack([e.per_word(name).float().numpy() for e in explanations]) for name in names}
        arrays |= {part: _stack([np.array(getattr(e, part)) for e in explanations]) for part in ("tokens", "words")}
    else:
        arrays["images"] = np.stack([e.image.float().numpy() for e in explanations if e.image is not None])
    arrays |= {"methods": np.array(names), "facts": np.array(json.dumps([e.facts() for e in explanations]))}
    return write_atomically(path, partial(np.savez_compressed, **arrays))


def _shape(explanation: Explanation) -> tuple[int, ...] | None:
    return None if explanation.image is None else tuple(explanation.image.shape)


def _stack(rows: "Sequence[npt.NDArray[Any]]") -> "npt.NDArray[Any]":
    """Arrays of one shape, or vectors of several lengths, the shorter ones filled up."""
    if rows[0].ndim != 1:
        return np.stack(rows)
    longest = max(map(len, rows))
    return np.stack([np.concatenate([row, np.zeros(longest - len(row), row.dtype)]) for row in rows])


def _as_json(value: Any) -> Any:  # noqa: ANN401
    """Tuples become lists, predictions become dictionaries."""
    if isinstance(value, tuple):
        return [asdict(entry) if isinstance(entry, ClassProbability) else entry for entry in value]
    return value
