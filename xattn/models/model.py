"""A loaded model: the network with what is needed to feed it and to read its answer."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from xattn.errors import ArgumentError, ArgumentTypeError
from xattn.layout import TokenLayout, check_layout
from xattn.models.classifier import Classifier
from xattn.models.image import ImageLike, Preprocess


@dataclass(frozen=True)
class Prediction:
    """One class and its probability."""

    name: str
    index: int
    probability: float


@dataclass(frozen=True, eq=False)
class Model(Classifier):
    """A network ready to be explained; calling it returns logits, so it serves as captum's `forward_func`.

    Attributes:
        name: what `load` was called with.
        module: the network, in evaluation mode.
        transform: the preprocessing; `transform.mask` sends a mask through the same geometry.
        classes: class names in the order of the logits.
        layout: which token is what; None to find out when the model runs.
        description: one sentence on what the model is.

    Raises:
        ArgumentTypeError: if one of them has another type.

    Example:
        >>> from xattn.models import load
        >>> from xattn.models.scenes import Scenes
        >>> model = load("demo")
        >>> x = model.preprocess(Scenes("test", 1)[0].image)
        >>> tuple(model(x[None]).shape)
        (1, 10)
    """

    name: str
    module: nn.Module
    transform: Preprocess
    classes: tuple[str, ...] = ()
    layout: TokenLayout | None = None
    description: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.transform, Preprocess):
            raise ArgumentTypeError(f"transform: expected a Preprocess, got {type(self.transform).__name__}")
        check_layout(self.layout)

    @property
    def mean(self) -> tuple[float, ...]:
        """Mean of the normalisation, per channel."""
        return self.transform.mean

    @property
    def std(self) -> tuple[float, ...]:
        """Standard deviation of the normalisation, per channel."""
        return self.transform.std

    def preprocess(self, image: ImageLike) -> Tensor:
        """A file name, PIL image, (H, W, C) array or (C, H, W) tensor to the (C, h, w) tensor the module wants."""
        return self.transform(image).to(self.device, self.dtype)

    def denormalize(self, x: Tensor) -> Tensor:
        """What the model was given (..., C, h, w) as RGB in [0, 1], for display."""
        return self.transform.denormalize(x)

    @torch.no_grad()
    def predict(self, x: Tensor, k: int = 3) -> list[list[Prediction]]:
        """The k most probable classes of each sample, best first.

        Args:
            x: a preprocessed sample (C, h, w) or batch (B, C, h, w).
            k: how many; more than there are classes means all.
        """
        if k < 1:
            raise ArgumentError(f"k must be at least 1; got {k}.")
        probabilities = self(x[None] if x.ndim == 3 else x).float().softmax(-1)
        top = probabilities.topk(min(k, probabilities.shape[-1]))
        return [
            [Prediction(self.class_name(i), i, p) for i, p in zip(indices, values, strict=True)]
            for indices, values in zip(top.indices.tolist(), top.values.tolist(), strict=True)
        ]
