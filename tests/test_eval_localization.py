"""Localisation: values by hand, ties, and maps that know nothing of the class."""

import pytest
import torch

from xattn.errors import ArgumentError, ArgumentTypeError
from xattn.evaluation import class_discrimination, pointing_game, relevance_mass, relevance_rank

MASK = torch.tensor([[[1, 1, 0], [0, 0, 0], [0, 0, 0]]])
MAP = torch.tensor([[[4.0, 1.0, 3.0], [0.0, -5.0, 0.0], [0.0, 0.0, 0.0]]])


def test_values_by_hand():
    assert pointing_game(MAP, MASK).item() == 1
    assert pointing_game(-MAP, MASK).item() == 0
    assert relevance_mass(MAP, MASK).item() == pytest.approx(5 / 8)  # the negative pixel is no mass
    assert relevance_rank(MAP, MASK).item() == 0.5


def test_tolerance_widens_the_object():
    relevance = torch.zeros(1, 3, 3)
    relevance[0, 1, 1] = 1
    assert pointing_game(relevance, MASK).item() == 0
    assert pointing_game(relevance, MASK, tolerance=1).item() == 1
    with pytest.raises(ArgumentError, match="tolerance"):
        pointing_game(relevance, MASK, tolerance=-1)
    with pytest.raises(ArgumentTypeError, match=r"tolerance: expected an integer, got 1\.5"):
        pointing_game(relevance, MASK, tolerance=1.5)


def test_ties_count_by_their_part_on_the_object():
    constant = torch.ones(1, 3, 3)
    assert pointing_game(constant, MASK).item() == pytest.approx(2 / 9)
    assert relevance_rank(constant, MASK).item() == pytest.approx(2 / 9)
    assert relevance_mass(constant, MASK).item() == pytest.approx(2 / 9)
    patches = torch.tensor([[[1.0, 0.0], [0.0, 0.0]]])  # one patch of four pixels holds the maximum
    mask = torch.zeros(1, 4, 4, dtype=torch.bool)
    mask[0, 0, :2] = True
    assert pointing_game(patches, mask).item() == 0.5
    assert relevance_rank(patches, mask).item() == 0.5


@pytest.mark.parametrize("metric", [pointing_game, relevance_mass, relevance_rank])
def test_undefined_is_nan_for_its_sample_only(metric):
    maps = MAP.repeat(4, 1, 1)
    maps[1, 2, 2] = torch.nan
    masks = MASK.repeat(4, 1, 1)
    masks[2] = 0
    result = metric(maps, masks)
    assert result.isnan().tolist() == [False, True, True, False]
    assert result[0] == result[3] == metric(MAP, MASK)[0]


def test_mass_without_positive_relevance_is_undefined():
    assert relevance_mass(-MAP.abs(), MASK).isnan().item()
    assert not pointing_game(-MAP.abs() - 1, MASK).isnan().item()


@pytest.mark.parametrize("metric", [pointing_game, relevance_mass, relevance_rank])
def test_oracle_beats_chance_beats_inverse(metric):
    masks = torch.zeros(6, 8, 8, dtype=torch.long)
    masks[:, 2:5, 3:6] = 1
    noise = torch.rand(6, 8, 8, generator=torch.Generator().manual_seed(0))
    means = [metric(m, masks).mean() for m in (masks + 0.1 * noise, noise, 1.2 - masks + 0.1 * noise)]
    assert means[0] > means[1] >= means[2]
    assert means[0] > 0.5


@pytest.mark.parametrize("metric", [pointing_game, relevance_rank])
def test_monotone_transforms_change_nothing(metric):
    maps = torch.randn(5, 8, 8, generator=torch.Generator().manual_seed(1)).double()
    masks = (torch.rand(5, 8, 8, generator=torch.Generator().manual_seed(2)) < 0.3).long()
    assert torch.equal(metric(maps, masks), metric(maps.exp() * 3 - 50, masks))


def two_objects():
    first, second = torch.zeros(2, 2, 6, 6, dtype=torch.bool).unbind(0)
    first[:, :2, :3] = True
    second[:, 4:, 4:] = True
    return first, second


def test_class_discrimination():
    first, second = two_objects()
    right = class_discrimination(first.float(), second.float(), first, second)
    assert right["both"].tolist() == [1, 1]
    swapped = class_discrimination(second.float(), first.float(), first, second)
    assert swapped["per_target"].tolist() == [0, 0]
    half = class_discrimination(first.float(), first.float(), first, second)
    assert (half["first"] == 1).all()
    assert (half["second"] == 0).all()


def test_a_class_agnostic_map_is_never_right_for_both():
    first, second = two_objects()
    noise = torch.randn(2, 6, 6, generator=torch.Generator().manual_seed(3))
    for agnostic in (noise, torch.ones(2, 6, 6)):
        result = class_discrimination(agnostic, agnostic, first, second)
        assert result["both"].tolist() == [0, 0]
    with pytest.raises(ArgumentError, match="second_mask"):
        class_discrimination(noise, noise, first, second[:1])


def test_class_discrimination_is_undefined_without_a_second_object_or_with_nan():
    first, second = two_objects()
    maps = torch.rand(2, 6, 6, generator=torch.Generator().manual_seed(3))
    second = second.clone()
    second[0] = False
    assert class_discrimination(maps, maps, first, second)["both"].isnan().tolist() == [True, False]
    maps[1, 0, 0] = torch.nan
    assert class_discrimination(maps, maps, first, two_objects()[1])["both"].isnan().tolist() == [False, True]
