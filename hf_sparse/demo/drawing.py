"""The pictures of the page, as HTML and SVG in the page's own colours."""

from __future__ import annotations

import math
from html import escape

from transformers import PreTrainedTokenizerBase

from ..generation import Branch, SearchResult
from ..generation.labels import columns, percent, token_labels
from .playground import HypothesesView, NextTokens, TokenAttention

# Pixels, and tokens of a text whose attention is shown.
CELL, CHARACTER_WIDTH = 20, 7.3
MOST_TOKENS = 40

STYLE = """
.sparse-view { color: var(--body-text-color); line-height: 1.45; }
.sparse-view p { margin: 0 0 .6rem; }
.sparse-view .fact { font-size: 1.05rem; }
.sparse-view .quiet { color: var(--body-text-color-subdued); font-size: .9rem; }
.sparse-view code { font-family: ui-monospace, monospace; padding: 0 .25em; border-radius: .25em; white-space: pre;
  background: var(--background-fill-secondary); border: 1px solid var(--border-color-primary); color: inherit; }
.sparse-view .bars { display: grid; grid-template-columns: minmax(3.5rem, max-content) 1fr max-content;
  gap: .3rem .6rem; align-items: center; }
.sparse-view .bars code { overflow: hidden; text-overflow: ellipsis; max-width: 10rem; }
.sparse-view .bar { height: .8rem; border-radius: .2rem; background: var(--sparse-ink); min-width: 2px; }
.sparse-view .p { font-variant-numeric: tabular-nums; white-space: nowrap; }
.sparse-view .wide { overflow-x: auto; }
.sparse-view svg { display: block; font: 11px ui-monospace, monospace; fill: currentColor; }
.sparse-view svg .none { fill: none; stroke: var(--border-color-primary); stroke-width: .5; }
.sparse-view svg .some { fill: var(--sparse-ink); }
.sparse-view ul { list-style: none; margin: 0; padding: 0 0 0 1.1rem;
  border-left: 2px solid var(--border-color-primary); }
.sparse-view .wide > ul { padding: 0; border: 0; width: max-content; }
.sparse-view li { padding: .2rem 0; margin: 0; }
.sparse-view li .p { display: inline-block; min-width: 4rem; text-align: right; margin-right: .4rem; }
.sparse-view .proof { padding: .6rem .8rem; border-left: 4px solid var(--sparse-ink);
  background: var(--background-fill-secondary); }
.sparse-view { --sparse-ink: #2563a8; }
.dark .sparse-view { --sparse-ink: #6fa8e8; }
"""


def next_tokens_html(found: NextTokens) -> str:
    """Bars of the likeliest tokens, and how many are possible at all."""
    if found.support == found.vocabulary:
        fact = f"All {found.vocabulary:,} tokens are possible."
    else:
        fact = f"{found.support:,} of {found.vocabulary:,} tokens {'is' if found.support == 1 else 'are'} possible."
    longest = max(found.probabilities)
    rows = "".join(
        f'<code dir="auto">{escape(label)}</code><div class="bar" style="width: {100 * p / longest:.1f}%"></div>'
        f'<span class="p">{percent(p)}</span>'
        for label, p in zip(found.labels, found.probabilities)
    )
    shown = len(found.labels)
    rest = f'<p class="quiet">The {shown} likeliest are shown.</p>' if shown < found.support else ""
    return _view(f'<p class="fact">{fact}</p><div class="bars">{rows}</div>{rest}')


def attention_html(found: TokenAttention) -> str:
    """A map of the weights: a cell without colour is exactly zero."""
    queries, keys = found.queries[-MOST_TOKENS:], found.keys[-MOST_TOKENS:]
    weights = found.weights[-MOST_TOKENS:, -MOST_TOKENS:].tolist()
    left = CHARACTER_WIDTH * max(map(columns, queries)) + 8
    top = CHARACTER_WIDTH * max(map(columns, keys)) + 8
    parts = [
        f'<text x="{left - 6:.0f}" y="{top + CELL * row + 14:.0f}" text-anchor="end">{escape(label)}</text>'
        for row, label in enumerate(queries)
    ]
    for column, label in enumerate(keys):
        x = left + CELL * column + 14
        parts.append(
            f'<text transform="translate({x:.0f} {top - 5:.0f}) rotate(-90)" x="0" y="0">{escape(label)}</text>'
        )
    for row, (query, row_weights) in enumerate(zip(queries, weights)):
        for column, (key, weight) in enumerate(zip(keys, row_weights)):
            parts.append(_cell(left + CELL * column, top + CELL * row, weight, f"{query} → {key}: {weight:.3f}"))
    width, height = left + CELL * len(keys) + 2, top + CELL * len(queries) + 2
    cut = max(len(found.queries), len(found.keys)) > MOST_TOKENS
    note = f'<p class="quiet">The last {MOST_TOKENS} tokens are shown.</p>' if cut else ""
    return _view(
        f'<p class="fact">{percent(found.zeros, 0)} of the weights are exactly zero.</p>'
        '<div class="wide" tabindex="0">'
        f'<svg role="img" aria-label="Attention weights" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}">{"".join(parts)}</svg></div>{note}'
    )


def _cell(x: float, y: float, weight: float, title: str) -> str:
    shown = f'class="some" fill-opacity="{0.1 + 0.9 * min(weight, 1.0):.3f}"' if weight > 0 else 'class="none"'
    return (
        f'<rect x="{x + 1:.0f}" y="{y + 1:.0f}" width="{CELL - 2}" height="{CELL - 2}" rx="2" {shown}>'
        f"<title>{escape(title)}</title></rect>"
    )


def hypotheses_html(found: HypothesesView, tokenizer: PreTrainedTokenizerBase) -> str:
    """The proof in words, and the outputs as a tree."""
    proof = f'<p class="proof">{escape(proof_text(found.result))}</p>'
    if found.tree is None:
        return _view(proof)
    note = '<p class="quiet">A number is the probability of all outputs through that branch.</p>'
    return _view(f'{proof}<div class="wide" tabindex="0"><ul>{_branch(found.tree, tokenizer)}</ul></div>{note}')


def _branch(branch: Branch, tokenizer: PreTrainedTokenizerBase) -> str:
    below = "".join(_branch(child, tokenizer) for child in branch.children)
    labels = token_labels(branch.tokens, tokenizer)
    tokens = " ".join(f'<code dir="auto">{escape(label)}</code>' for label in labels) or "<em>(start)</em>"
    inner = f"<ul>{below}</ul>" if below else ""
    return f'<li><span class="p">{percent(branch.probability)}</span>{tokens}{inner}</li>'


def proof_text(result: SearchResult) -> str:
    """What a search proved, for a reader who does not know the words.

    >>> from hf_sparse import Hypothesis
    >>> best = Hypothesis([5, 2], math.log(0.5))
    >>> print(proof_text(SearchResult([best], finished_mass=0.5, left_mass=0.5, log_bound=-9.0, num_expanded=3)))
    Proved by mass: the first output has 50.00%, and all outputs that were not looked at have 50.00% together. None of
    them can be likelier.
    """
    if result.best is None:
        return f"No output was complete before the search ended ({_ending(result)}). Nothing is proved."
    first = percent(result.best.probability)
    if result.certificate == "exhaustion":
        return f"Proved by exhaustion: every possible output was looked at, and the first has {first}."
    if result.certificate == "mass":
        return (
            f"Proved by mass: the first output has {first}, and all outputs that were not looked at have "
            f"{percent(result.left_mass)} together. None of them can be likelier."
        )
    bound = percent(math.exp(result.log_bound))
    if result.certificate == "bound":
        return f"Proved by bound: the first output has {first}; none that was not looked at has more than {bound}."
    return (
        f"Not proved: the first output has {first}, but the search ended ({_ending(result)}) while one that was not "
        f"looked at could have up to {bound}."
    )


def _ending(result: SearchResult) -> str:
    reasons = {"max_new_tokens": "at the longest output", "max_seconds": "out of time"}
    return reasons.get(result.ended_by or "", "its budget was spent")


def _view(content: str) -> str:
    return f'<div class="sparse-view">{content}</div>'
