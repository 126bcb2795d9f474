"""The sections of the report as HTML, and its style. Every text from outside goes through ``escape``."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from itertools import groupby

from transformers import PreTrainedTokenizerBase

from ..generation import Branch, DeletionCertificate, StepSupport
from ..generation.labels import percent, token_labels
from ._attention_heatmap import plot_attention
from ._attention_maps import AttentionMap
from ._certificate import ALL, certificate_labels, plot_certificate
from ._figure import svg_text

# A picture with more rows or columns is illegible.
MOST_LABELS = 60


def page(text: str, model_name: str, map_names: Sequence[str], sections: Sequence[str]) -> str:
    """The whole document; its content policy forbids scripts and all other files.

    Args:
        text: the model's input.
        model_name: name of its class.
        map_names: names of its sparse maps.
        sections: HTML of the sections, in order.
    """
    maps = f" with {escape(', '.join(map_names))}" if map_names else ""
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<title>Possible outputs: {escape(text)}</title>
<style>{_STYLE}</style>
</head>
<body>
<main>
<h1>Possible outputs</h1>
<p>{escape(model_name)}{maps} read:</p>
<blockquote dir="auto">{escape(text)}</blockquote>
{"".join(sections)}
</main>
</body>
</html>
"""


def hypotheses_section(
    tree: Branch, strings: Sequence[tuple[str, float]], complete: bool, tokenizer: PreTrainedTokenizerBase
) -> str:
    """All hypotheses, as a list and as a tree.

    Args:
        tree: from ``hypothesis_tree``.
        strings: texts with their probabilities, likeliest first.
        complete: whether these are all strings of nonzero probability.
        tokenizer: writes the tokens of the tree.
    """
    count = "1 hypothesis has" if len(strings) == 1 else f"{len(strings)} hypotheses have"
    if complete:
        extent = f"Exactly {count} nonzero probability; every other text is impossible."
    else:
        found = percent(sum(p for _, p in strings))
        hypotheses = "1 hypothesis" if len(strings) == 1 else f"{len(strings)} hypotheses"
        extent = f"The search found {hypotheses} with {found} of the probability; there are more."
    rows = "".join(
        f'<tr><td dir="auto">{escape(text) or "<em>(empty)</em>"}</td><td class="p">{percent(p)}</td></tr>'
        for text, p in strings
    )
    table = _scrollable(
        "Hypotheses",
        f"<table><caption>Hypotheses, likeliest first</caption><thead><tr><th scope='col'>Text</th>"
        f"<th scope='col'>Probability</th></tr></thead><tbody>{rows}</tbody></table>",
    )
    return f"""<section>
<h2>Hypotheses</h2>
<p>{extent}</p>
{table}
<h3>As a tree</h3>
<p>Tokens without an alternative share a row. The number is the probability of all texts through that row.</p>
{_scrollable("Tree of hypotheses", f'<ul class="tree">{_tree_item(tree, tokenizer)}</ul>')}
</section>
"""


def _tree_item(branch: Branch, tokenizer: PreTrainedTokenizerBase) -> str:
    below = "".join(_tree_item(child, tokenizer) for child in branch.children)
    tokens = _token_run(branch.tokens, tokenizer) or "<em>(start)</em>"
    return (
        f'<li><span class="p">{percent(branch.probability)}</span> {tokens}{f"<ul>{below}</ul>" if below else ""}</li>'
    )


def steps_section(steps: Sequence[StepSupport], tokenizer: PreTrainedTokenizerBase) -> str:
    """The candidates at every step of one string; consecutive steps without a choice share a row."""
    rows, number = [], 1
    for forced, group in groupby(steps, key=lambda step: step.forced):
        joined = list(group)
        for run in [joined] if forced else [[step] for step in joined]:
            last = number + len(run) - 1
            numbers = str(number) if len(run) == 1 else f"{number}–{last}"
            written = _token_run([step.chosen for step in run], tokenizer)
            candidates = "certain" if forced else _candidates(run[0], tokenizer)
            rows.append(f"<tr><th scope='row'>{numbers}</th><td>{written}</td><td>{candidates}</td></tr>")
            number = last + 1
    table = (
        "<table><caption>Steps of the likeliest hypothesis</caption><thead><tr><th scope='col'>Step</th>"
        f"<th scope='col'>Written</th><th scope='col'>Possible</th></tr></thead><tbody>{''.join(rows)}</tbody></table>"
    )
    return f"""<section>
<h2>Choices</h2>
<p>Tokens of nonzero probability at each step of the likeliest hypothesis; all others have probability zero.</p>
{_scrollable("Choices at each step", table)}
</section>
"""


def _candidates(step: StepSupport, tokenizer: PreTrainedTokenizerBase) -> str:
    labels = token_labels(step.tokens, tokenizer)
    entries = "".join(
        f'<li>{_token(label, "chosen" if token == step.chosen else "")} <span class="p">{percent(p)}</span></li>'
        for token, label, p in zip(step.tokens, labels, step.probabilities)
    )
    return f'<ul class="candidates">{entries}</ul>'


def attention_section(maps: Sequence[AttentionMap]) -> str:
    """Each map as a picture, and as a table for readers who cannot see it."""
    if not maps:
        return "<section><h2>Attention</h2><p>This model does not return its attention weights.</p></section>"
    parts = []
    for attention in maps:
        zeros = float((attention.weights == 0).float().mean())
        text = f"{attention.name}; {percent(zeros, 1)} of the weights are exactly zero."
        tokens, shape = (len(attention.queries), len(attention.keys)), tuple(attention.weights.shape)
        if shape != tokens:
            parts.append(f"<p>{escape(text)} They are {_by(shape)}, not of the {_by(tokens)} tokens alone.</p>")
            continue
        if max(attention.weights.shape) > MOST_LABELS:
            parts.append(f"<p>{escape(text)} With {_by(shape)} weights it is too large to be shown.</p>")
            continue
        svg = svg_text(plot_attention(attention.weights, attention.keys, attention.queries))
        source = _svg_source(svg)
        parts.append(
            f'<figure><img src="{source}" alt="Heat map. The table below has its numbers."><figcaption>'
            f"{escape(text)}</figcaption><details><summary>The numbers</summary>"
            f"{_scrollable(attention.name, _weights_table(attention))}</details></figure>"
        )
    return f"""<section>
<h2>Attention</h2>
<p>Weights of the last sparse layer, averaged over heads. Rows: the token being written, or in an encoder the token
itself. Columns: the token attended to.</p>
{"".join(parts)}
</section>
"""


def _by(shape: Sequence[int]) -> str:
    return " by ".join(map(str, shape))


def deletions_section(certificate: DeletionCertificate, inputs: Sequence[str], outputs: Sequence[str]) -> str:
    """What each token of one string needs of the input, as a picture and as a table.

    Args:
        certificate: of the string.
        inputs: labels of the columns of the inputs.
        outputs: labels of the tokens of the string.
    """
    labels, rows = certificate_labels(certificate, inputs, outputs)
    names = dict(zip(certificate.tokens, labels))
    needs = [*zip(rows, certificate.needed.values()), (ALL, certificate.kept)]
    lines = "".join(
        f"<tr><th scope='row'>{_token(row)}</th><td>{' '.join(_token(names[token]) for token in needed)}</td>"
        f"<td>{' '.join(_token(names[token]) for token in certificate.tokens if token not in needed)}</td></tr>"
        for row, needed in needs
    )
    table = (
        "<table><caption>Influence of the input</caption><thead><tr><th scope='col'>Written</th>"
        "<th scope='col'>Needs</th><th scope='col'>Proved to have no influence</th></tr></thead>"
        f"<tbody>{lines}</tbody></table>"
    )
    picture = ""
    if max(len(names), len(rows)) <= MOST_LABELS:
        source = _svg_source(svg_text(plot_certificate(certificate, inputs, outputs)))
        picture = f'<figure><img src="{source}" alt="Grid. The table below has its content."></figure>'
    return f"""<section>
<h2>Tokens without influence</h2>
<p>{len(certificate.deletable)} of the {len(names)} input tokens can be deleted together, positions kept, and the model
computes the same scores at every step of the likeliest hypothesis. This is proved; when they were deleted, the largest
change of a score was {certificate.change:.1g}.</p>
{picture}
{_scrollable("Influence of the input", table)}
</section>
"""


def _svg_source(svg: str) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode("ascii")


def _weights_table(attention: AttentionMap) -> str:
    head = "".join(f"<th scope='col'>{_token(key)}</th>" for key in attention.keys)
    rows = "".join(
        f"<tr><th scope='row'>{_token(query)}</th>{''.join(f'<td>{_weight(weight)}</td>' for weight in row)}</tr>"
        for query, row in zip(attention.queries, attention.weights.tolist())
    )
    caption = f"<caption>{escape(attention.name)}; an empty cell is exactly zero</caption>"
    return f"<table>{caption}<thead><tr><td></td>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _weight(weight: float) -> str:
    return f"{weight:.2f}" if weight else ""


def _token_run(ids: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> str:
    return " ".join(map(_token, token_labels(ids, tokenizer)))


def _token(label: str, style: str = "") -> str:
    mark = f' class="{style}"' if style else ""
    return f'<code dir="auto"{mark}>{escape(label)}</code>'


def _scrollable(name: str, content: str) -> str:
    """A region that scrolls sideways on a narrow screen, by keyboard too."""
    return f'<div class="wide" role="region" tabindex="0" aria-label="{escape(name)}">{content}</div>'


# For a screen of any width, and for paper.
_STYLE = """
:root { color-scheme: light; }
body { margin: 0; background: #fff; color: #1a1a1a; font: 1rem/1.5 system-ui, sans-serif; }
main { max-width: 60rem; margin: 0 auto; padding: 1rem; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.25rem; margin-top: 2rem; } h3 { font-size: 1.05rem; }
blockquote { margin: 0; padding: .5rem .75rem; border-left: 4px solid #2f5d8a; background: #eef4fb;
  white-space: pre-wrap; }
code { font: .95em ui-monospace, monospace; padding: 0 .25em; border: 1px solid #9db5cf; border-radius: .2em;
  background: #eef4fb; white-space: pre; }
code.chosen { background: #ffe3b3; border-color: #8a5a00; font-weight: bold; }
.p { font-variant-numeric: tabular-nums; white-space: nowrap; }
.wide { overflow-x: auto; }
.wide:focus-visible { outline: 3px solid #2f5d8a; }
table { border-collapse: collapse; margin: .5rem 0; }
caption { text-align: left; white-space: nowrap; font-weight: bold; padding: .25rem 0; }
th, td { border: 1px solid #b5b5b5; padding: .25rem .5rem; text-align: left; vertical-align: top; }
ul.tree, ul.tree ul { list-style: none; margin: 0; padding-left: 1rem; border-left: 1px solid #9db5cf; }
ul.tree { padding-left: 0; border: 0; width: max-content; }
ul.tree li { padding: .15rem 0; }
ul.candidates { display: flex; flex-wrap: wrap; gap: .25rem 1rem; list-style: none; margin: 0; padding: 0; }
figure { margin: 1rem 0; }
img { max-width: 100%; height: auto; }
summary { cursor: pointer; padding: .5rem 0; }
@media print {
  main { max-width: none; padding: 0; }
  .wide { overflow: visible; }
  figure, tr, li { break-inside: avoid; }
  details:not([open]) { display: none; }
}
"""
