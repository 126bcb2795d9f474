"""The language-model recipe: its text, its measures against others counted by hand, and a small run."""

from __future__ import annotations

import dataclasses
import gzip
import json
import math

import pytest
import torch
from datasets import Dataset, DatasetDict

import hf_sparse
from hf_sparse import from_pretrained, sparse_config
from hf_sparse.functional import balanced_temperature, entmax, entmax15
from recipes.language_modelling import data, measures, report
from recipes.language_modelling import model as models
from recipes.language_modelling import run as recipe
from recipes.language_modelling.curve import points
from recipes.language_modelling.likelihood import LikelihoodTrainer, eps_losses
from recipes.lib.study import main
from tests.tiny_models import tiny_model, tokens


def test_articles_begin_at_their_own_headings_only():
    lines = ["", " = One = ", " text a ", "", " = = Part = = ", " 1 = 1 ", " = Two = ", " text b "]
    assert data.articles(lines) == [" = One = \n text a \n = = Part = = \n 1 = 1 ", " = Two = \n text b "]
    assert data.articles(["a", "", "b"]) == ["a", "b"]
    assert data.articles(["before", "= One =", "a", "= Two ="]) == ["before\n= One =\na", "= Two ="]


def test_one_article_in_ten_is_held_out():
    train, test = data.split([str(number) for number in range(25)])
    assert test == ["0", "10", "20"]
    assert sorted(train + test, key=int) == [str(number) for number in range(25)]
    assert data.split(["a", "b", "a", "b"]) == (["b", "b"], ["a"])
    for all_alike in (["all"], ["all"] * 3):
        with pytest.raises(ValueError, match="at least 2 different articles, or lines, to hold one out, was 1"):
            data.split(all_alike)


def test_text_is_read_from_a_file_a_folder_or_the_sample(tmp_path):
    (tmp_path / "train.txt").write_text("= A =\none\n= B =\ntwo\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"must hold train\.txt and test\.txt or valid\.txt"):
        data.read_text(str(tmp_path))
    (tmp_path / "valid.txt").write_text("= C =\nthree\n", encoding="utf-8")
    assert data.read_text(str(tmp_path)) == (["= A =\none", "= B =\ntwo"], ["= C =\nthree"], tmp_path.name)
    text = data.read_text(str(tmp_path / "train.txt"))
    assert (text.train, text.test) == (["= B =\ntwo"], ["= A =\none"])
    scenes = data.read_text("scenes")
    assert len(scenes.train) == 9 * len(scenes.test) == 2700
    assert scenes.test[0] == "Under the bridge, the friendly tourists wash the keys and the dictionary."


def test_files_without_text_are_named(tmp_path):
    whole = gzip.compress(b"some text, " * 20)
    for broken in (b"no gzip", whole[:-12], whole[:10] + bytes([whole[10] ^ 255]) + whole[11:]):
        (tmp_path / "c.gz").write_bytes(broken)
        with pytest.raises(ValueError, match=r"must be UTF-8 text, gzipped if its name ends in \.gz"):
            data.read_text(str(tmp_path / "c.gz"))
    (tmp_path / "d").write_text("\n\n", encoding="utf-8")
    with pytest.raises(ValueError, match="d: no text"):
        data.read_text(str(tmp_path / "d"))


def test_a_data_set_without_texts_is_named(monkeypatch):
    sets = {"train": Dataset.from_dict({"text": ["a"]}), "validation": Dataset.from_dict({"text": ["b"]})}
    monkeypatch.setattr(data.datasets, "load_dataset", lambda *arguments: DatasetDict(sets))
    with pytest.raises(ValueError, match="no column 'text' in test; it has"):
        data.read_text("some/set")
    sets["test"] = Dataset.from_dict({"text": ["c"]})
    assert data.read_text("some/set") == (["a"], ["c"], "some/set")


def test_a_file_is_named_with_its_folder(tmp_path, monkeypatch):
    (tmp_path / "lines.txt").write_text("a\nb\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert data.read_text("lines.txt").what == data.read_text(str(tmp_path / "lines.txt")).what
    assert data.read_text("lines.txt").what == f"{tmp_path.name}/lines.txt"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            ["head=foo"],
            "head must be one of softmax, sparsemax, entmax15, entmax13, entmax12, entmax11, alpha_relu, was 'foo'",
        ),
        (["conversion=foo"], "conversion must be one of none, lora, full, or empty, was 'foo'"),
        (["attention=foo"], "unknown sparse map 'foo'"),
        (["steps=0"], "steps must be above 0, was 0"),
        (["width=30"], "width must be a multiple of 4"),
        (["prompt=64"], "prompt must be below context, 64, was 64"),
        (["dev_rows=-1"], "dev_rows must be at least 0, was -1"),
        (["likelihood=-1"], "likelihood must be at least 0, was -1"),
        (["head=softmax", "likelihood=1"], "likelihood is for sparse heads, of which softmax is none; was 1"),
        (["embedding_lr=0"], "embedding_lr must be above 0, was 0"),
        (["warmup=1"], "warmup must be at least 0 and below 1, was 1"),
        (["adam_beta2=1"], "adam_beta2 must be at least 0 and below 1, was 1"),
        (["weight_decay=-1"], "weight_decay must be at least 0, was -1"),
        (
            ["head=alpha_relu", "offsets=True"],
            "offsets are for softmax and sparsemax, entmax15, entmax13, entmax12, entmax11; head was",
        ),
        (["conversion=none", "tied=False"], "offsets and tied=False are for models trained from scratch"),
        (["uniform=0"], "uniform must be above 0 and below 1, was 0"),
        (["data=FILE"], "tokens are not enough for one row of 64"),
    ],
)
def test_wrong_settings_and_short_texts_are_named_before_anything_is_trained(changes, message, tmp_path, capsys):
    (tmp_path / "short.txt").write_text("one line\nanother\n", encoding="utf-8")
    changes = [change.replace("FILE", str(tmp_path / "short.txt")) for change in changes]
    with pytest.raises(SystemExit):
        main(recipe.STUDY, ["--only", "softmax", "--set", *changes, "--out", str(tmp_path / "out")])
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_rows_are_full_and_in_order():
    tokenizer = data.learn_tokenizer(["ab ab", "abc"], 260)
    ids = [token for row in tokenizer(["ab ab", "abc"]).input_ids for token in row]
    rows = data.blocks(tokenizer, ["ab ab", "abc"], 3)
    assert [token for row in rows for token in row] == ids[: 3 * (len(ids) // 3)]
    assert data.blocks(tokenizer, ["ab ab", "abc"], 3, most=1) == rows[:1]
    with pytest.raises(ValueError, match=f"{len(ids)} tokens are not enough for one row of 100"):
        data.blocks(tokenizer, ["ab ab", "abc"], 100)


P = torch.tensor([[0.1, 0.4, 0.3, 0.2], [0.97, 0.0, 0.02, 0.01]])


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, P.tolist()),
        ({"top_k": 1}, [[0.0, 1, 0, 0], [1, 0, 0, 0]]),
        ({"top_k": 2}, [[0, 4 / 7, 3 / 7, 0], [97 / 99, 0, 2 / 99, 0]]),
        ({"top_p": 0.6}, [[0, 4 / 7, 3 / 7, 0], [1, 0, 0, 0]]),
        ({"top_p": 0.75}, [[0, 4 / 9, 3 / 9, 2 / 9], [1, 0, 0, 0]]),
    ],
    ids=str,
)
def test_decodings_keep_the_likeliest_and_share_the_rest_out(settings, expected):
    torch.testing.assert_close(measures.Decoding(**settings).of(P), torch.tensor(expected))


def test_decodings_cut_as_generate_does():
    from transformers import TopKLogitsWarper, TopPLogitsWarper

    logits = torch.randn(7, 40, generator=torch.Generator().manual_seed(0)) * 2
    for decoding, warper in (
        (measures.Decoding(top_k=10), TopKLogitsWarper(10)),
        (measures.Decoding(top_p=0.9), TopPLogitsWarper(0.9)),
    ):
        torch.testing.assert_close(decoding.of(logits.softmax(-1)), warper(None, logits.clone()).softmax(-1))
    assert measures.Decoding(top_k=1).arguments() == {"do_sample": False}
    assert measures.SPARSE["sampling"].arguments() == {"do_sample": True, "top_k": 0, "top_p": 1.0}


def test_what_eps_perplexity_charges_is_divided_by_how_often_a_token_was_seen():
    counts = torch.tensor([0, 19, 20, 1000])  # bins 0, 0, 1, 3
    p, x = torch.cat([P, P]), torch.tensor([1, 1, 2, 3])
    tokens, charged, missed = measures.by_count(p, x, 0.01, counts).unbind(1)
    assert tokens.tolist() == [2, 1, 0, 1]
    assert missed.tolist() == [1, 0, 0, 0]
    one = [-math.log(0.99 * share + 0.0025) for share in (0.4, 0.0, 0.3, 0.01)]
    torch.testing.assert_close(charged.tolist(), [one[0] + one[1], one[2], 0.0, one[3]])
    assert float(charged.sum()) == pytest.approx(measures.fit(p, x, 0.01)["eps_loss"], rel=1e-6)


def test_the_embedding_can_have_a_learning_rate_of_its_own(tmp_path):
    small = dataclasses.replace(recipe.RUNS["entmax13"], **recipe.QUICK | {"steps": 2})  # the rate of the first is 0

    def trained(multiple: float) -> dict[str, torch.Tensor]:
        model = models.Corpus(dataclasses.replace(small, embedding_lr=multiple)).model(tmp_path)
        return {name: weight.detach() for name, weight in model.named_parameters()}

    begun = dict(models.build(small, models.Corpus(small).tokenizer).named_parameters())
    usual, fast = trained(1.0), trained(4.0)
    for name, weight in begun.items():
        multiple = 4 if name == "transformer.wte.weight" else 1
        torch.testing.assert_close(fast[name] - weight, multiple * (usual[name] - weight), rtol=1e-4, atol=1e-6)
    assert not torch.equal(usual["transformer.wte.weight"], begun["transformer.wte.weight"])


@pytest.mark.parametrize("tied", [True, False])
def test_a_head_of_its_own_has_the_learning_rate_of_the_embedding(tied, tmp_path):
    small = dataclasses.replace(recipe.RUNS["softmax"], **recipe.QUICK | {"steps": 2, "tied": tied})
    heads = [models.Corpus(dataclasses.replace(small, embedding_lr=rate)).model(tmp_path) for rate in (1.0, 4.0)]
    begun = models.build(small, models.Corpus(small).tokenizer).lm_head.weight
    usual, fast = (model.lm_head.weight.detach() - begun.detach() for model in heads)
    torch.testing.assert_close(fast, 4 * usual, rtol=1e-4, atol=1e-6)
    assert [model.lm_head.weight is model.transformer.wte.weight for model in heads] == [tied, tied]


@pytest.mark.parametrize(("alpha", "temperature"), [(1.0, 1.0), (1.3, 3.0), (1.5, 6.0), (2.0, 40.0)])
def test_offsets_give_each_token_its_frequency(alpha, temperature):
    counts = torch.tensor([5, 0, 100, 1000, 3])
    offsets = models.frequency_offsets(counts, alpha, temperature)
    p = (offsets / temperature).softmax(-1) if alpha == 1 else entmax(offsets / temperature, alpha)
    torch.testing.assert_close(p, (counts + 1) / (counts + 1).sum())


@pytest.mark.parametrize("head", ["softmax", "entmax13"])
def test_a_model_begins_with_the_offsets_and_learns_them(head, tmp_path):
    small = dataclasses.replace(recipe.RUNS[f"trial-offsets-{head}"], **recipe.QUICK)
    corpus, moved = models.Corpus(small), []
    for steps in (1, 2):  # the rate of the first is 0
        bias = models.Corpus(dataclasses.replace(small, steps=steps)).model(tmp_path).lm_head.bias
        alpha, temperature = (1.0, 1.0) if head == "softmax" else (1.3, balanced_temperature(1.3, len(corpus.counts)))
        moved.append(bias.detach() - models.frequency_offsets(corpus.counts, alpha, temperature))
    assert not moved[0].any()
    assert moved[1].abs().min() > 0
    figures = recipe.perform(dataclasses.replace(small, steps=1), tmp_path / "run")
    assert not (tmp_path / "run" / "model" / "config.json").exists()
    assert figures["dev"]["eps_perplexity"] > 1


def test_settings_of_the_optimizer_reach_it(tmp_path, monkeypatch):
    kept = []
    monkeypatch.setattr(models, "train", lambda *args, **options: kept.append(options) or [])
    for name in ("beta2", "epsilon", "decay", "warmup-long"):
        models.Corpus(dataclasses.replace(recipe.RUNS[f"trial-{name}-softmax"], **recipe.QUICK)).model(tmp_path)
    assert [options["adam"]["adam_beta2"] for options in kept] == [0.95, 0.999, 0.999, 0.999]
    assert [options["adam"]["adam_epsilon"] for options in kept] == [1e-8, 1e-6, 1e-8, 1e-8]
    assert [options["adam"]["weight_decay"] for options in kept] == [0, 0, 0.1, 0]
    assert [options["warmup"] for options in kept] == [0.1, 0.1, 0.1, 0.3]


def test_the_likelihood_that_is_trained_on_is_what_eps_perplexity_charges():
    x, u = torch.tensor([1, 1]), 0.01
    assert float(eps_losses(P, x, u).mean()) == pytest.approx(measures.fit(P, x, u)["eps_loss"] / 2, rel=1e-6)


@torch.no_grad()
def test_the_likelihood_joins_the_loss_in_the_second_half(tmp_path):
    model = hf_sparse.sparsify(tiny_model("llama"), head="entmax15")
    arguments = hf_sparse.SparseTrainingArguments(str(tmp_path), report_to=[], use_cpu=True)
    trainer = LikelihoodTrainer(model, arguments, weight=0.5, uniform=0.01)
    inputs = {"input_ids": tokens(), "labels": tokens()}
    loss = float(model(**inputs).loss)
    added = float(eps_losses(model(tokens()).logits[:, :-1].exp(), tokens()[:, 1:], 0.01).mean())
    model.train()
    trainer.state.max_steps = 4
    for step, expected in ((1, loss), (2, loss + 0.5 * added)):
        trainer.state.global_step = step
        assert float(trainer.compute_loss(model, dict(inputs))) == pytest.approx(expected, rel=1e-5)
    model.eval()
    assert float(trainer.compute_loss(model, dict(inputs))) == pytest.approx(loss, rel=1e-5)


def test_fit_is_the_sum_of_the_papers_formulas():
    x, u = torch.tensor([1, 1]), 0.01
    found = measures.fit(P, x, u)
    assert found["eps_loss"] == pytest.approx(-math.log((1 - u) * 0.4 + u / 4) - math.log(u / 4), rel=1e-5)
    assert found["loss"] == math.inf
    assert found["missed"] == found["accuracy"] == 1
    assert found["support"] == 7
    first, second = 0.1**2 + 0.6**2 + 0.3**2 + 0.2**2, 0.97**2 + 1 + 0.02**2 + 0.01**2
    assert found["sparsemax_score"] == pytest.approx(2 - (first + second) / 2, rel=1e-5)
    mixed = math.log(2) - (1.4 * math.log(1.4) - 0.4 * math.log(0.4)) / 2
    assert found["jensen_shannon"] == pytest.approx(mixed + math.log(2), rel=1e-5)
    assert measures.fit(P[:1], x[:1], u)["loss"] == pytest.approx(-math.log(0.4))


def test_repetitions_look_back_into_the_text_and_no_further_than_the_span():
    text = torch.tensor([[5, 6, 7, 5, 8]])
    drawn = torch.tensor([[5, 5, 5, 5, 6]])
    assert measures.repetitions(drawn, text, 1) == (1, 1)  # the second
    assert measures.repetitions(drawn, text, 2) == (2, 2)  # and the third
    assert measures.repetitions(drawn, text, 3) == (4, 3)  # the fourth too, which was written, and the last
    assert measures.repetitions(text, text, 100) == (1, 0)


def test_repetitions_by_a_second_count():
    random = torch.Generator().manual_seed(0)
    drawn, text = (torch.randint(0, 6, (4, 9), generator=random) for _ in range(2))
    before = [(d, y, set(row[max(0, place - 3) : place])) for line, row in zip(drawn.tolist(), text.tolist())
              for place, (d, y) in enumerate(zip(line, row))]  # fmt: skip
    expected = sum(d in seen for d, _, seen in before), sum(d in seen and d != y for d, y, seen in before)
    assert measures.repetitions(drawn, text, 3) == expected


def test_distinct_is_a_mean_over_texts():
    assert measures.distinct([[1, 1, 1, 1], [1, 2, 3, 4]], 1) == (0.25 + 1) / 2
    assert measures.distinct([[1, 1, 1, 1], [7]], 2) == 1 / 3
    with pytest.raises(ValueError, match="no text has 3 tokens"):
        measures.distinct([[1, 2]], 3)


def test_perplexity_is_that_of_the_models_own_loss_and_the_human_share_is_of_the_text():
    settings = dataclasses.replace(recipe.RUNS["softmax"], **recipe.QUICK)
    corpus = models.Corpus(settings)
    model = models.build(settings, corpus.tokenizer).eval()
    found = recipe.measure(model, corpus)
    loss = model(input_ids=corpus.test_rows, labels=corpus.test_rows).loss
    assert found["decodings"]["sampling"]["perplexity"] == pytest.approx(float(loss.detach().exp()), rel=1e-4)
    assert found["decodings"]["greedy"]["perplexity"] is None
    assert found["decodings"]["top-k 10"]["support"] == 10
    text = corpus.test_rows[:, 1:].tolist()
    seen = [token in row[max(0, place - 32) : place] for row in text for place, token in enumerate(row)]
    assert found["human"]["rep"] == sum(seen) / len(seen)
    assert found["tokens"] == len(seen)


@pytest.mark.parametrize("head", ["softmax", "entmax15"])
def test_errors_are_added_to_scores_and_not_to_what_the_map_gives(head, monkeypatch):
    settings = dataclasses.replace(recipe.RUNS[head], **recipe.QUICK)
    corpus = models.Corpus(settings)
    model = models.made_sparse(models.build(settings, corpus.tokenizer), settings).eval()
    monkeypatch.setattr(recipe, "ERRORS", (0.0, 0.3))
    found = recipe.with_errors(model, corpus)
    assert found["0.0"] == pytest.approx(recipe.measure(model, corpus)["decodings"]["sampling"]["eps_perplexity"])
    rows = corpus.test_rows
    weight, hidden = model.lm_head.weight.detach(), model.transformer(rows).last_hidden_state[:, :-1].detach()
    noise = torch.randn(rows[:, 1:].numel(), len(weight), generator=torch.Generator().manual_seed(settings.seed))
    scores = (hidden @ weight.T).flatten(0, 1) + 0.3 * noise
    p = scores.softmax(-1) if head == "softmax" else entmax15(scores / sparse_config(model).head.temperature)
    expected = measures.fit(p, rows[:, 1:].flatten(), settings.uniform)["eps_loss"] / rows[:, 1:].numel()
    assert found["0.3"] == pytest.approx(math.exp(expected), rel=1e-4)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"head": "entmax13"}, {"name": "entmax", "alpha": 1.3, "temperature": "auto"}),
        ({"head": "sparsemax", "temperature": 4.0}, {"name": "sparsemax", "temperature": 4.0}),
        ({"head": "entmax15", "conversion": "lora"}, {"name": "entmax15", "temperature": 1.0}),
        ({"head": "softmax", "temperature": 4.0}, None),
    ],
)
def test_heads_find_their_temperature_from_scratch_alone(changes, expected):
    assert models.head_of(models.LanguageSettings(**changes)) == expected


def test_attention_finds_its_temperature_from_scratch_alone():
    assert models.attention_of(models.LanguageSettings()) is None
    sparse = models.LanguageSettings(attention="entmax15")
    assert models.attention_of(sparse) == {"name": "entmax15", "temperature": "auto"}
    converted = dataclasses.replace(sparse, conversion="full")
    assert models.attention_of(converted) == {"name": "entmax15", "temperature": 1.0}


def test_curves_are_measured_on_development_rows_apart_from_the_reported_ones(tmp_path):
    settings = dataclasses.replace(recipe.RUNS["entmax15"], **recipe.QUICK, lr=0.0)
    corpus = models.Corpus(settings)
    every = torch.cat([corpus.test_rows, corpus.dev_rows])
    assert [len(corpus.test_rows), len(corpus.dev_rows)] == [6, 6]
    alone = models.Corpus(dataclasses.replace(settings, test_rows=12, dev_rows=0))
    assert torch.equal(alone.test_rows, every)
    model = corpus.model(tmp_path / "model").eval()
    curve = points(corpus.log)
    assert [point["step"] for point in curve] == [1, 2, 3, 4]
    p = hf_sparse.probabilities(model, model(corpus.dev_rows).logits[:, :-1]).flatten(0, 1)
    figures = measures.fit(p.detach(), corpus.dev_rows[:, 1:].flatten(), settings.uniform)
    assert curve[-1]["dev_eps_perplexity"] == pytest.approx(math.exp(figures["eps_loss"] / len(p)), rel=1e-4)
    assert curve[-1]["dev_missed"] == pytest.approx(figures["missed"] / len(p))
    alone.model(tmp_path / "alone")
    assert not points(alone.log)


def test_a_head_moves_to_its_alpha_from_another_with_the_temperature_of_each(tmp_path):
    settings = dataclasses.replace(recipe.RUNS["to-entmax15"], **recipe.QUICK | {"steps": 5})
    corpus, seen = models.Corpus(settings), []
    start = models.start_of(settings, 2000)
    assert start == {"alpha": 1.3, "temperature": pytest.approx(2000**0.15)}
    assert models.start_of(recipe.RUNS["entmax15"], 2000) is None
    model = models.made_sparse(models.build(settings, corpus.tokenizer), settings)

    def look(*_):
        if model.training and torch.is_grad_enabled():  # a step, no look at the model before it or at dev rows
            head = sparse_config(model).head
            seen.append((head.map_settings.get("alpha", 1.5), head.temperature))

    model.register_forward_pre_hook(look)
    corpus.train(model, tmp_path / "training", 5, 1e-3, 0)
    assert len(seen) == 5
    assert seen[0] == pytest.approx((1.3, len(corpus.tokenizer) ** 0.15))
    assert seen[-1] == pytest.approx((1.5, len(corpus.tokenizer) ** 0.25))


def test_a_temperature_fitted_after_training_holds_more_targets_and_is_the_best_of_the_coverages_tried(tmp_path):
    settings = dataclasses.replace(recipe.RUNS["entmax15"], **recipe.QUICK | {"dev_rows": 30, "temperature": 0.5})
    corpus = models.Corpus(settings)
    model = models.made_sparse(models.build(settings, corpus.tokenizer), settings).eval()
    before = measures_on(model, corpus)
    found = recipe.calibrated(model, corpus)
    assert sparse_config(model).head.temperature == found["temperature"] > 0.5
    assert sparse_config(model).head.spelled_out.map_settings == {"alpha": 1.5}
    best = measures_on(model, corpus)
    assert best["missed"] < before["missed"]
    assert best["eps_perplexity"] < before["eps_perplexity"]
    assert best["missed"] == pytest.approx(1 - found["coverage"], abs=0.02)
    batches = [{"input_ids": corpus.dev_rows, "labels": corpus.dev_rows}]
    for coverage in recipe.COVERAGES:
        hf_sparse.calibrate(model, batches, coverage=coverage, fit_alpha=False, progress=False)
        assert measures_on(model, corpus)["eps_perplexity"] >= best["eps_perplexity"] * (1 - 1e-6)
    assert recipe.calibrated(model, models.Corpus(dataclasses.replace(settings, dev_rows=4))) == {}
    assert recipe.calibrated(model, models.Corpus(dataclasses.replace(settings, head="alpha_relu"))) == {}


@pytest.mark.parametrize("attention", ["softmax", "entmax15"])
def test_softmax_has_a_temperature_fitted_after_training_too(attention):
    settings = dataclasses.replace(recipe.RUNS["softmax"], **recipe.QUICK | {"dev_rows": 30, "attention": attention})
    corpus = models.Corpus(settings)
    model = models.made_sparse(models.build(settings, corpus.tokenizer), settings).eval()
    model.transformer.ln_f.weight.data.mul_(6)  # far too sure of itself, untrained as it is
    before = measures_on(model, corpus)
    found = recipe.calibrated(model, corpus)
    assert sparse_config(model).head.temperature == found["temperature"] == max(recipe.TEMPERATURES)
    assert bool(sparse_config(model).attn) == (attention == "entmax15")
    assert measures_on(model, corpus)["eps_perplexity"] < before["eps_perplexity"]
    assert found["support"] == len(corpus.tokenizer)


def test_heads_are_set_beside_softmax_at_fitted_temperatures_where_there_are_any():
    """eps-perplexities after training and fitted: softmax 80 and 70, a sparse head 90 and 77, another 84 and none."""

    def runs(trained, fitted):
        calibrated = {"eps_perplexity": fitted} if fitted else {}
        figures = {"decodings": {"sampling": {"eps_perplexity": trained}}, "calibrated": calibrated}
        return [{"figures": figures}]

    softmax, entmax15, entmax12 = (report._lowest(runs(*each)) for each in ((80.0, 70.0), (90.0, 77.0), (84.0, None)))
    assert (entmax15 / softmax, entmax12 / softmax) == pytest.approx((1.1, 1.2))


def measures_on(model, corpus):
    return recipe.fit_to(model, corpus.dev_rows, corpus.settings.uniform)


def test_a_quick_run_keeps_models_and_texts(tmp_path, capsys):
    names = ["softmax", "alpha_relu-attention", "entmax15-none", "entmax15-lora", "entmax15-full"]
    results = main(recipe.STUDY, ["--quick", "--only", *names, "--out", str(tmp_path)])
    runs = {run["run"]: run["figures"] for run in results["runs"]}
    assert set(runs) == set(names)
    assert list(runs["softmax"]["decodings"]) == ["sampling", "greedy", "top-k 10", "nucleus 0.9"]
    assert list(runs["alpha_relu-attention"]["decodings"]) == ["sampling"]
    assert runs["softmax"]["keys"] is None
    assert runs["entmax15-none"]["keys"] > 1
    assert runs["entmax15-none"]["trained"] == 0
    assert 0 < runs["entmax15-lora"]["trained"] < runs["entmax15-full"]["trained"] == runs["softmax"]["parameters"]
    for figures in runs.values():
        written = figures["written"]
        assert len(written["beginnings"]) == len(written["sampling"]["examples"]) == 3
        assert 0 < written["human"]["distinct"]["1"] <= written["human"]["distinct"]["3"] <= 1
    scores = [runs[name]["decodings"]["sampling"]["eps_perplexity"] for name in names[2:]]
    assert len(set(scores)) == 3
    assert json.loads((tmp_path / "results.json").read_text()) == results
    assert (tmp_path / "language_modelling.png").stat().st_size > 10_000
    assert (tmp_path / "learning_curves.png").stat().st_size > 10_000
    assert "softmax, nucleus 0.9" in capsys.readouterr().out
    for name in ("alpha_relu-attention", "entmax15-lora"):
        kept = from_pretrained(tmp_path / "runs" / f"{name}-0" / "model")
        assert sparse_config(kept).to_dict() == runs[name]["maps"]
