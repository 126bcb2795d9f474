"""An HTML report on one input: all hypotheses, the choices at every step, the attention, what has no influence."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..files import write_whole
from ..functional.arguments import check_text
from ..generation import certify, enumerate_support, hypothesis_tree, step_supports
from ..generation.forced import beginning
from ..generation.inputs import encode, head_map
from ..generation.labels import token_labels
from ..model.find import sparse_config
from ._attention_maps import attention_maps
from ._file import check_folder
from ._page import attention_section, deletions_section, hypotheses_section, page, steps_section


@torch.no_grad()
def html_report(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    text: str,
    *,
    path: str | Path | None = None,
    max_hypotheses: int = 50,
    max_new_tokens: int = 64,
    deletions: bool = False,
) -> str:
    """A self-contained HTML page on one input: all hypotheses as a tree, the candidates at every step, the attention.

    The page needs no server, no network and no script; it works on a phone, with a screen reader and on paper.

    Args:
        model: a model with a sparse head, or an ensemble; it runs in evaluation mode.
        tokenizer: the model's.
        text: the text that an encoder-decoder reads, or the prompt of another model.
        path: file to save the page to; None does not save.
        max_hypotheses: most hypotheses found and shown.
        max_new_tokens: longest hypothesis, in tokens.
        deletions: show, as a picture and a table, which input tokens provably have no influence on each token of the
            likeliest hypothesis; see ``certify``.

    Returns:
        The page. Steps, deletions and attention are those of the likeliest hypothesis; attention is that of the last
        sparse layer, averaged over heads, and only shown where keys are the tokens.

    Raises:
        FileNotFoundError: the folder of ``path`` does not exist.
        ImportError: matplotlib is not installed.
        TypeError: a ``text`` that is none (give texts one at a time), or no tokenizer.
        ValueError: a dense head, an empty prompt, a budget out of range, NaN in the logits, no hypothesis within
            the budget; with ``deletions``, a model that ``certify`` refuses.

    Cost: that of ``enumerate_support``, and two forward passes; with ``deletions``, eight more.
    """
    head_map(model)  # refuse a dense head first
    file = None if path is None else check_folder(path)
    check_text("text", text)
    source, prefix = (text, "") if model.config.is_encoder_decoder else (None, text)
    inputs, _ = encode(model, tokenizer, prefix, source)
    if inputs["input_ids"].shape[1] == 0:
        raise ValueError("the text is empty; a model needs at least one token to start from")
    support = enumerate_support(model, inputs, max_hypotheses, max_new_tokens)
    if not support.sequences:
        raise ValueError(
            f"no hypothesis ends within {max_new_tokens} tokens among the {max_hypotheses} likeliest beginnings; "
            "raise max_new_tokens or max_hypotheses"
        )
    best = support.sequences[0]
    texts = tokenizer.batch_decode(support.sequences, skip_special_tokens=True)
    config = sparse_config(model)
    sections = [
        hypotheses_section(
            hypothesis_tree(support.sequences, support.probabilities),
            list(zip(texts, support.probabilities)),
            support.complete,
            tokenizer,
        ),
        steps_section(step_supports(model, inputs, best), tokenizer),
    ]
    if deletions:
        sections.append(_deletions(model, tokenizer, inputs, best))
    if config.attention_maps:
        sections.append(attention_section(attention_maps(model, inputs, best, tokenizer)))
    html = page(text, type(model).__name__, config.map_names, sections)
    if file is not None:
        write_whole(file, html.encode())
    return html


def _deletions(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, inputs: dict[str, Tensor], tokens: Sequence[int]
) -> str:
    """The section on what the tokens of one string need of the input."""
    start = beginning(model, inputs, 1)
    string = torch.tensor([list(tokens)], device=start.device)
    (certificate,) = certify(model, inputs, torch.cat([start, string], dim=1))
    read = token_labels(inputs["input_ids"][0].tolist(), tokenizer)
    return deletions_section(certificate, read, token_labels(tokens, tokenizer))
