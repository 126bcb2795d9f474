"""What other libraries take of a sparse model. Stand-ins have the shape of their classes and functions."""

import copy
from types import SimpleNamespace

import pytest
from torch import nn

from hf_sparse import sparsify, unsparsify
from hf_sparse.model.foreign_files import OF_FOREIGN_FILES
from tests.tiny_models import tiny_model

CTRANSLATE2, GLINER, TRANSFORMER_LENS = OF_FOREIGN_FILES


def converted(model):
    """What goes on to a loader of CTranslate2."""
    return CTRANSLATE2.replacement(lambda self, model, tokenizer: model, None, model, "tokenizer")


@pytest.mark.parametrize("maps", [{"attn": "entmax15"}, {"head": "sparsemax"}], ids=["attention", "head"])
def test_ctranslate2_does_not_convert_a_sparse_model(maps):
    model = sparsify(tiny_model("llama"), **maps)
    with pytest.raises(ValueError, match=r"^this LlamaForCausalLM is sparse .*CTranslate2 would run it with softmax"):
        converted(model)
    assert converted(unsparsify(model)) is model


class Gliner:
    """A model that keeps configurations of its encoders apart from theirs."""

    def __init__(self, **encoders):
        self.model = nn.ModuleDict(encoders)
        configs = {f"{name}_config": copy.deepcopy(it.config) for name, it in encoders.items()}
        self.config = SimpleNamespace(max_len=384, model_name="bert", **configs)

    def save(self, **kwargs):
        def save_pretrained(self, folder, *, config=None, repo_id=None):
            return repo_id or folder

        return GLINER.replacement(save_pretrained, self, "folder", **kwargs)


def test_gliner_does_not_save_an_encoder_that_was_made_sparse_inside():
    gliner = Gliner(encoder=tiny_model("bert"))
    assert gliner.save() == "folder"
    encoder = sparsify(gliner.model["encoder"], attn="entmax15")
    with pytest.raises(ValueError, match=r"encoders of this Gliner have \[.*entmax15.*, and its .* says nothing"):
        gliner.save()
    gliner.config.encoder_config = encoder.config
    assert gliner.save() == "folder"
    assert gliner.save(repo_id="user/gliner") == "user/gliner"
    with pytest.raises(ValueError, match="so that another model would come back"):
        gliner.save(config=SimpleNamespace(encoder_config=tiny_model("bert").config))


def test_gliner_saves_encoders_that_were_sparse_from_the_beginning():
    labels_encoder = sparsify(tiny_model("bert"), attn="sparsemax")
    gliner = Gliner(encoder=sparsify(tiny_model("bert"), attn="entmax15"), labels_encoder=labels_encoder)
    assert gliner.save() == "folder"
    unsparsify(labels_encoder)
    with pytest.raises(ValueError, match="so that another model would come back"):
        gliner.save()


def test_transformer_lens_does_not_copy_the_weights_of_a_sparse_model():
    def copied(*model):
        return TRANSFORMER_LENS.replacement(
            lambda name, config, hf_model, dtype: hf_model, "gpt2", {}, *model, dtype=0
        )

    model = sparsify(tiny_model("gpt2"), attn="entmax15")
    with pytest.raises(ValueError, match=r"^this GPT2LMHeadModel is sparse .*sparsify\(bridge\.original_model\)"):
        copied(model)
    assert copied(unsparsify(model)) is model
    assert copied() is None  # it loads the model itself
