"""The report: it lists the possible outputs of the model, nothing in it is code, and a browser shows it."""

import base64
import json
import re
import shutil
import subprocess
from html import escape
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
import torch
from peft import PrefixTuningConfig, get_peft_model

from hf_sparse import Ensemble, enumerate_support, html_report, sparsify
from hf_sparse.viz import _page
from hf_sparse.viz._attention_maps import AttentionMap, attention_maps
from tests.generation.spaced_tokenizer import spaced_tokenizer
from tests.peft_version import needs_fitting_peft
from tests.tiny_models import tiny_model

VOCAB = 7
EVIL = "<script>document.title='pwned';top.pwned=1</script>"
# Tokens that would be markup, script, an attribute's end, or a formula of matplotlib.
EVIL_WORDS = ["<pad>", "<s>", "</s>", EVIL, "\" onmouseover='top.pwned=1'", "$x^$", "<img src=x onerror=top.pwned=1>"]
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
VOID = {"meta", "img", "br"}


def make(name="bart", attn="entmax15", words=None, seed=3):
    model = sparsify(tiny_model(name, vocab_size=VOCAB, seed=seed), attn=attn, head="sparsemax")
    model.generation_config.forced_eos_token_id = None
    return model, spaced_tokenizer() if words is None else spaced_tokenizer(words)


def inputs_of(tokenizer, model, text):
    return dict(tokenizer(text, return_tensors="pt"))


class Page(HTMLParser):
    """Checks that tags are closed in order, and collects texts and attributes."""

    def __init__(self, html):
        super().__init__()
        self.open, self.tags, self.text = [], [], {}
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        for tag in self.open:
            self.text.setdefault(tag, []).append(data)

    def attributes(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.mark.parametrize("name", ["bart", "t5", "llama"])
def test_every_hypothesis_is_there_with_its_probability(name):
    model, tokenizer = make(name)
    text = " the cats"
    page = Page(html_report(model, tokenizer, text, max_new_tokens=8))
    support = enumerate_support(model, inputs_of(tokenizer, model, text), 50, 8)
    cells = page.text["td"]
    for ids, p in zip(support.sequences, support.probabilities):
        assert (tokenizer.decode(ids, skip_special_tokens=True) or "(empty)") in cells
        assert f"{p:.2%}" in cells or p < 0.00005
    everything = " ".join(page.text["main"])
    assert ("every other text is impossible" in everything) == support.complete
    assert ("there are more" in everything) == (not support.complete)
    assert page.text["blockquote"] == [text]


def test_it_is_accessible_and_needs_nothing_from_outside():
    model, tokenizer = make("bart")
    html = html_report(model, tokenizer, " the cats", max_new_tokens=8)
    page = Page(html)
    assert page.attributes("html") == [{"lang": "en"}]
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in page.attributes("meta")
    assert "default-src 'none'" in html
    assert [tag for tag, _ in page.tags if re.fullmatch(r"h\d", tag)] == ["h1", "h2", "h3", "h2", "h2"]
    images = page.attributes("img")
    assert len(images) == 3  # cross, encoder, decoder
    for image in images:
        assert image["alt"]
        assert base64.b64decode(image["src"].removeprefix("data:image/svg+xml;base64,")).startswith(b"<?xml")
    assert all(cell.get("scope") in ("row", "col") for cell in page.attributes("th"))
    assert len(page.attributes("table")) == len(page.attributes("caption")) == 5
    assert all(region["tabindex"] == "0" and region["aria-label"] for region in page.attributes("div"))
    assert not {"script", "link", "iframe", "object", "a"} & {tag for tag, _ in page.tags}
    assert not re.search(r"url\(|@import", html)


def test_texts_and_tokens_are_escaped_everywhere():
    model, tokenizer = make("bart", words=EVIL_WORDS, seed=9)
    html = html_report(model, tokenizer, EVIL + "$x^$", max_new_tokens=5)
    page = Page(html)
    tags = {tag for tag, _ in page.tags}
    assert "script" not in tags
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert len(page.attributes("img")) == 3
    assert page.text["blockquote"] == [EVIL + "$x^$"]
    assert escape(EVIL) in html
    shown = set(page.text["code"])
    assert shown & {word.replace(" ", "␣") for word in EVIL_WORDS[3:]}


def test_attention_is_shown_where_it_is_sparse_and_not_too_large(monkeypatch):
    model, tokenizer = make("llama", attn=None)
    assert "<h2>Attention</h2>" not in html_report(model, tokenizer, " the cats", max_new_tokens=8)
    model, tokenizer = make("llama")
    assert len(Page(html_report(model, tokenizer, " the cats", max_new_tokens=8)).attributes("img")) == 1
    monkeypatch.setattr(_page, "MOST_LABELS", 3)
    page = Page(html_report(model, tokenizer, " the cats", max_new_tokens=8))
    assert page.attributes("img") == []
    assert "too large to be shown" in " ".join(page.text["p"])
    assert "does not return its attention weights" in _page.attention_section([])


@pytest.mark.parametrize("layers", [["sparsemax", None], [None, "sparsemax"]])
def test_attention_is_that_of_the_last_sparse_layer(layers):
    model, tokenizer = make("bart", attn={"decoder": layers}, seed=9)
    inputs = inputs_of(tokenizer, model, " the cats")
    (shown,) = attention_maps(model, inputs, [3, 4], tokenizer)
    sequence = torch.tensor([[model.generation_config.decoder_start_token_id, 3, 4]])
    weights = model(**inputs, decoder_input_ids=sequence, output_attentions=True).decoder_attentions
    assert torch.equal(shown.weights, weights[layers.index("sparsemax")][0].mean(0)[:2, :2])
    assert "Attention of the encoder" not in html_report(model, tokenizer, " the cats", max_new_tokens=5)


@needs_fitting_peft
def test_keys_of_a_learned_prefix_are_not_shown_under_the_names_of_tokens():
    model, tokenizer = make("llama")
    model = get_peft_model(model, PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)).eval()
    page = Page(html_report(model, tokenizer, " the cats", max_new_tokens=8))
    assert page.attributes("img") == []
    assert re.search(r"They are (\d+) by (\d+), not of the \d+ by \d+ tokens alone", " ".join(page.text["p"]))


def test_control_characters_leave_pictures_whole():
    model, tokenizer = make("llama", words=["<pad>", "<s>", "</s>", "\x0c", "\x1b", "\x00", "c"])
    page = Page(html_report(model, tokenizer, "\x0c\x1b", max_new_tokens=8))
    (picture,) = page.attributes("img")
    ElementTree.fromstring(base64.b64decode(picture["src"].partition(",")[2]))


def test_an_ensemble_has_a_report_without_attention(tmp_path):
    members = [make("bart", seed=seed)[0] for seed in (3, 4)]
    path = tmp_path / "report.html"
    html = html_report(Ensemble(members), spaced_tokenizer(), " the cats", path=path, max_new_tokens=5)
    assert path.read_text(encoding="utf-8") == html
    assert "Ensemble" in html
    assert "<h2>Attention</h2>" not in html


def test_what_cannot_be_reported_is_refused():
    model, tokenizer = make("llama")
    with pytest.raises(ValueError, match="the text is empty"):
        html_report(model, tokenizer, "")
    with pytest.raises(TypeError, match=r"text must be a text, was \[' the cats'\]"):
        html_report(model, tokenizer, [" the cats"])
    with pytest.raises(TypeError, match="tokenizer must be that of the model, was None"):
        html_report(model, None, " the cats")
    model.generation_config.eos_token_id = 1  # never possible at once
    with pytest.raises(ValueError, match="no hypothesis ends within 1 tokens"):
        html_report(model, tokenizer, " the cats", max_new_tokens=1, max_hypotheses=1)
    with pytest.raises(ValueError, match="max_hypotheses must be at least 1, was 0"):
        html_report(model, tokenizer, " the", max_hypotheses=0)
    with pytest.raises(ValueError, match="is not sparse"):
        html_report(tiny_model("llama", vocab_size=VOCAB), tokenizer, " the")
    with pytest.raises(ValueError, match="head is dense"):
        html_report(sparsify(tiny_model("llama", vocab_size=VOCAB), attn="entmax15"), tokenizer, " the")


HARNESS = """<!DOCTYPE html><title>harness</title><body><iframe style="width:{width}px;height:800px;border:0"
srcdoc="{page}"></iframe><pre id="out"></pre><script>
onload = () => {{
  const inner = document.querySelector("iframe").contentDocument, root = inner.documentElement;
  document.getElementById("out").textContent = JSON.stringify({{
    pwned: window.pwned === undefined ? null : window.pwned,
    scrollWidth: root.scrollWidth, clientWidth: root.clientWidth,
    images: [...inner.images].map(image => [image.complete, image.naturalWidth, image.getBoundingClientRect().right]),
    text: inner.body.innerText, title: inner.title,
    smallest: Math.min(...[...inner.querySelectorAll("p,td,li,code")].map(
      element => parseFloat(getComputedStyle(element).fontSize))),
    details: [...inner.querySelectorAll("details")].map(
      element => {{ element.open = true; return element.innerText; }}),
  }});
}};
</script>"""


def browse(tmp_path, html, width):
    """Facts that a real browser reports of a page in a window of some width."""
    harness = tmp_path / "harness.html"
    harness.write_text(HARNESS.format(width=width, page=escape(html, quote=True)), encoding="utf-8")
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/profile"]
    run = subprocess.run(
        [*command, "--virtual-time-budget=5000", "--dump-dom", harness.as_uri()],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    dump = re.search(r'<pre id="out">(.*?)</pre>', run.stdout, re.DOTALL)[1]
    return json.loads(dump.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))


def test_zeros_are_not_rounded_to_all_weights():
    weights = torch.zeros(70, 70)
    weights[0, 0] = 1.0
    found = Page(_page.attention_section([AttentionMap("self", weights, ["k"] * 70, ["q"] * 70)]))
    assert any("self; >99.9% of the weights are exactly zero." in text for text in found.text["p"])


@pytest.mark.skipif(BROWSER is None, reason="no browser: install chromium to run this test")
@pytest.mark.parametrize("width", [320, 1000])
def test_a_browser_shows_it_on_a_phone_and_a_desk_and_runs_nothing_in_it(tmp_path, width):
    model, tokenizer = make("bart", words=EVIL_WORDS, seed=9)
    seen = browse(tmp_path, html_report(model, tokenizer, EVIL + "long" * 50, max_new_tokens=5), width)
    assert seen["pwned"] is None
    assert seen["title"].startswith("Possible outputs: ")
    assert seen["scrollWidth"] <= seen["clientWidth"] <= width
    assert seen["images"]
    for complete, natural_width, right in seen["images"]:
        assert complete
        assert natural_width > 100
        assert right <= width
    assert EVIL in seen["text"]
    assert seen["smallest"] >= 12
    assert all("exactly zero" in text for text in seen["details"])


@pytest.mark.skipif(BROWSER is None, reason="no browser: install chromium to run this test")
def test_a_browser_prints_it(tmp_path):
    model, tokenizer = make("bart")
    html_report(model, tokenizer, " the cats", path=tmp_path / "report.html")
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/profile"]
    command += [f"--print-to-pdf={tmp_path}/report.pdf", (tmp_path / "report.html").as_uri()]
    subprocess.run(command, capture_output=True, timeout=60, check=True)
    assert (tmp_path / "report.pdf").read_bytes()[:5] == b"%PDF-"


@torch.no_grad()
def test_nan_is_refused():
    model, tokenizer = make("bart")
    model.lm_head.weight.fill_(torch.nan)
    with pytest.raises(ValueError, match=r"NaN|no hypothesis ends"):
        html_report(model, tokenizer, " the cats")
