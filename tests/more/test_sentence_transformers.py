"""Sentence embeddings with sparse attention: encode, train, save and load by sentence-transformers itself."""

import numpy as np
import pytest
import torch
from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
    SparseEncoder,
    SparseEncoderTrainer,
    SparseEncoderTrainingArguments,
)
from sentence_transformers.sentence_transformer.losses import CosineSimilarityLoss
from transformers import BertModel

import hf_sparse
from hf_sparse.hooks import install, uninstall
from tests.tiny_models import tiny_model
from tests.word_tokenizer import word_tokenizer

SENTENCES = ["w5 w6 w7 w8 w9", "w10 w11", "w5 w12 w13"]


def dense_folder(path):
    model = tiny_model("bert").bert
    model.save_pretrained(path)
    word_tokenizer().save_pretrained(path)
    return path


@pytest.fixture
def folder(tmp_path):
    """A checkpoint of a sparse encoder, with its tokenizer."""
    path = dense_folder(tmp_path / "encoder")
    hf_sparse.sparsify(BertModel.from_pretrained(path), attn="entmax15").save_pretrained(path)
    return path


def by_hand(folder, sentence):
    """Mean of the last hidden states of one sentence, by Transformers alone."""
    model = hf_sparse.from_pretrained(folder).eval()
    with torch.no_grad():
        return model(**word_tokenizer()(sentence, return_tensors="pt")).last_hidden_state.mean(1)[0].numpy()


def test_embeddings_are_those_of_the_sparse_encoder_padded_or_not(folder, tmp_path):
    embeddings = SentenceTransformer(str(folder), device="cpu").encode(SENTENCES, batch_size=3)
    for sentence, embedding in zip(SENTENCES, embeddings):
        np.testing.assert_allclose(embedding, by_hand(folder, sentence), atol=1e-5)
    dense = SentenceTransformer(str(dense_folder(tmp_path / "dense")), device="cpu").encode(SENTENCES)
    assert np.abs(dense - embeddings).max() > 0.01


def test_a_loaded_sentence_transformer_can_be_made_sparse(folder, tmp_path):
    model = SentenceTransformer(str(dense_folder(tmp_path / "dense")), device="cpu")
    hf_sparse.sparsify(model[0].model, attn="entmax15")
    sparse = SentenceTransformer(str(folder), device="cpu")
    np.testing.assert_array_equal(model.encode(SENTENCES), sparse.encode(SENTENCES))


def test_training_changes_the_encoder_and_what_is_saved_comes_back_sparse(folder, tmp_path):
    model = SentenceTransformer(str(folder), device="cpu")
    before = model.encode(SENTENCES)
    pairs = {"sentence1": SENTENCES[:2] * 4, "sentence2": SENTENCES[1:] * 4, "score": [0.9, 0.1] * 4}
    arguments = SentenceTransformerTrainingArguments(
        str(tmp_path / "run"), max_steps=2, learning_rate=1e-3, report_to=[], use_cpu=True, disable_tqdm=True
    )
    SentenceTransformerTrainer(
        model, arguments, train_dataset=Dataset.from_dict(pairs), loss=CosineSimilarityLoss(model)
    ).train()
    after = model.encode(SENTENCES)
    assert np.abs(after - before).max() > 1e-4
    model.save(str(tmp_path / "saved"))
    again = SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    np.testing.assert_array_equal(again.encode(SENTENCES), after)
    attentions = again[0].model(**again.preprocess(SENTENCES[:1]), output_attentions=True).attentions
    assert all((weights == 0).any() for weights in attentions)
    assert hf_sparse.is_sparse(again[0].model)


@pytest.mark.parametrize("name", ["bert", "modernbert"])
@torch.no_grad()
def test_splade_weighs_words_by_the_scores_of_a_sparse_head(name, tmp_path):
    """log(1 + max(z, 0)), the greatest over the sentence: log-probabilities in z's place would leave no word."""
    model = hf_sparse.sparsify(tiny_model(name), attn="entmax15", head="entmax15")
    model.save_pretrained(tmp_path)
    tokenizer = word_tokenizer(mask_token="<mask>")
    tokenizer.save_pretrained(tmp_path)
    found = SparseEncoder(str(tmp_path), device="cpu").encode(SENTENCES, convert_to_sparse_tensor=False)
    for sentence, words in zip(SENTENCES, found, strict=True):
        z = model(**tokenizer(sentence, return_tensors="pt"), log_probs=False).logits[0]
        torch.testing.assert_close(words, z.relu().log1p().amax(0), atol=1e-5, rtol=1e-4)
        assert bool((words > 0).any())


class Seen(torch.nn.Module):
    """A loss that keeps the embeddings which a trainer gives it."""

    def __init__(self, model):
        super().__init__()
        self.model, self.embeddings = model, []

    def forward(self, features, labels):
        (feature,) = features
        self.embeddings.append(self.model(feature)["sentence_embedding"])
        return self.embeddings[-1].sum()


def test_splade_is_trained_on_the_words_that_it_encodes(tmp_path):
    hf_sparse.sparsify(tiny_model("bert"), attn="entmax15", head="entmax15").save_pretrained(tmp_path)
    word_tokenizer(mask_token="<mask>").save_pretrained(tmp_path)
    encoder = SparseEncoder(str(tmp_path), device="cpu")
    for dropout in encoder.modules():
        if isinstance(dropout, torch.nn.Dropout):
            dropout.p = 0.0
    expected = encoder.encode(SENTENCES[:1], convert_to_sparse_tensor=False)
    loss = Seen(encoder)
    settings = {"max_steps": 1, "report_to": "none", "use_cpu": True, "learning_rate": 0.0}
    rows = Dataset.from_dict({"text": SENTENCES[:1], "label": [1.0]})
    args = SparseEncoderTrainingArguments(str(tmp_path / "out"), **settings)
    SparseEncoderTrainer(encoder, args, train_dataset=rows, loss=loss).train()
    torch.testing.assert_close(loss.embeddings[0].detach(), torch.as_tensor(expected))
    assert bool((loss.embeddings[0] > 0).any())


def test_splade_has_the_same_words_in_other_processes(tmp_path):
    """They unpickle the model: none is built or made sparse there."""
    hf_sparse.sparsify(tiny_model("bert"), attn="entmax15", head="entmax15").save_pretrained(tmp_path)
    word_tokenizer(mask_token="<mask>").save_pretrained(tmp_path)
    encoder = SparseEncoder(str(tmp_path), device="cpu")
    expected = encoder.encode(SENTENCES, convert_to_sparse_tensor=False)
    found = encoder.encode(SENTENCES, device=["cpu"], convert_to_sparse_tensor=False)
    torch.testing.assert_close(torch.as_tensor(found), torch.as_tensor(expected))


def test_the_change_to_sentence_transformers_is_undone(folder):
    transformer = type(SentenceTransformer(str(folder), device="cpu")[0])
    changed = transformer.forward
    uninstall()
    try:
        assert transformer.forward is not changed
        assert transformer.forward.__module__ == transformer.__module__
    finally:
        install()
