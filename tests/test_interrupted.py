"""Work that ends in the middle, by Ctrl-C or for want of memory, leaves the model as it was."""

import pytest
import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from hf_sparse import (
    calibrate,
    certify,
    compare,
    doctor,
    exact_search,
    is_sparse,
    score_sequences,
    sparse_config,
    sparsify,
    step_supports,
    unsparsify,
)
from hf_sparse.attention import observe
from hf_sparse.model import attach
from tests.tiny_models import labelled, tiny_model, tokens

BOTH = {"attn": "entmax15", "head": "entmax15"}
PROMPT = {"input_ids": tokens()[:1]}
PLACES = 6  # where each work is interrupted, spread over its calls of modules

# Functions that make a model sparse, by their names in hf_sparse.model.attach.
STEPS = [
    "find_sites",
    "_name_attention",
    "add_learned",
    "follow_cache",
    "divert",
    "show_losses",
    "with_other_heads",
    "tags",
    "change_class",
    "_add_parts",
    "mark",
    "keep_source",
    "check_late_attention",
]


def batches():
    return [{"input_ids": tokens(), "labels": tokens()}] * 2


def watched(model):
    with observe(model):
        return model(tokens())


DENSE = {
    "sparsify": lambda model: sparsify(model, **BOTH),
    "doctor": doctor,
    "compare": lambda model: compare(model, batches(), **BOTH, progress=False),
}
SPARSE = {
    "calibrate": lambda model: calibrate(model, batches(), progress=False),
    "calibrate edges": lambda model: calibrate(model, batches(), edges=0.4, progress=False),
    "calibrate classes": lambda model: calibrate(model, batches(), classes=5, progress=False),
    "forward": lambda model: model(**labelled(model)),
    "observe": watched,
    "beams": lambda model: model.generate(tokens(), max_new_tokens=3, num_beams=2),
    "screened": lambda model: model.generate(tokens(), max_new_tokens=3, cache_implementation="screened"),
    "exact_search": lambda model: exact_search(model, PROMPT, max_new_tokens=2),
    "score_sequences": lambda model: score_sequences(model, {"input_ids": tokens()[:, :3]}, tokens()),
    "step_supports": lambda model: step_supports(model, PROMPT, [4, 5]),
    "certify": lambda model: certify(model, PROMPT, torch.cat([PROMPT["input_ids"], torch.tensor([[4, 5]])], dim=1)),
}
CASES = [(name, None, work) for name, work in DENSE.items()] + [(name, BOTH, work) for name, work in SPARSE.items()]


class Interruption:
    """Raises at one call of a module; counts them."""

    def __init__(self, error=None, at=0):
        self.error, self.at, self.calls = error, at, 0

    def __call__(self, *_):
        self.calls += 1
        if self.calls == self.at:
            raise self.error

    def during(self, work, model):
        handle = register_module_forward_pre_hook(self)
        try:
            work(model)
        finally:
            handle.remove()


def built(maps):
    model = tiny_model("llama")
    return model if maps is None else sparsify(model, **maps)


@torch.no_grad()
def everything(model):
    """What a user could notice: settings, modes, hooks, weights and results."""
    modules = [
        (
            type(module),
            module.training,
            sorted(vars(module)),
            len(module._forward_hooks),
            len(module._forward_pre_hooks),
        )
        for module in model.modules()
    ]
    settings = sparse_config(model).to_dict() if is_sparse(model) else None
    configs = [model.config.to_dict(), model.generation_config.to_dict()]
    told = [settings, *configs, modules, [weight.requires_grad for weight in model.parameters()]]
    output = model(**labelled(model))
    results = [output.loss, output.logits, model(tokens()).logits]
    return told, [*results, model.generate(tokens(), max_new_tokens=2, do_sample=False), *model.state_dict().values()]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), torch.OutOfMemoryError("here")], ids=["Ctrl-C", "memory"])
@pytest.mark.parametrize(("name", "maps", "work"), CASES, ids=[name for name, *_ in CASES])
def test_the_model_is_as_it_was(name, maps, work, error):
    whole = Interruption()
    whole.during(work, built(maps))
    for at in sorted({1 + place * (whole.calls - 1) // (PLACES - 1) for place in range(PLACES)}):
        model = built(maps)
        told, results = everything(model)
        config = model.config
        with pytest.raises(type(error)):
            Interruption(error, at).during(work, model)
        assert model.config is config
        told_after, results_after = everything(model)
        assert told_after == told
        assert all(map(torch.equal, results_after, results))
        if maps is not None:
            with torch.no_grad():
                assert torch.equal(unsparsify(model)(tokens()).logits, tiny_model("llama")(tokens()).logits)


@pytest.mark.parametrize("step", STEPS)
def test_what_attach_had_done_is_undone(step, monkeypatch):
    model = built(None)
    told, results = everything(model)
    config = model.config
    whole, interrupted = getattr(attach, step), []

    def once(*args, **kwargs):
        if interrupted:
            return whole(*args, **kwargs)
        interrupted.append(step)
        raise KeyboardInterrupt

    monkeypatch.setattr(attach, step, once)
    with pytest.raises(KeyboardInterrupt):
        sparsify(model, **BOTH)
    assert model.config is config
    told_after, results_after = everything(model)
    assert told_after == told
    assert all(map(torch.equal, results_after, results))
    expected = sparsify(built(None), **BOTH)(tokens()).logits
    assert torch.equal(sparsify(model, **BOTH)(tokens()).logits, expected)
