"""The same values on a GPU as on the CPU; and no float64 where a device has none."""

import pytest
import tiny_models
import torch

from xattn import evaluation as ev

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")

GRID = (4, 4)


def both(call, model=None):
    """`call(move)` with everything on the CPU, and with everything on the GPU."""
    found = []
    for device in ("cpu", "cuda"):
        if model is not None:
            model.to(device)
        found.append(call(device))
    return found


@needs_gpu
@pytest.mark.parametrize("fill", ["black", "mean", "blur", "noise", "linear"])
def test_perturbation(fill):
    model = tiny_models.timm_vit()
    x, relevance = tiny_models.images(), torch.randn(2, 32, 32, generator=torch.Generator().manual_seed(0))
    cpu, gpu = both(lambda d: ev.perturbation(model, x.to(d), relevance.to(d), [0, 1], fill=fill, score="logit"), model)
    assert gpu.values.device.type == gpu.fractions.device.type == "cuda"
    assert torch.allclose(cpu.values, gpu.values.cpu(), atol=1e-3)
    assert torch.allclose(cpu.auc(), gpu.auc().cpu(), atol=1e-3)


@needs_gpu
@pytest.mark.parametrize("how", ["fill", "drop", "attention"])
def test_token_masking(how):
    model = tiny_models.timm_vit()
    x, relevance = tiny_models.images(), torch.randn(2, *GRID, generator=torch.Generator().manual_seed(0))
    cpu, gpu = both(lambda d: ev.token_masking(model, x.to(d), relevance.to(d), 0, how=how, score="logit"), model)
    assert torch.allclose(cpu.values, gpu.values.cpu(), atol=1e-3)


@needs_gpu
def test_maps_and_masks():
    generator = torch.Generator().manual_seed(0)
    relevance = torch.randn(3, 16, 16, generator=generator)
    mask = (torch.rand(3, 16, 16, generator=generator) < 0.4).long()
    for threshold in ("mean", "otsu", "best", 0.7):
        cpu, gpu = both(lambda d, t=threshold: ev.segmentation_scores(relevance.to(d), mask.to(d), threshold=t))
        assert all(torch.allclose(cpu[name].double(), gpu[name].cpu().double(), atol=1e-6) for name in cpu)
        assert ev.segmentation_totals(cpu) == pytest.approx(ev.segmentation_totals(gpu))
    for metric in (ev.pointing_game, ev.relevance_mass, ev.relevance_rank):
        cpu, gpu = both(lambda d, m=metric: m(relevance.to(d), mask.to(d)))
        assert torch.allclose(cpu, gpu.cpu())
    for metric in (ev.sparseness, ev.complexity):
        cpu, gpu = both(lambda d, m=metric: m(relevance.to(d)))
        assert torch.allclose(cpu, gpu.cpu())


@needs_gpu
def test_sanity():
    model, x = tiny_models.timm_vit(), tiny_models.images()
    relevance = torch.randn(2, 32, 32, generator=torch.Generator().manual_seed(0))
    cpu, gpu = both(lambda d: ev.infidelity(model, x.to(d), relevance.to(d), 0, samples=10), model)
    assert gpu.shape == cpu.shape
    found = ev.parameter_randomization(lambda m, z, t: z.sum(1), model.cuda(), x.cuda())
    assert torch.allclose(found.similarity.cpu(), torch.ones_like(found.similarity.cpu()))
    target = torch.tensor([0, 1]).cuda()
    assert ev.random_logit(lambda z, t: z.sum(1), x.cuda(), target, 5).device.type == "cuda"
    assert (ev.sensitivity_max(lambda z, t: torch.ones_like(z), x.cuda(), target, samples=2) == 0).all()


class OnMps(torch.Tensor):
    """A tensor that says it lies on MPS, and refuses float64 as that device does."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function == torch.Tensor.device.__get__:  # made anew at each access
            return torch.device("mps")
        if function is torch.Tensor.cpu:
            with torch._C.DisableTorchFunctionSubclass():
                return args[0].as_subclass(torch.Tensor)
        if function is torch.Tensor.double or any(a is torch.float64 for a in (*args, *(kwargs or {}).values())):
            raise TypeError("Cannot convert a MPS Tensor to float64 dtype")
        return super().__torch_function__(function, types, args, kwargs)


def test_a_device_without_float64_gives_way_to_the_cpu():
    generator = torch.Generator().manual_seed(0)
    relevance = torch.randn(3, 16, 16, generator=generator)
    mask = (torch.rand(3, 16, 16, generator=generator) < 0.4).long()
    there = relevance.as_subclass(OnMps), mask.as_subclass(OnMps)
    with pytest.raises(TypeError, match="float64"):
        there[0].double()
    for metric in (ev.segmentation_scores, ev.pointing_game, ev.relevance_mass, ev.relevance_rank):
        expected, found = metric(relevance, mask), metric(*there)
        assert torch.equal(*(x["ap"] if metric is ev.segmentation_scores else x for x in (expected, found)))
        assert type(found) is not OnMps
    assert torch.equal(ev.sparseness(there[0]), ev.sparseness(relevance))
    assert torch.equal(ev.complexity(there[0]), ev.complexity(relevance))
    assert torch.equal(
        ev.rank_correlation(there[0], there[0].flip(0)), ev.rank_correlation(relevance, relevance.flip(0))
    )
    expected = ev.class_discrimination(relevance, relevance.flip(0), mask, 1 - mask)
    found = ev.class_discrimination(there[0], there[0].flip(0), there[1], 1 - there[1])
    assert torch.equal(found["both"], expected["both"])
