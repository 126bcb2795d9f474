"""torch's default device is the user's: results do not depend on it.

Many set it to their GPU once for all they compute. The meta device stands for it here: what lands on it has no values.
"""

import pytest
import torch
from transformers import ViTConfig, ViTForImageClassification

import hf_sparse.functional as F
from hf_sparse import GuidedFertility, LengthBuckets, calibrate, exact_search, sparsify
from tests.tiny_models import tiny_model, tokens


@pytest.mark.parametrize("rows", [1, 3, 20])
@pytest.mark.parametrize("alpha", [1.3, 1.5, 2.0])
def test_maps_of_long_rows(alpha, rows):
    z = 3 * torch.randn(rows, 2000, generator=torch.Generator().manual_seed(0))
    expected = F.entmax(z, alpha, impl="torch")
    with torch.device("meta"):
        found = F.entmax(z, alpha, impl="torch")
    assert torch.equal(found, expected)


def test_exact_search():
    model = sparsify(tiny_model("llama"), head="sparsemax")
    prompt = {"input_ids": tokens(1, 5), "attention_mask": torch.ones(1, 5, dtype=torch.long)}
    [expected] = exact_search(model, prompt, 3, max_new_tokens=4)
    with torch.device("meta"):
        [found] = exact_search(model, prompt, 3, max_new_tokens=4)
    assert found == expected


def test_calibration():
    def given():
        model = sparsify(tiny_model("llama"), attn="entmax15", head="entmax15")
        return model, [{"input_ids": tokens(2, 12), "labels": tokens(2, 12)}]

    expected = calibrate(*given(), progress=False)
    model, batches = given()
    with torch.device("meta"):
        found = calibrate(model, batches, progress=False)
    assert [layer.temperature for layer in found.layers] == [layer.temperature for layer in expected.layers]
    assert found.head == expected.head


def test_an_image_model_is_made_sparse():
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    model = ViTForImageClassification(ViTConfig(image_size=8, patch_size=4, initializer_range=1.0, **sizes)).eval()
    with torch.device("meta"):
        sparsify(model, attn="entmax15")
    weights = model(torch.randn(1, 3, 8, 8), output_attentions=True).attentions[0]
    assert bool((weights == 0).any())


def test_bounds_and_buckets():
    with torch.device("meta"):
        fertility = GuidedFertility.from_counts([[5, 7], [7, 8]], [[1, 2], [3, 0]], vocab_size=10)
        order = list(LengthBuckets([3, 1, 2, 5], batch_size=2))
    assert fertility(torch.tensor([[7, 5]])).tolist() == [[3, 1]]
    assert sorted(order) == [0, 1, 2, 3]
