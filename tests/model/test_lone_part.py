"""A part that was made sparse by itself: the whole around it is not trained, saved or loaded as dense."""

import pytest
import torch
from transformers import (
    BarkConfig,
    BarkModel,
    BertConfig,
    EncodecConfig,
    EncoderDecoderConfig,
    EncoderDecoderModel,
    Trainer,
    TrainingArguments,
)

from hf_sparse import (
    SparseTrainer,
    SparseTrainingArguments,
    from_pretrained,
    is_sparse,
    save_pretrained,
    sparse_config,
    sparsify,
    unsparsify,
)
from tests.tiny_models import (
    DECODER,
    TOKENS,
    tiny_model,
    tokens,
)


@pytest.mark.parametrize("where", ["put in", "in place"])
def test_a_whole_around_a_part_that_is_sparse_by_itself_is_not_saved_as_dense(where, tmp_path):
    whole = tiny_model("llama")
    if where == "put in":
        whole.model = sparsify(tiny_model("llama").model, attn="entmax15")
    else:
        sparsify(whole.model, attn="entmax15")
    with pytest.raises(ValueError, match=r"'model' in this LlamaForCausalLM is sparse by itself, .* sparsify the "):
        whole.save_pretrained(tmp_path / "model")
    assert not (tmp_path / "model").exists()
    expected, settings = whole(tokens()).logits, sparse_config(whole.model).to_dict()
    unsparsify(whole.model)
    sparsify(whole, attn=settings["attn"]).save_pretrained(tmp_path / "model")
    assert torch.equal(from_pretrained(tmp_path / "model")(tokens()).logits, expected)


@torch.no_grad()
def test_the_whole_takes_the_maps_of_its_part_as_the_refusal_says():
    whole, inputs = tiny_model("bart"), {"input_ids": tokens(), "decoder_input_ids": tokens()}
    sparsify(whole.model.encoder, attn="entmax15")
    expected, settings = whole(**inputs).logits, sparse_config(whole.model.encoder).to_dict()
    with pytest.raises(ValueError, match=r"kinds of attention that the part has: attn={'encoder': \.\.\.}"):
        sparse_config(whole)
    unsparsify(whole.model.encoder)
    torch.testing.assert_close(sparsify(whole, attn={"encoder": settings["attn"]})(**inputs).logits, expected)


def dense_around_sparse(**maps):
    """An encoder-decoder whose decoder was made sparse by itself."""
    part = {"vocab_size": 23, **TOKENS, **DECODER}
    decoder = BertConfig(**part, is_decoder=True, add_cross_attention=True)
    whole = EncoderDecoderModel(config=EncoderDecoderConfig.from_encoder_decoder_configs(BertConfig(**part), decoder))
    whole.config.decoder_start_token_id, whole.config.pad_token_id = 1, 0
    sparsify(whole.decoder, **maps)
    return whole.eval()


def test_a_whole_says_that_a_part_is_sparse_by_itself_and_is_neither_trained_nor_saved(tmp_path):
    whole = dense_around_sparse(attn="entmax15", head="entmax15")
    args = TrainingArguments(tmp_path / "run", use_cpu=True, report_to=[])
    sparse_args = SparseTrainingArguments(tmp_path / "run", use_cpu=True, report_to=[])
    assert is_sparse(whole)
    for door in (
        lambda: sparse_config(whole),
        lambda: save_pretrained(whole, tmp_path / "model"),
        lambda: whole.save_pretrained(tmp_path / "model"),
        lambda: Trainer(whole, args).save_model(tmp_path / "run"),
        lambda: Trainer(whole, args).train(),
        lambda: SparseTrainer(whole, sparse_args).train(),
        lambda: sparsify(whole, attn="sparsemax"),
    ):
        with pytest.raises(
            ValueError, match="'decoder' in this EncoderDecoderModel is sparse by itself, and the whole"
        ):
            door()
    assert not (tmp_path / "model").exists()
    unsparsify(whole.decoder)
    assert not is_sparse(whole)


@torch.no_grad()
def test_a_whole_with_a_part_that_is_sparse_by_itself_decodes_from_its_distribution():
    whole = dense_around_sparse(attn="entmax15", head={"name": "entmax15", "temperature": 0.1})
    output = whole.generate(
        tokens(), max_new_tokens=2, return_dict_in_generate=True, output_scores=True, forced_eos_token_id=None
    )
    p = torch.stack(output.scores).exp()
    assert (p == 0).any()
    torch.testing.assert_close(p.sum(-1), torch.ones(2, 2))


def test_a_part_of_another_sparse_model_is_not_saved_as_dense_either(tmp_path):
    whole = tiny_model("llama")
    whole.model = sparsify(tiny_model("llama"), attn="entmax15").model
    with pytest.raises(ValueError, match="'model' in this LlamaForCausalLM is sparse by itself"):
        whole.save_pretrained(tmp_path)


def test_a_whole_that_cannot_be_sparse_says_to_save_its_part(tmp_path):
    sizes = {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "block_size": 8, "input_vocab_size": 23}
    layers = {"num_filters": 2, "hidden_size": 8, "codebook_size": 8, "codebook_dim": 8, "upsampling_ratios": [2]}
    codec = EncodecConfig(**layers, num_lstm_layers=1, target_bandwidths=[1.5]).to_dict()
    names = ("semantic_config", "coarse_acoustics_config", "fine_acoustics_config")
    whole = BarkModel(BarkConfig(**{name: {**sizes, "output_vocab_size": 23} for name in names}, codec_config=codec))
    sparsify(whole.semantic, attn="entmax15")
    with pytest.raises(ValueError, match=r"'semantic' in this BarkModel is sparse by itself, .*; save the part alone"):
        whole.save_pretrained(tmp_path / "whole")
    save_pretrained(whole.semantic, tmp_path / "part")
    whole.semantic = from_pretrained(tmp_path / "part")
    assert is_sparse(whole)
