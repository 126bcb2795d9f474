"""Models of several parts: settings are saved with the whole and with each part, which may be loaded alone."""

import copy
import subprocess
import sys

import pytest
import torch
from transformers import (
    BertConfig,
    BertLMHeadModel,
    BertModel,
    Blip2VisionModelWithProjection,
    CLIPConfig,
    CLIPForImageClassification,
    CLIPModel,
    CLIPTextModelWithProjection,
    CLIPVisionModel,
    CLIPVisionModelWithProjection,
    EncoderDecoderModel,
    T5EncoderModel,
)

from hf_sparse import from_pretrained, sparse_config, sparsify, unsparsify
from hf_sparse.attention import attention_sites
from hf_sparse.losses import fenchel_young_loss
from hf_sparse.model.seal import SENTENCE
from tests.sweep.architectures import build
from tests.sweep.inputs import inputs_for
from tests.tiny_models import BOS, DECODER, EOS, PAD, attentions, spread, tiny_model, tokens

LAYERS = {"encoder": ["entmax15", None, "sparsemax", {"name": "entmax", "alpha": 1.2}]}


def clip():
    part = {**DECODER, "eos_token_id": EOS, "projection_dim": 16}
    torch.manual_seed(0)
    config = CLIPConfig(
        text_config={**part, "vocab_size": 23},
        vision_config={**part, "image_size": 8, "patch_size": 4},
        projection_dim=16,
    )
    return spread(CLIPModel(config).eval())


def maps(model):
    return [site.map_config and site.map_config.name for _, site in attention_sites(model)]


@pytest.mark.parametrize(
    ("cls", "expected"),
    [
        (CLIPModel, ["entmax15", None, "sparsemax", "entmax"]),
        (CLIPTextModelWithProjection, ["entmax15", None]),
        (CLIPVisionModelWithProjection, ["sparsemax", "entmax"]),
        (CLIPVisionModel, ["sparsemax", "entmax"]),
    ],
)
def test_a_part_loaded_from_a_sparse_whole_has_its_own_layers_maps(cls, expected, tmp_path):
    sparsify(clip(), attn=LAYERS).save_pretrained(tmp_path)
    assert maps(cls.from_pretrained(tmp_path)) == expected


def test_a_part_that_is_saved_alone_stays_sparse(tmp_path):
    sparsify(clip(), attn=LAYERS).vision_model.save_pretrained(tmp_path)
    assert maps(CLIPVisionModel.from_pretrained(tmp_path)) == ["sparsemax", "entmax"]


@pytest.mark.parametrize("saved", ["part", "whole"])
@pytest.mark.parametrize(
    ("kind", "cls", "path"),
    [
        ("prophetnet", "ProphetNetForConditionalGeneration", "prophetnet.encoder"),
        ("pegasus_x", "PegasusXForConditionalGeneration", "model.decoder"),
    ],
)
def test_attention_of_a_part_alone_is_of_the_kind_it_has_in_the_whole(kind, cls, path, saved, tmp_path):
    model = sparsify(build(kind, cls), attn={"encoder": "entmax15", "decoder": "sparsemax"})
    part = model.get_submodule(path)
    (part if saved == "part" else model).save_pretrained(tmp_path)
    assert maps(part._dense_class.from_pretrained(tmp_path)) == maps(part)


@pytest.fixture
def captioner():
    """BLIP, whose text decoder is a BERT: its path inside says encoder, its attention does not say."""
    model = build("blip", "BlipForConditionalGeneration")
    return sparsify(model, attn={"decoder": "entmax15"}, example=inputs_for("blip", model))


@pytest.mark.parametrize("saved", ["part", "whole"])
def test_a_decoder_that_says_so_in_its_configuration_alone_has_the_maps_of_a_decoder(saved, captioner, tmp_path):
    part = captioner.text_decoder
    (part if saved == "part" else captioner).save_pretrained(tmp_path)
    assert maps(part._dense_class.from_pretrained(tmp_path)) == maps(part)


@pytest.mark.parametrize("saved", ["part", "whole"])
def test_a_part_that_would_be_dense_alone_because_its_kind_is_another_is_refused(saved, captioner, tmp_path):
    part = captioner.text_decoder.bert
    (part if saved == "part" else captioner).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"BlipTextModel has no decoder attention; it has: .* load the whole"):
        part._dense_class.from_pretrained(tmp_path)


def test_a_whole_that_is_saved_after_such_a_part_of_it_comes_back(captioner, tmp_path):
    captioner.text_decoder.bert.save_pretrained(tmp_path / "part")
    captioner.save_pretrained(tmp_path / "whole")
    assert maps(from_pretrained(tmp_path / "whole")) == maps(captioner)


def test_another_class_of_the_whole_without_its_sparse_attention_is_dense_as_there(tmp_path):
    model = build("blip-2", "Blip2ForConditionalGeneration")
    sparsify(model, attn={"decoder": "entmax15"}, example=inputs_for("blip-2", model)).save_pretrained(tmp_path)
    assert not any(maps(Blip2VisionModelWithProjection.from_pretrained(tmp_path)))


def test_a_part_whose_layers_are_not_told_from_the_others_is_refused(tmp_path):
    sparsify(clip(), attn=LAYERS).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"attn\['encoder'\] lists 4 layers, CLIPForImageClassification has 2"):
        CLIPForImageClassification.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("kind", "cls"),
    [
        ("kyutai_speech_to_text", "KyutaiSpeechToTextForConditionalGeneration"),
        ("diffusion_gemma", "DiffusionGemmaForBlockDiffusion"),
    ],
)
def test_layers_of_one_kind_in_two_parts_that_read_one_configuration_come_back(kind, cls, tmp_path):
    model = build(kind, cls)
    listed = [{"name": "entmax", "alpha": 1.1 + layer / 10} for layer in range(6)]
    sparsify(model, attn={"decoder": listed}, example=inputs_for(kind, model)).save_pretrained(tmp_path / "whole")
    back = from_pretrained(tmp_path / "whole", auto_class=model._dense_class)
    assert sparse_config(back) == sparse_config(model)
    part = next(part for part in back.modules() if type(part).__name__ in back.config.hf_sparse_parts)
    alone = part._dense_class.from_pretrained(tmp_path / "whole")
    assert maps(alone) == maps(part)
    assert sparse_config(alone) == sparse_config(part)
    alone.save_pretrained(tmp_path / "part")
    assert sparse_config(part._dense_class.from_pretrained(tmp_path / "part")) == sparse_config(part)
    assert not [name for name in vars(unsparsify(back).config) if name.startswith("hf_sparse")]


def test_without_the_package_a_part_refuses_to_load(tmp_path):
    sparsify(clip(), attn="entmax15").save_pretrained(tmp_path)
    program = f"from transformers import CLIPVisionModel; CLIPVisionModel.from_pretrained({str(tmp_path)!r})"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert SENTENCE in run.stderr


def test_marks_on_parts_go_when_the_whole_is_dense_again():
    model = clip()
    before = model.config.to_dict()
    assert sparsify(model, attn="entmax15").config.vision_config.hf_sparse
    unsparsify(model)
    assert model.config.to_dict() == before


def bert_decoder(**settings):
    config = BertConfig(vocab_size=23, is_decoder=True, add_cross_attention=True, **DECODER, **settings)
    return BertLMHeadModel(config).eval()


@pytest.mark.filterwarnings("ignore:Version v4.12.0:FutureWarning")
def test_a_whole_around_a_sparse_part_is_refused_rather_than_dense():
    decoder = bert_decoder()
    encoder = BertModel(BertConfig(vocab_size=23, **DECODER))
    sparsify(decoder, head="entmax15")
    with pytest.raises(ValueError, match=r"a part of this EncoderDecoderModel \(bert\) is sparse by itself"):
        EncoderDecoderModel(encoder=encoder, decoder=decoder)
    unsparsify(decoder)
    model = sparsify(EncoderDecoderModel(encoder=encoder, decoder=decoder).eval(), attn="entmax15", head="entmax15")
    model.config.decoder_start_token_id, model.config.pad_token_id = BOS, PAD
    labels = tokens(seed=2)
    output = model(input_ids=tokens(), labels=labels)
    expected = fenchel_young_loss(output.logits.flatten(0, 1), labels.flatten(), "entmax15")
    torch.testing.assert_close(output.loss, expected)


@pytest.mark.parametrize("attn", ["eager", "sdpa"])
@torch.no_grad()
def test_a_whole_put_together_from_ready_made_parts_is_reached_and_undone(attn):
    encoder = spread(BertModel(BertConfig(vocab_size=23, attn_implementation=attn, **DECODER)).eval())
    decoder = spread(bert_decoder(attn_implementation=attn))
    model = EncoderDecoderModel(encoder=encoder, decoder=decoder)
    inputs = {"input_ids": tokens(), "decoder_input_ids": tokens(seed=2)}
    before = model(**inputs).logits
    sparsify(model, attn="sparsemax")
    assert all((weights == 0).any() for weights in attentions(model, **inputs))
    assert torch.equal(unsparsify(model)(**inputs).logits, before)


def test_an_encoder_that_was_loaded_alone_keeps_the_layers_of_the_whole_when_it_is_saved(tmp_path):
    both = ["entmax15", "sparsemax"]
    sparsify(tiny_model("t5"), attn={"encoder": both, "decoder": both}).save_pretrained(tmp_path / "whole")
    encoder = T5EncoderModel.from_pretrained(tmp_path / "whole")
    encoder.save_pretrained(tmp_path / "encoder")
    again = T5EncoderModel.from_pretrained(tmp_path / "encoder")
    assert sparse_config(again) == sparse_config(encoder)


def exchanged(config):
    return tiny_model("llama").config


def edited(config):
    config.hf_sparse["head"]["alpha"] = 1.2
    return config


@pytest.mark.parametrize(("exchange", "named"), [(exchanged, "no maps"), (edited, r"\{'version'.*1.2.*")])
@pytest.mark.parametrize("attn", [None, "entmax15"])
def test_a_model_whose_configuration_names_other_maps_is_not_saved(attn, exchange, named, tmp_path):
    model = sparsify(tiny_model("llama"), attn=attn, head={"name": "entmax", "alpha": 1.5})
    own = model.config
    model.config = exchange(copy.deepcopy(own))
    with pytest.raises(ValueError, match=f"this LlamaForCausalLM was exchanged .*: it names {named}, and the"):
        model.save_pretrained(tmp_path)
    assert not list(tmp_path.iterdir())
    model.config = own
    model.config.update({"use_cache": False})
    model.save_pretrained(tmp_path)
    assert sparse_config(from_pretrained(tmp_path)) == sparse_config(model)
