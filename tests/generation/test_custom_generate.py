"""The folders for the Hub, loaded by ``generate`` from where they are, against the functions they wrap."""

from pathlib import Path

import pytest
import torch

from hf_sparse import Lexicon, condition, enumerate_support, exact_search
from tests.enumeration import model_and_inputs
from tests.generation.conditioning.tokenizers import joined

FOLDERS = Path(__file__).resolve().parents[2] / "release" / "custom_generate"
MODELS = [("gpt2", "entmax15"), ("gpt2", None), ("t5", "entmax15")]


@pytest.fixture(autouse=True)
def no_modules_elsewhere(tmp_path, monkeypatch):
    """Transformers copies the code that it runs."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))


def loaded(name):
    return {"custom_generate": str(FOLDERS / name), "trust_remote_code": True}


@pytest.mark.parametrize(("name", "head"), MODELS)
def test_exact_search_from_its_folder(name, head):
    model, inputs = model_and_inputs(name, head)
    (expected,) = exact_search(model, inputs, 2, max_new_tokens=4)
    options = {"num_hypotheses": 2, "max_new_tokens": 4, **loaded("exact_search")}
    output = model.generate(**inputs, **options, return_dict_in_generate=True)
    assert output.results == [expected]
    assert torch.equal(model.generate(**inputs, **options), output.sequences)


@pytest.mark.parametrize(("name", "head"), MODELS)
def test_enumerate_support_from_its_folder(name, head):
    model, inputs = model_and_inputs(name, head)
    options = {"max_new_tokens": 3, "min_probability": 0.001}
    expected = enumerate_support(model, inputs, **options)
    assert expected.sequences
    assert model.generate(**inputs, **options, **loaded("enumerate_support")) == expected
    by_position = model.generate(inputs["input_ids"], **options, **loaded("enumerate_support"))
    assert by_position.sequences == expected.sequences


@pytest.mark.parametrize(("name", "head"), MODELS)
def test_condition_from_its_folder(name, head):
    model, inputs = model_and_inputs(name, head)
    tokenizer = joined("a", "b", "ab", "ba")
    expected = condition(model, inputs, Lexicon(["ab", "b", "a"], tokenizer), max_new_tokens=4)
    options = {"max_new_tokens": 4, **loaded("condition")}
    texts = {"lexicon": ["ab", "b", "a"], "tokenizer": tokenizer}
    assert model.generate(**inputs, **options, **texts) == expected
    assert model.generate(**inputs, **options, given=Lexicon(["ab", "b", "a"], tokenizer)) == expected
    with pytest.raises(TypeError, match="give one of given, lexicon, regex, words; was given 2"):
        model.generate(**inputs, **options, **texts, words=["a"])


@pytest.mark.parametrize("name", sorted(folder.name for folder in FOLDERS.iterdir()))
def test_a_folder_has_what_the_hub_wants(name):
    folder = FOLDERS / name
    assert (folder / "custom_generate" / "requirements.txt").read_text().split() == ["hf_sparse"]
    assert "- custom_generate" in (folder / "README.md").read_text().split("---")[1]
    assert f"hf_sparse.{name}" in (folder / "custom_generate" / "generate.py").read_text().replace(
        "decoding", "search"
    )
