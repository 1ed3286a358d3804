"""What kind of chain an attention map is: how fast it mixes, whether it falls apart, how random it is."""

from dataclasses import dataclass

import torch
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from xattn.markov._numeric import epsilon, numeric, widen
from xattn.markov.chain import as_chain
from xattn.markov.eigen import second_eigenvalue
from xattn.markov.stationary import stationary

MIXED = 0.25
"""A chain counts as mixed when every start is this close to stationary, in total variation."""
DOUBLINGS = 40


@dataclass(frozen=True)
class Diagnosis:
    """Properties of chains, each of shape (...) unless said otherwise.

    Attributes:
        lambda2: modulus of the second eigenvalue.
        spectral_gap: 1 - lambda2.
        mixing_time: fewest steps after which a walk from any token is within 1/4 of stationary in total variation;
            infinite for chains that never get there.
        communicating_classes: number of strongly connected components; the chain is reducible if above one.
        closed_classes: number of components that a walk cannot leave.
        entropy_rate: sum_i pi_i H(A_i) in nats: how undecided the next step is.
        stationary: (..., N), pi without teleport (its limit; see `stationary`).
        second_vector: (..., N), the right eigenvector of lambda2, real part, of unit maximum modulus: tokens with
            close values exchange attention fast, and the positive and negative ones form two metastable sets.
        metastable: (..., N), true for the set of the token where the vector is largest in modulus.
    """

    lambda2: Tensor
    spectral_gap: Tensor
    mixing_time: Tensor
    communicating_classes: Tensor
    closed_classes: Tensor
    entropy_rate: Tensor
    stationary: Tensor
    second_vector: Tensor
    metastable: Tensor

    @property
    def reducible(self) -> Tensor:
        """Whether some token cannot be reached from some other, (...)."""
        return self.communicating_classes > 1


@numeric
def diagnose(chain: Tensor) -> Diagnosis:
    """Diagnose attention chains. Dense linear algebra in float64, meant for a few chains rather than a whole data set.

    Args:
        chain: (..., N, N) attention; see `as_chain` for the cleaning (dead rows become uniform).

    Returns:
        A `Diagnosis`.

    Raises:
        ArgumentTypeError: if the chain is no floating point tensor.
        ArgumentError: if the chain is dirty beyond repair; see `as_chain`.

    Example:
        >>> report = diagnose(torch.eye(2))
        >>> int(report.closed_classes), float(report.spectral_gap), float(report.mixing_time)
        (2, 0.0, inf)
    """
    cleaned = as_chain(chain).matrix
    batch, states = cleaned.shape[:-2], cleaned.shape[-1]
    matrix = as_chain(widen(cleaned)).matrix.reshape(-1, states, states)
    pi = stationary(matrix, alpha=1.0).distribution
    lambda2 = second_eigenvalue(cleaned).modulus
    classes, closed = _classes(matrix)
    entropy = (pi * -torch.xlogy(matrix, matrix).sum(-1)).sum(-1)
    vector = _second_vector(matrix, pi)
    dtype = cleaned.dtype
    return Diagnosis(
        lambda2=lambda2,
        spectral_gap=1 - lambda2,
        mixing_time=_mixing_time(matrix, pi, closed).to(dtype).reshape(batch),
        communicating_classes=classes.reshape(batch),
        closed_classes=closed.reshape(batch),
        entropy_rate=entropy.to(dtype).reshape(batch),
        stationary=pi.to(dtype).reshape(*batch, states),
        second_vector=vector.to(dtype).reshape(*batch, states),
        metastable=(vector > 0).reshape(*batch, states),
    )


def _classes(matrix: Tensor) -> tuple[Tensor, Tensor]:
    counts = []
    for links in (matrix > 0).cpu().numpy():
        count, label = connected_components(csr_array(links), directed=True, connection="strong")
        sources, targets = links.nonzero()
        leaving = set(label[sources[label[sources] != label[targets]]].tolist())
        counts.append((int(count), int(count) - len(leaving)))
    table = torch.tensor(counts, dtype=torch.long, device=matrix.device).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def _distance(power: Tensor, pi: Tensor) -> Tensor:
    """Total variation between stationary and the worst start after the steps of `power`, (B,)."""
    return (power - pi.unsqueeze(-2)).abs().sum(-1).amax(-1) / 2


def _mixing_time(matrix: Tensor, pi: Tensor, closed: Tensor) -> Tensor:
    """Smallest n with distance(A^n) <= 1/4. The distance never grows, so n is found bit by bit."""
    powers = [matrix]
    while len(powers) < DOUBLINGS and bool((_distance(powers[-1], pi) > MIXED).logical_and(closed == 1).any()):
        power = powers[-1] @ powers[-1]
        powers.append(power / power.sum(-1, keepdim=True))
    states = matrix.shape[-1]
    reached = torch.eye(states, dtype=matrix.dtype, device=matrix.device).expand_as(matrix)
    steps = torch.zeros_like(pi[:, 0])
    for exponent in reversed(range(len(powers))):
        longer = reached @ powers[exponent]
        short = _distance(longer, pi) > MIXED
        reached = torch.where(short[:, None, None], longer, reached)
        steps = steps + short * 2.0**exponent
    mixed = (closed == 1) & (_distance(powers[-1], pi) <= MIXED)
    # `steps` is the largest number that is not enough, unless standing still already is (one token).
    steps = steps + (_distance(torch.eye(states).to(matrix), pi) > MIXED)
    return torch.where(mixed, steps, torch.inf)


def _second_vector(matrix: Tensor, pi: Tensor) -> Tensor:
    # Deflated by pi, and not by the sink's row, so that pi v = 0 also where the eigenvalue 1 is repeated.
    deflated = matrix - pi.unsqueeze(-2)
    # LAPACK does not converge on some matrices that are nothing but the rounding of that difference.
    deflated = torch.where(deflated.abs() > 16 * epsilon(matrix), deflated, 0)
    values, vectors = torch.linalg.eig(deflated)
    rows = torch.arange(len(matrix), device=matrix.device)
    vector = vectors[rows, :, values.abs().argmax(-1)]
    # The phase is arbitrary: turn it so that the largest entry is real and positive.
    largest = vector[rows, vector.abs().argmax(-1)].unsqueeze(-1)
    return torch.real(vector / largest)
