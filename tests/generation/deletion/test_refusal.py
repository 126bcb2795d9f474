"""What a certificate does not follow is refused: keys that are not the tokens so far, masks by head, no positions."""

import pytest
import torch

from hf_sparse import sparsify
from hf_sparse.attention import attention_sites
from hf_sparse.attention.site import weigh
from hf_sparse.generation.deletion._record import SiteCall, recorded_calls
from hf_sparse.generation.deletion._refusal import check_calls, check_model
from tests.tiny_models import tiny_model, tokens

SHARP = {"name": "sparsemax", "temperature": 0.03}
LOWER = torch.ones(1, 4, 4, dtype=torch.bool).tril()


@pytest.mark.parametrize(
    ("kind", "visible", "message"),
    [
        ("encoder", LOWER, "is encoder attention, which a certificate for this model does not follow"),
        ("decoder", LOWER[:, :, :3], r"has queries and keys \(1, 4, 3\), which are not the tokens \(1, 4, 4\)"),
        ("decoder", LOWER.new_ones(1, 4, 4), "sees later tokens"),
        ("decoder", LOWER.new_ones(1, 4, 4).tril(1), "sees later tokens"),
        ("decoder", LOWER & (torch.arange(4) != 1), "shows padding, or hides keys by other rules"),
        (None, None, "decoder attention did not run"),
    ],
)
def test_calls_whose_keys_are_not_the_tokens_so_far_are_refused(kind, visible, message):
    model = sparsify(tiny_model("llama"), attn=SHARP)
    real = {"decoder": torch.ones(1, 4, dtype=torch.bool), "encoder": torch.ones(1, 4, dtype=torch.bool)}
    good = SiteCall("decoder", "a", LOWER, LOWER)
    check_calls(model, [good], real)
    calls = [] if kind is None else [good, SiteCall(kind, "b", visible, visible)]
    with pytest.raises(ValueError, match=f"no certificate for this LlamaForCausalLM: .*{message}"):
        check_calls(model, calls, real)


@torch.no_grad()
def test_scores_of_another_shape_and_masks_by_head_are_refused():
    model = sparsify(tiny_model("llama"), attn=SHARP)
    (module, site), *_ = attention_sites(model)
    scores = torch.zeros(1, 4, 3, 3)
    with recorded_calls(model), pytest.raises(ValueError, match=r"has scores \(4, 3, 3\), not \(rows, heads, queries"):
        weigh(module, scores[0])
    scores[0, 1, :, 0] = -torch.inf
    with recorded_calls(model):
        (observer,) = site.observers.of(module)
        with pytest.raises(ValueError, match="hides other keys from each head: no certificate"):
            observer.add(module, scores, scores.softmax(-1))


def test_a_decoder_without_positions_is_refused():
    model = sparsify(tiny_model("llama"), attn=SHARP)

    class Without(type(model)):
        def forward(self, input_ids=None, attention_mask=None, **kwargs):
            return super().forward(input_ids=input_ids, attention_mask=attention_mask, **kwargs)

    model.__class__ = Without
    with pytest.raises(ValueError, match="its forward takes no position_ids, so that tokens would move"):
        check_model(model, {"input_ids": tokens()})
