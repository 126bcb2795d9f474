"""Every string of a tiny model, one by one and without cache: what the tests of decoding compare with."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from hf_sparse import is_sparse, probabilities, sparsify
from tests.tiny_models import EOS, tiny_model

VOCAB = 7
SOURCE = (3, 5, 4, 6)


def model_and_inputs(name, head, seed=3, attn="entmax15", source=SOURCE):
    """A tiny model, sparse unless ``head`` is None, and one sentence for it."""
    model = tiny_model(name, vocab_size=VOCAB, seed=seed)
    if name == "gemma2":
        model.config.final_logit_softcapping = 2.0  # with 30 every random gemma2 has one string, which never ends
    if head is not None:
        model = sparsify(model, attn=attn, head=head)
    model.generation_config.forced_eos_token_id = None
    ids = torch.tensor([source])
    return model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


@torch.no_grad()
def next_distributions(model: nn.Module, inputs: dict[str, Tensor], strings: list[tuple[int, ...]]) -> Tensor:
    """p(next token | string) after each of some strings of one length, by one pass over all of them; float64."""
    rows = torch.tensor(strings, dtype=torch.long).view(len(strings), -1)
    repeated = {name: value.expand(len(rows), -1) for name, value in inputs.items()}
    if model.config.is_encoder_decoder:
        start = torch.full((len(rows), 1), model.config.decoder_start_token_id)
        logits = model(**repeated, decoder_input_ids=torch.cat([start, rows], dim=1), use_cache=False).logits
    else:
        logits = model(torch.cat([repeated["input_ids"], rows], dim=1), use_cache=False).logits
    logits = logits[:, -1]
    return (probabilities(model, logits) if is_sparse(model) else logits.softmax(-1)).double()


def next_distribution(model, inputs, string):
    """p(next token | string) after one string."""
    return next_distributions(model, inputs, [string])[0]


def all_strings(model, inputs, steps):
    """Every string of at most ``steps`` tokens with its probability, ended or cut at the end."""
    table, open_strings = {}, {(): 1.0}
    for length in range(1, steps + 1):
        longer = {}
        continuations = next_distributions(model, inputs, list(open_strings)).tolist() if open_strings else []
        for (string, mass), p in zip(open_strings.items(), continuations):
            for token in range(len(p)):
                if p[token] > 0:
                    done = token == EOS or length == steps
                    (table if done else longer)[(*string, token)] = mass * p[token]
        open_strings = longer
    return table


def ended(table):
    """The strings of a table that ended, likeliest first: a list of (probability, string)."""
    return sorted(((p, string) for string, p in table.items() if string[-1] == EOS), reverse=True)


def depth_first_search(model, inputs, steps):
    """The likeliest string that ends within ``steps`` tokens, its log-probability, and how many prefixes that took.

    Depth first, likeliest continuation first, leaving prefixes no likelier than the best string so far; no cache.
    """
    best, best_score, num_expanded = None, -math.inf, 0
    stack = [((), 0.0)]
    while stack:
        string, score = stack.pop()
        if score <= best_score or len(string) == steps:
            continue
        num_expanded += 1
        p = next_distribution(model, inputs, string)
        for token in p.argsort().tolist():  # the likeliest comes on top of the stack
            if p[token] > 0:
                longer = score + math.log(p[token])
                if token != EOS:
                    stack.append(((*string, token), longer))
                elif longer > best_score:
                    best, best_score = (*string, token), longer
    return best, best_score, num_expanded
