"""The recipe of stored supports: what is kept of a teacher, its bytes, and a small run of every student."""

import math

import pytest
import torch
from datasets import Dataset, Features, List, Value

from recipes.language_modelling.data import learn_tokenizer
from recipes.support_distillation import run as recipe
from recipes.support_distillation import stores
from recipes.support_distillation.models import shallow
from tests.tiny_models import tiny_model


def test_draws_are_unbiased_and_as_many_as_asked():
    p = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).expand(20_000, 4)
    drawn = stores.counted(p, 12, torch.Generator().manual_seed(0))
    torch.testing.assert_close(drawn, drawn.round())
    torch.testing.assert_close(drawn.sum(-1), torch.full((20_000,), 12.0))
    torch.testing.assert_close(drawn.mean(0) / 12, p[0], rtol=0, atol=5e-3)


def test_the_likeliest_classes_are_kept_in_proportion():
    p = torch.tensor([[0.1, 0.4, 0.2, 0.3], [0.7, 0.1, 0.15, 0.05]])
    torch.testing.assert_close(
        stores.top_k(p, 2), torch.tensor([[0.0, 4 / 7, 0.0, 3 / 7], [14 / 17, 0.0, 3 / 17, 0.0]])
    )


def test_what_is_kept_is_of_the_position_before_each_label():
    teacher, rows = tiny_model("gpt2"), Dataset.from_dict({"input_ids": [[5, 7, 9, 4], [3, 6, 8, 5]]})
    found = stores.kept(teacher, rows, lambda p: stores.top_k(p, 3), "float16")
    with torch.no_grad():
        p = teacher(input_ids=torch.tensor(rows["input_ids"])).logits.softmax(-1)
    for number, row in enumerate(found["support_ids"]):
        likeliest = p[number].topk(3).indices.sort(-1).values
        assert row == likeliest[: len(row)].tolist()


def test_bytes_are_those_of_files():
    """Random bits cannot be compressed: two bytes a class and two a probability, four in whole distributions."""
    generator = torch.Generator().manual_seed(0)
    p = torch.rand(500, 64, generator=generator).softmax(-1)
    ids = torch.randint(2**16, (50, 10, 64), generator=generator)
    weights = torch.randint(2**14, (50, 10, 64), generator=generator).to(torch.int16).view(torch.float16)
    features = {"support_ids": List(List(Value("uint16"))), "support_probabilities": List(List(Value("float16")))}
    columns = {"support_ids": ids.tolist(), "support_probabilities": weights.tolist()}
    assert stores.bytes_a_token(Dataset.from_dict(columns, Features(features))) == pytest.approx(64 * 4, rel=0.1)
    assert stores.bytes_of_whole(p) == pytest.approx(64 * 4, rel=0.3)
    assert stores.bytes_of_whole(p.round(decimals=1)) < 64


@pytest.mark.slow
def test_a_small_run_of_every_student(tmp_path, capsys):
    results = recipe.main(recipe.STUDY, ["--quick", "--seeds", "2", "--out", str(tmp_path)])["runs"]
    assert len(results) == 2 * sum(not settings.source for settings in recipe.RUNS.values())
    figures = {run["run"]: run["figures"] for run in results}
    assert 10 < figures["draws-24"]["bytes"] < figures["draws"]["bytes"] < 4 * 90
    assert 58 < figures["top-k"]["bytes"] < figures["teacher"]["bytes"] < 1300
    assert "bytes" not in figures["full"]
    assert all(0 < own["eps_loss"] < 10 for own in figures.values())
    printed = capsys.readouterr().out
    assert "- `support`: " in printed
    assert " (100.0%) | yes |" in printed
    assert "Seeds of the full distribution are up to " in printed


def test_a_student_is_its_teacher_with_fewer_layers():
    teacher = tiny_model("llama", num_hidden_layers=5)
    student = shallow(teacher, 3)
    assert (student.config.num_hidden_layers, teacher.config.num_hidden_layers) == (3, 5)
    ids = torch.tensor([[5, 7, 9, 4]])
    with torch.no_grad():
        found = student(input_ids=ids).logits
        teacher.model.layers = torch.nn.ModuleList(teacher.model.layers[place] for place in (0, 2, 4))
        teacher.config.num_hidden_layers = 3
        assert torch.equal(found, teacher(input_ids=ids, use_cache=False).logits)


def test_a_student_has_no_more_layers_than_its_teacher():
    with pytest.raises(ValueError, match="layers must be at most 2, those of the teacher, was 3"):
        shallow(tiny_model("llama"), 3)


@pytest.mark.slow
def test_a_pretrained_teacher_has_its_own_tokens_and_stays_as_it_is(tmp_path, capsys):
    """A folder takes the place of the package; test-more has the package."""
    text = [f"{number} red birds sit on wall {number + 1}" for number in range(400)]
    tokenizer = learn_tokenizer(text, 300)
    source = str(tmp_path / "model")
    tiny_model("llama", vocab_size=len(tokenizer), num_hidden_layers=4).save_pretrained(source)
    tokenizer.save_pretrained(source)
    arguments = ["--quick", "--only", "smollm2-*", "--out", str(tmp_path / "out")]
    changes = ["--set", f"source={source}", "layers=2", "context=16", "dtype=float32", "classes=20"]
    results = recipe.main(recipe.STUDY, [*arguments, *changes])["runs"]
    assert len(results) == len(recipe.SMOLLM2_RUNS)
    figures = {run["run"]: run["figures"] for run in results}
    assert {own["vocabulary"] for own in figures.values()} == {len(tokenizer)}
    assert figures["smollm2-draws"]["bytes"] < figures["smollm2-draws-400"]["bytes"]
    printed = capsys.readouterr().out
    assert "- `smollm2-draws`: " in printed
    assert " (100.0%) | yes |" in printed


@pytest.mark.slow
def test_a_store_is_compared_with_the_full_distribution_of_its_seeds_alone(tmp_path, capsys):
    arguments = ["--quick", "--out", str(tmp_path), "--set", "vocabulary=260"]
    recipe.main(recipe.STUDY, [*arguments, "--only", "draws", "--seeds", "2"])
    assert "- `draws`: " not in capsys.readouterr().out
    results = recipe.main(recipe.STUDY, [*arguments, "--only", "full"])["runs"]
    first = {run["run"]: run["figures"]["eps_loss"] for run in results if run["settings"]["seed"] == 0}
    change = math.exp(first["draws"] - first["full"]) - 1
    assert f"- `draws`: {change:+.1%} at " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "sampled", "--set", "count=256"], "count must be at most 255"),
        (["--only", "top-k", "--set", "count=270", "vocabulary=265"], "count must be at most 265, the classes there"),
        (["--only", "support", "--set", "classes=270", "vocabulary=265"], "classes must be at most 265, the classes"),
        (["--only", "full", "--set", "dtype=foo"], "dtype must be one of float32, bfloat16, was 'foo'"),
        (["--only", "full", "--set", "head=foo"], "unknown sparse map 'foo'"),
        (["--only", "full", "--data", "FILE"], "tokens are not enough for one row of 64"),
    ],
)
def test_nothing_is_trained_where_settings_or_text_are_wrong(arguments, message, tmp_path, capsys):
    (tmp_path / "short.txt").write_text("one line\nanother\n", encoding="utf-8")
    arguments = [argument.replace("FILE", str(tmp_path / "short.txt")) for argument in arguments]
    with pytest.raises(SystemExit):
        recipe.main(recipe.STUDY, [*arguments, "--out", str(tmp_path / "out")])
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_what_is_not_known_is_refused():
    with pytest.raises(
        ValueError, match="store must be one of labels, full, support, top-k, sampled, draws, or empty, was 'x'"
    ):
        recipe.SupportDistillation(store="x")
