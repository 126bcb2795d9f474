"""What must hold of a sparse head."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from hf_sparse import sparsify, unsparsify
from hf_sparse.losses import fenchel_young_loss
from hf_sparse.model.doctor import difference
from tests.sweep.checks import ABSENT, CheckFailed, run

HEADS = ("CAUSAL_LM", "SEQ_TO_SEQ_CAUSAL_LM", "MASKED_LM", "SPEECH_SEQ_2_SEQ", "IMAGE_TEXT_TO_TEXT")


@torch.no_grad()
def drawn(model: nn.Module, **inputs: Any) -> Any:
    """The output of a model; drawn noise is the same at every call."""
    torch.manual_seed(0)
    return model(**inputs)


def check_head(model: nn.Module, inputs: dict[str, Tensor]) -> str:
    """The loss of a sparse head is ours of the raw logits, aligned as the model does; without labels
    softmax of the logits is the sparse distribution."""
    if model.get_output_embeddings() is None:
        return "no language-model head"
    logits = run(model, inputs)
    key = "decoder_input_ids" if "decoder_input_ids" in inputs else "input_ids"
    if logits.dim() != 3 or inputs.get(key) is None or logits.shape[:2] != inputs[key].shape:
        return "nothing to check"
    generator = torch.Generator().manual_seed(3)
    labels = torch.randint(3, min(80, logits.shape[-1]), (logits.shape[0], inputs[key].shape[1]), generator=generator)
    labels[0, :2] = -100
    fed = (
        {name: value for name, value in inputs.items() if name != "decoder_input_ids"}
        if key != "input_ids"
        else inputs
    )
    try:
        output = drawn(model, **fed, labels=labels)
        dense_loss, logits = output.loss, output.logits
    except Exception as error:  # noqa: BLE001
        return f"{ABSENT} ({type(error).__name__}: {error})"[:200]
    if dense_loss is None:
        return f"{ABSENT} (no loss)"
    sparsify(model, head="entmax15")
    try:
        output = drawn(model, **fed, labels=labels)
        normalized = drawn(model, **inputs).logits.exp().sum(-1)
    finally:
        unsparsify(model)
    if difference(output.logits, logits) > 1e-6:
        raise CheckFailed("head: logits are not the raw scores")
    if (normalized - 1).abs().max() > 1e-4:
        raise CheckFailed("head: logits without labels are not log-probabilities")
    alignments = {"labels as they are": (logits, labels), "shifted by one": (logits[:, :-1], labels[:, 1:])}
    for z, y in alignments.values():
        if z.shape[:2] != y.shape:
            continue
        z, y = z.reshape(-1, z.shape[-1]).float(), y.reshape(-1)
        extra = dense_loss - nn.functional.cross_entropy(z, y)
        ours = fenchel_young_loss(z, y, "entmax15")
        if abs(float(output.loss - ours - extra)) < 1e-4 * max(1.0, float(ours)) and float(extra) > -1e-4:
            return "yes" if abs(float(extra)) < 1e-4 else "yes, beside the model's own further losses"
    raise CheckFailed(f"head: the loss {float(output.loss):.5f} is not ours of the raw logits")
