"""The result of one `explain` call: maps with everything needed to read, show, and repeat them."""

import base64
import html
import io
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

import numpy as np
from torch import Tensor
from torch.nn import functional as F

from xattn.errors import ArgumentError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FORMAT = 1
_KEY = "xattn_explanation"
_TENSORS = ("image", "input")


@dataclass(frozen=True)
class ClassProbability:
    """One class and its probability."""

    name: str
    index: int
    probability: float


@dataclass(frozen=True, eq=False)
class Explanation:
    """Relevance maps of one picture by one or several methods. All tensors are on the CPU.

    Attributes:
        image: (3, H, W) in 0..1: what the model saw, for display.
        input: (C, H, W): what the model was given.
        maps: Method name to raw relevance of the patches (h, w); a method that is not of this library and works on
            pixels gives (H, W). `map` gives other resolutions.
        prediction: The most probable classes, best first; empty where the model has no class scores.
        target: The class that was explained, None if no method asked for one and the model has no class scores.
        target_name: Its name.
        methods: Method name to its class and configuration.
        model: The model's name.
        seconds: Method name to the wall time it took, forward call included.
        skipped: Methods that refused this model, with the reason.
        warnings: Method name to what it warned of.
        versions: Of the libraries involved.
        source: File the picture came from, "" if none.
    """

    image: Tensor
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

    def map(
        self,
        method: str,
        resolution: Literal["patch", "input"] = "input",
        interpolation: Literal["nearest", "bilinear"] = "nearest",
    ) -> Tensor:
        """One method's map.

        Args:
            method: A key of `maps`.
            resolution: "input" spreads a patch's value over its pixels (H, W); "patch" is the map as it is kept.
            interpolation: How it is spread.
        """
        if method not in self.maps:
            raise ArgumentError(f"method: expected one of {', '.join(self.maps)}; got {method!r}")
        if resolution not in ("patch", "input") or interpolation not in ("nearest", "bilinear"):
            raise ArgumentError(
                'resolution: expected "patch" or "input", interpolation "nearest" or "bilinear"; '
                f"got {resolution!r} and {interpolation!r}"
            )
        relevance = self.maps[method]
        if resolution == "patch":
            return relevance
        mode = "nearest-exact" if interpolation == "nearest" else "bilinear"
        return F.interpolate(relevance[None, None], self.input.shape[-2:], mode=mode)[0, 0]

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

    def plot(self, **options: Any) -> "Figure":  # noqa: ANN401
        """The picture and one overlay per method; `options` go to `xattn.viz.comparison`."""
        from xattn.viz import comparison

        return comparison(self.image, self.maps, **{"title": self.title, **options})

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
        tensors |= {name: getattr(self, name).contiguous() for name in _TENSORS}
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
        if isinstance(facts["target"], list):
            facts["target"] = tuple(facts["target"])
        return cls(**{name: tensors[name] for name in _TENSORS}, **facts)

    def _repr_html_(self) -> str:
        """For notebooks: the figure, the predicted classes, what was skipped."""
        buffer = io.BytesIO()
        self.plot().savefig(buffer, format="png", dpi=80)
        figure = base64.b64encode(buffer.getvalue()).decode()
        alt = html.escape(f"{self.title}: {', '.join(self.maps)}", quote=True)
        lines = [f'<img alt="{alt}" style="max-width:100%" src="data:image/png;base64,{figure}">']
        if self.prediction:
            classes = ", ".join(f"{html.escape(c.name)} {c.probability:.1%}" for c in self.prediction)
            lines.append(f"<div>Predicted: {classes}. Explained: <b>{html.escape(self.target_name)}</b>.</div>")
        lines += [f"<div>{html.escape(name)} skipped: {html.escape(why)}</div>" for name, why in self.skipped.items()]
        lines += [f"<div>{html.escape(name)}: {html.escape('; '.join(w))}</div>" for name, w in self.warnings.items()]
        return "".join(lines)


def save_arrays(explanations: "Sequence[Explanation]", path: str | os.PathLike[str]) -> Path:
    """Write K explanations of one model as NumPy arrays (.npz).

    `images` (K, 3, H, W), `methods` (M,), `map/NAME` (K, h, w) for each of them, and `facts`: JSON with prediction,
    target, configuration, versions and seconds of each.
    """
    if not explanations:
        raise ArgumentError("explanations: expected at least one, got none")
    names = list(explanations[0].maps)
    if any(list(e.maps) != names or e.image.shape != explanations[0].image.shape for e in explanations):
        raise ArgumentError("explanations: expected the same methods and image sizes in all")
    arrays: dict[str, Any] = {
        f"map/{name}": np.stack([e.maps[name].float().numpy() for e in explanations]) for name in names
    }
    arrays |= {"images": np.stack([e.image.float().numpy() for e in explanations]), "methods": np.array(names)}
    arrays["facts"] = np.array(json.dumps([e.facts() for e in explanations]))
    return write_atomically(path, partial(np.savez_compressed, **arrays))


def write_atomically(path: str | os.PathLike[str], write: Callable[[BinaryIO], object]) -> Path:
    """Let `write` fill a file beside `path`, then give it that name; missing folders are made.

    A failure leaves what was there before, and nothing else.

    Raises:
        ArgumentError: If the folder cannot be made or written to.
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, partial = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".partial")
    except OSError as error:
        raise ArgumentError(f"path: cannot write {str(path)!r} ({error.strerror})") from None
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
        Path(partial).chmod(0o666 & ~_umask())
        Path(partial).replace(path)
    except BaseException:
        Path(partial).unlink(missing_ok=True)
        raise
    return path


def _as_json(value: Any) -> Any:  # noqa: ANN401
    """Tuples become lists, predictions become dictionaries."""
    if isinstance(value, tuple):
        return [asdict(entry) if isinstance(entry, ClassProbability) else entry for entry in value]
    return value


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
