"""Tiny models with bounds or coverage, and their logits with and without a cache."""

import torch
from torch import nn

from hf_sparse import sparsify
from hf_sparse.attention import attention_sites
from hf_sparse.cache_name import CACHE
from tests.tiny_models import EOS, SEQ2SEQS, tiny_model, tokens

BOUNDED = {
    "csparsemax": {"name": "csparsemax", "fertility": 1.0, "exhaustion": 0.2},
    "csoftmax": {"name": "csoftmax", "fertility": 0.8},
    "shared": {"name": "csparsemax", "fertility": 0.4, "shared": True},
}
VECTOR = {"coverage": "vector"}
COVERED = {
    "softmax": {"name": "softmax"},
    "sparsemax": {"name": "sparsemax"},
    "entmax": {"name": "entmax", "alpha": "learned", "temperature": 0.7},
}
SOURCE, TARGET = tokens(2, 6), tokens(2, 9, seed=5)
BEAMS = {
    "max_new_tokens": 7,
    "num_beams": 4,
    "num_return_sequences": 3,
    "length_penalty": 0.0,
    "do_sample": False,
    "return_dict_in_generate": True,
    "output_scores": True,
}


def bounded(name, map_settings="csparsemax", **settings):
    """A tiny model in float64 whose cross-attention, or the attention of a decoder alone, is constrained."""
    given = {**(BOUNDED[map_settings] if isinstance(map_settings, str) else map_settings), **settings}
    model = tiny_model(name).double()
    if model.config.is_encoder_decoder:
        model.generation_config.forced_eos_token_id = None
    return sparsify(model, attn={"cross" if model.config.is_encoder_decoder else "decoder": given})


def covered(name, map_settings="softmax", seed=7, size=2.0):
    """A tiny model in float64 whose cross-attention has coverage vectors that are not zero."""
    given = COVERED[map_settings] if isinstance(map_settings, str) else map_settings
    model = tiny_model(name).double()
    model.generation_config.forced_eos_token_id = None
    sparsify(model, attn={"cross": {**given, **VECTOR}})
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for vectors in vectors_of(model):
            vectors.copy_(size * torch.randn(vectors.shape, generator=generator))
    return model


def sequential(name, kind):
    """The tiny model of a case of ``every_case``."""
    return bounded(name, kind) if kind in BOUNDED else covered(name, kind)


def every_case(*decoders):
    """All names of encoder-decoders with all maps, and those of decoders alone with bounds."""
    return [(name, kind) for name in SEQ2SEQS for kind in (*BOUNDED, *COVERED)] + [
        (name, kind) for name in decoders for kind in BOUNDED
    ]


def vectors_of(model):
    return [module.sparse_coverage.value for module, site in attention_sites(model) if site.has_coverage]


def forced(model, source, target, **arguments):
    """Logits of one call over the whole target."""
    return model(**inputs_of(model, source, target), use_cache=False, **arguments).logits


def inputs_of(model, source, target):
    """Token ids as the model takes them; decoders alone read no source."""
    if model.config.is_encoder_decoder:
        return {"input_ids": source, "decoder_input_ids": target}
    return {"input_ids": target}


def step_by_step(model, source, target, sizes, **arguments):
    """Logits of calls over ``sizes`` tokens at a time, with a cache."""
    cache, logits = None, []
    for ids in target.split(sizes, dim=1):
        output = model(**inputs_of(model, source, ids), **{CACHE: cache}, use_cache=True, **arguments)
        cache = output[CACHE]
        logits.append(output.logits)
    return torch.cat(logits, 1), cache


def scores_of(model, source, output, beams, **arguments):
    """The log-probability of each generated string, by one call without a cache."""
    strings = output.sequences
    start = 1 if model.config.is_encoder_decoder else source.shape[1]
    source = source.repeat_interleave(beams, 0)
    if "fertility" in arguments and torch.is_tensor(arguments["fertility"]):
        arguments = {"fertility": arguments["fertility"].repeat_interleave(beams, 0)}
    log_p = forced(model, source, strings, **arguments).log_softmax(-1)[:, start - 1 : -1]
    chosen = log_p.gather(-1, strings[:, start:, None])[..., 0]
    ended = (strings[:, start:] == EOS).long()
    return chosen.masked_fill(ended.cumsum(1) - ended > 0, 0.0).sum(1).float()


def without_dropout(model):
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if isinstance(getattr(module, "dropout", None), float):
            module.dropout = 0.0
    return model
