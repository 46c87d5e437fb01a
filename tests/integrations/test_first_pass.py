"""The part of a batch on which the ascent is found."""

from collections import namedtuple

import pytest
import torch
from transformers import BatchEncoding

from gasam.integrations.first_pass import part_of

Pair = namedtuple("Pair", "x y")


def test_the_first_examples_of_nested_batches():
    x, y = torch.randn(9, 2, 3), torch.arange(9)
    batch = {"words": BatchEncoding({"ids": x, "none": None}), "pair": Pair(x, [y, (y, "name")])}
    found = part_of(0.25, None)(batch)
    assert type(found["words"]) is BatchEncoding
    assert type(found["pair"]) is Pair
    assert found["words"]["none"] is None
    assert found["pair"].y[1][1] == "name"
    for part, whole in ((found["words"]["ids"], x), (found["pair"].x, x), (found["pair"].y[0], y)):
        assert torch.equal(part, whole[:3]), "a quarter of nine, rounded up"
    assert torch.equal(found["pair"].y[1][0], y[:3])
    assert batch["pair"].x is x
    assert [len(part_of(share, None)(torch.ones(10))) for share in (0.1, 0.3, 0.7, 1)] == [1, 3, 7, 10]
    assert part_of(0.25, len)([1, 2]) == 2
    assert part_of(None, None) is None


@pytest.mark.parametrize("batch", [
    [torch.ones(4, 2), torch.ones(3)], [torch.ones(4), torch.tensor(1.0)], ["a", "b"], torch.tensor(1.0),
])  # fmt: skip
def test_an_unclear_batch_is_refused(batch):
    with pytest.raises(ValueError, match=r"it is not clear what the first examples.*give part="):
        part_of(0.25, None)(batch)


@pytest.mark.parametrize("share", [0, 1.5, "0.25", True])
def test_a_wrong_share_is_refused(share):
    with pytest.raises(ValueError, match=r"ascent_fraction must be a share in \(0, 1\]"):
        part_of(share, None)
