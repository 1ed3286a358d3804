"""A model spread over devices is explained on the device of its inputs.

Without a second device, tensors that only have shapes and devices stand in: operations on two devices at once fail as
they would in earnest. Backward passes and shapes that depend on values cannot be played; `test_gpu.py` has them.
"""

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer
from torch._subclasses.fake_tensor import FakeTensorMode

import xattn._state
from xattn.attributions import methods

PLAYED = [
    "n_bounce",
    "column_sum",
    "raw_attention",
    "attention_rollout",
    "dino_attention",
    "prediction_map",
    "prediction_attention",
    "center",
]


class OnlyDevices(FakeTensorMode):
    """Tensors without values; each test of a value says yes."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten._local_scalar_dense.default:
            return args[0].dtype == torch.bool or 1
        return super().__torch_dispatch__(func, types, args, kwargs)


def part(device):
    with torch.device(device):
        sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 3, "num_heads": 3, "num_classes": 5}
        return VisionTransformer(**sizes).eval()


@pytest.mark.parametrize("method", PLAYED)
@pytest.mark.parametrize("home", ["cpu", "cuda:0"])
def test_layers_of_two_devices_meet_on_the_inputs(method, home, monkeypatch):
    monkeypatch.setattr(xattn._state, "_cuda_devices", lambda modules: [])  # there is no generator to keep
    with OnlyDevices(allow_non_fake_inputs=True):
        model, far = part(home), part("cuda:1")
        model.blocks[1], model.blocks[2], model.norm, model.head = far.blocks[1], far.blocks[2], far.norm, far.head
        model.blocks[1].register_forward_pre_hook(lambda block, args: tuple(x.to("cuda:1") for x in args))
        found = methods[method](model).attribute(torch.randn(2, 3, 32, 32, device=home), resolution="token")
        assert (found.shape, found.device) == ((2, 17), torch.device(home))
