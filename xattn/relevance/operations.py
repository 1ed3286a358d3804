"""Which kind of operation a function is: the words that rule sets are keyed by.

Functions are told apart by name, since torch reaches the same operation as a function, a method and an operator.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor

UNKNOWN = "unknown"

Origin = Callable[[object], str | None]

_ADD = {"add", "__add__", "__radd__", "sub", "__sub__", "__rsub__", "rsub", "subtract"}
_MULTIPLY = {"mul", "__mul__", "__rmul__", "multiply"}
_DIVIDE = {"div", "__div__", "truediv", "__truediv__", "divide", "true_divide"}
_MATMUL = {"matmul", "__matmul__", "bmm", "mm", "einsum", "__rmatmul__"}
_MASKED = -5e3  # no real attention score or bias comes near what models hide keys with


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_KINDS: dict[str, frozenset[str]] = {
    "linear": _words("linear addmm baddbmm"),
    "conv": _words("conv1d conv2d conv3d"),
    "softmax": _words("softmax"),
    "norm": _words("layer_norm rms_norm batch_norm group_norm instance_norm"),
    "activation": _words(
        "gelu relu silu sigmoid tanh softplus elu selu celu leaky_relu hardswish hardsigmoid mish relu6 hardtanh "
        "logsigmoid softsign"
    ),
    "sum": _words("sum mean cumsum interpolate avg_pool1d avg_pool2d adaptive_avg_pool1d adaptive_avg_pool2d"),
    "scale": _words("neg __neg__ negative"),
    "statistic": _words(
        "rsqrt sqrt square pow __pow__ reciprocal norm vector_norm linalg_norm linalg_vector_norm var std abs exp "
        "__rdiv__ __rtruediv__ clamp clamp_min"
    ),
}
_KIND_OF = {name: kind for kind, names in _KINDS.items() for name in names}

KINDS = frozenset(_KINDS) | _words("input_conv matmul add mix normalize gate shift select")
"""The words that rule sets are keyed by."""

# Their derivative moves values without changing them, so relevance moves along with it.
STRUCTURAL = (
    _words("view reshape view_as reshape_as transpose permute swapaxes swapdims movedim moveaxis t flatten unflatten")
    | _words("squeeze unsqueeze expand expand_as broadcast_to repeat tile repeat_interleave flip roll rot90 atleast_2d")
    | _words("cat concat concatenate stack hstack vstack chunk split tensor_split split_with_sizes unbind")
    | _words("__getitem__ select narrow index_select gather take_along_dim masked_select diagonal tril triu as_strided")
    | _words("contiguous clone to type type_as float double half bfloat16 cpu cuda detach requires_grad_")
    | _words("pad constant_pad_nd masked_fill where unfold pixel_unshuffle pixel_shuffle max_pool1d max_pool2d")
    | _words("copy_ __setitem__ masked_fill_ unsqueeze_ squeeze_ transpose_ t_ detach_")
    | _words("dropout alpha_dropout feature_dropout dropout1d dropout2d dropout3d")
    | _words("retain_grad register_hook backward grad")
)


def function_name(func: Callable[..., Any]) -> str:
    """The bare name of a torch function, method, operator or attribute."""
    name = getattr(func, "__name__", type(func).__name__)
    if name == "__get__":
        return f".{getattr(getattr(func, '__self__', None), '__name__', '')}"
    return name


def out_of_place(name: str) -> str | None:
    """The function that an in-place one overwrites its operand with; None if it is not one of those."""
    if name in ("__iadd__", "__isub__", "__imul__", "__itruediv__", "__idiv__"):
        return f"__{name[3:-2]}__"
    if name.endswith("_") and not name.endswith("__") and name not in STRUCTURAL:
        return name[:-1]
    return None


def kind_of(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], depends: Callable[[object], bool], origin: Origin) -> str:  # noqa: E501  # fmt: skip
    """The kind of an operation on operands of which some depend on the explained input.

    Args:
        name: Name of the function.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        depends: Whether an argument depends on the explained input.
        origin: Kind of the operation that made an argument.

    Returns:
        A key of rule sets; "structural" where the gradient carries relevance, "unknown" for other functions.
    """
    if name == "__getitem__":
        return "select" if _drops_dimension(args[1]) else "structural"
    if name in STRUCTURAL or name.startswith("."):
        return "structural"
    if name in _MATMUL:
        operands = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)]
        return "matmul" if sum(map(depends, operands)) > 1 else "linear"
    if name in _ADD | _MULTIPLY | _DIVIDE:
        left, right = args[0], args[1] if len(args) > 1 else kwargs.get("other")
        if name in _ADD:
            return _kind_of_sum(left, right, depends, origin)
        return (_kind_of_product if name in _MULTIPLY else _kind_of_ratio)(left, right, depends, origin)
    return _KIND_OF.get(name, UNKNOWN)


def _drops_dimension(index: object) -> bool:
    parts = index if isinstance(index, tuple) else (index,)
    return any(isinstance(part, int) and not isinstance(part, bool) for part in parts)


def _kind_of_sum(left: object, right: object, depends: Callable[[object], bool], origin: Origin) -> str:
    if depends(left) and depends(right):
        # Two terms, each scaled by a constant tensor: a rotary embedding, not a residual connection.
        return "mix" if origin(left) == origin(right) == "scale" else "add"
    constant = right if depends(left) else left
    if not isinstance(constant, Tensor) or constant.ndim == 0:
        return "shift"
    hides = (constant == 0) | (constant < _MASKED)
    return "shift" if bool(hides.all()) else "add"


def _kind_of_product(left: object, right: object, depends: Callable[[object], bool], origin: Origin) -> str:
    if not (depends(left) and depends(right)):
        return "scale"
    return "normalize" if "statistic" in (origin(left), origin(right)) else "gate"


def _kind_of_ratio(left: object, right: object, depends: Callable[[object], bool], origin: Origin) -> str:
    if not depends(right):
        return "scale"
    return "normalize" if depends(left) else "statistic"
