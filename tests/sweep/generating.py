"""What must hold of ``generate``: every step is decoded from the distribution of the sparse head."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from hf_sparse import sparsify, unsparsify
from hf_sparse.functional import entmax15
from hf_sparse.model import sparse_model
from hf_sparse.model.find import sparse_state
from hf_sparse.model.state import state_of
from tests.sweep.checks import ABSENT, CheckFailed
from tests.sweep.deliveries import Arguments, as_passed

STEPS = 3
TEMPERATURE = 0.1  # scores of a random model are close together
HEAD = {"name": "entmax15", "temperature": TEMPERATURE}
ROUNDING = 1e-3
EDGE = 1e-5  # of the support, where rounding decides
OWN_PROCESSORS = ("forced_bos_token_id", "forced_eos_token_id", "suppress_tokens", "begin_suppress_tokens")


class Step:
    """One forward call inside ``generate``: the model that was called, with what, and the logits it returned."""

    def __init__(self, model: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        self.model, self.args, self.kwargs = model, *as_passed((args, kwargs))
        self.logits: Tensor | None = None

    def expected(self) -> Tensor:
        """The sparse distribution of the raw scores of the same call, outside ``generate``."""
        torch.manual_seed(0)
        logits = self.model(*as_passed(self.args), **as_passed(self.kwargs), log_probs=False).logits[:, -1]
        return entmax15(logits.float() / TEMPERATURE)


@contextmanager
def recorded(model: nn.Module) -> Iterator[list[Step]]:
    """Every call whose logits are decoded from a sparse head, by whichever model inside ``model`` decodes."""
    steps: list[Step] = []
    plain = sparse_model.sparse_forward

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        state = sparse_state(self)
        if not state.calls.decoding or state.config.head is None:
            return plain(self, *args, **kwargs)
        steps.append(Step(self, args, kwargs))
        output = plain(self, *args, **kwargs)
        steps[-1].logits = output.logits[:, -1]
        return output

    with patch.object(sparse_model, "sparse_forward", forward):  # hooks do not see a generate that calls forward
        yield steps


@contextmanager
def plain_decoding(model: nn.Module) -> Iterator[None]:
    """Without the processors that the configuration of some models asks for; both models inside others too."""
    configs = {id(c): c for part in model.modules() if (c := getattr(part, "generation_config", None)) is not None}
    own = [(config, name) for config in configs.values() for name in OWN_PROCESSORS if hasattr(config, name)]
    before = [(config, name, getattr(config, name)) for config, name in own]
    for config, name, _ in before:
        setattr(config, name, None)
    try:
        yield
    finally:
        for config, name, value in before:
            setattr(config, name, value)


def decode(model: Any, inputs: Arguments) -> Any:
    """A greedy ``generate`` of a few steps that returns the scores of every step."""
    torch.manual_seed(0)
    with plain_decoding(model):
        return model.generate(
            **inputs,
            do_sample=False,
            num_beams=1,
            max_new_tokens=STEPS,
            return_dict_in_generate=True,
            output_scores=True,
        )


def compare(scores: Tensor, p: Tensor) -> str | None:
    """How the scores of a step differ from the logarithm of a distribution, or None."""
    if scores.shape != p.shape:
        return f"scores of shape {tuple(scores.shape)}, a distribution of shape {tuple(p.shape)}"
    allowed = scores > -torch.inf  # by the model's own processors
    decoded, p = scores.float().exp()[allowed], p[allowed]
    far = float((decoded - p).abs().max())
    if far > ROUNDING:
        return f"probabilities differ by {far:.1e}"
    at_edge = decoded.maximum(p) < EDGE
    return None if bool((((decoded == 0) == (p == 0)) | at_edge).all()) else "zeros are not those of the support"


@torch.no_grad()
def by_sequence(model: Any, inputs: Arguments, found: Any) -> bool:
    """Whether one forward call on the returned sequence has the scores of every step; some models take none."""
    key = "decoder_input_ids" if model.config.is_encoder_decoder else "input_ids"
    steps, prompt = len(found.scores), inputs.get(key)
    ids = found.sequences[:, :-1]
    more = -1 if prompt is None or prompt.dim() != 2 else ids.shape[1] - prompt.shape[1]
    if more not in (steps - 1, steps):  # a decoder's prompt may get a start
        return False
    longer = {
        name: nn.functional.pad(value, (0, more), value=int(name == "attention_mask"))
        for name, value in inputs.items()
        if torch.is_tensor(value) and value.shape == prompt.shape and not (key[0] == "d" and name[:8] != "decoder_")
    }
    torch.manual_seed(0)
    try:
        output = model(**{**inputs, **longer, key: ids})
    except Exception:  # noqa: BLE001
        return False
    p = output.logits[:, -steps:].float().exp()
    return p.shape[1] == steps and all(compare(found.scores[i], p[:, i]) is None for i in range(steps))


def check_generate(model: Any, inputs: Arguments) -> str:
    """Greedy decoding with a sparse head has the scores of the sparse distribution, and its zeros.

    The scores are held to one forward call on the returned sequence; where a model takes none, because what it was
    given goes with another number of tokens or an inner model decodes, to the calls of every step made once more.
    """
    if not model.can_generate():
        return "does not generate"
    if model.get_output_embeddings() is None:
        return "no language-model head"
    sparsify(model, head=HEAD)
    try:
        with recorded(model) as steps:
            try:
                found = decode(model, inputs)
            except Exception as error:  # noqa: BLE001
                return _dense_fails_too(model, inputs, error)
        if not steps:
            raise CheckFailed("generate: no step was decoded from the sparse head")
        return _held_to(model, inputs, found, steps)
    finally:
        if state_of(model) is not None:
            unsparsify(model)


def _dense_fails_too(model: Any, inputs: Arguments, error: Exception) -> str:
    unsparsify(model)
    try:
        decode(model, inputs)
    except Exception as dense:  # noqa: BLE001
        return f"{ABSENT} ({type(dense).__name__}: {' '.join(str(dense).split())})"[:200]
    raise CheckFailed(f"generate: {type(error).__name__}: {' '.join(str(error).split())}"[:300])


def _held_to(model: Any, inputs: Arguments, found: Any, steps: list[Step]) -> str:
    scores = getattr(found, "scores", None)
    one_each = scores is not None and len(scores) == len(steps)
    with torch.no_grad():
        expected = [step.expected() for step in steps]
    if not any(bool((p == 0).any()) for p in expected):
        raise CheckFailed("generate: no token became impossible")
    for step, p in enumerate(expected):
        decoded = scores[step] if one_each else steps[step].logits
        if problem := compare(decoded, p):
            raise CheckFailed(f"generate, step {step}: {problem}")
    inner = steps[0].model
    if inner is not model:
        return f"yes, by its {type(inner).__name__}"
    if not one_each:
        return "yes, but its generate returns no score for each step"
    return "yes" if by_sequence(model, inputs, found) else "yes, step by step"
