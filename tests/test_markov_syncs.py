"""Iterations do not wait for the host: what a GPU would have to hand over is counted, operation by operation."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from xattn.markov import _arnoldi, bounce, rollout, stationary
from xattn.markov._deflated import DeflatedMatrix
from xattn.markov._fixed_point import SYNC_EVERY
from xattn.markov._squaring import bracket

READS = {"aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::equal"}


class HostReads(TorchDispatchMode):
    """Counts operations whose result, or whose shape, the host needs before it can go on."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.name().split(".")[0]
        masked = name in ("aten::index", "aten::index_put_") and any(
            isinstance(leaf, torch.Tensor) and leaf.dtype == torch.bool for leaf in tree_leaves(args[1])
        )
        self.count += name in READS or masked
        return func(*args, **(kwargs or {}))


def reads(function):
    with HostReads() as mode:
        function()
    return mode.count


def chains(count=2, states=12):
    """Slow rings: no iteration below ends early."""
    i = torch.arange(states)
    chain = torch.zeros(count, states, states)
    chain[:, i, (i + 1) % states], chain[:, i, i] = 0.999, 0.001
    return chain


def test_the_counter_counts():
    x = torch.ones(3)
    assert reads(lambda: x.sum().item()) == 1
    assert reads(lambda: x[x > 0]) == 1
    assert reads(lambda: bool((x > 0).all())) == 1
    assert reads(lambda: torch.linalg.cholesky_ex(torch.eye(3)).L @ x) == 0


@pytest.mark.parametrize("method", ["power", "anderson"])
def test_tokenrank_asks_the_host_once_in_a_while(method):
    start = torch.nn.functional.one_hot(torch.tensor(0), 12).float()

    def run(iterations):
        found = stationary(
            chains(), 1 - 1e-6, method=method, tol=1e-12, start=start, max_iterations=iterations * SYNC_EVERY
        )
        assert (found.iterations == iterations * SYNC_EVERY).all()

    few, many = reads(lambda: run(1)), reads(lambda: run(3))
    assert many - few == 2


def test_bounces_and_rollout_never_ask_between_steps():
    assert reads(lambda: bounce(chains(), 0, 2)) == reads(lambda: bounce(chains(), 0, 40))
    layers = list(chains(6).unsqueeze(1))
    per_layer = reads(lambda: rollout(layers[:3])) - reads(lambda: rollout(layers[:2]))
    assert reads(lambda: rollout(layers)) - reads(lambda: rollout(layers[:3])) == 3 * per_layer
    assert per_layer <= 2  # the check of the layer's attention, and no more


def test_squarings_and_arnoldi_steps_never_ask(monkeypatch):
    monkeypatch.setattr(_arnoldi, "_orthonormalise", _arnoldi._cholesky_qr)  # what accelerators do; a CPU may ask
    chain = torch.rand(3, 40, 40, generator=torch.Generator().manual_seed(0)).softmax(-1)
    assert reads(lambda: bracket(chain, squarings=12)) == 0
    krylov = _arnoldi._Krylov(DeflatedMatrix(chain), block=4, steps=4, power=2)
    assert reads(lambda: [krylov.grow() for _ in range(3)]) == 0
    assert reads(lambda: krylov.ritz(1e-3, 1e-6)) == 0
