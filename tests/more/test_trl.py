"""TRL's trainers on sparse models: the numbers they report and the gradients they take, against entmax's own."""

import copy
import math

import entmax
import pytest
import torch
from datasets import Dataset, load_from_disk
from peft import LoraConfig
from transformers import AutoModelForCausalLM
from trl import (
    DistillationConfig,
    DistillationTrainer,
    DPOConfig,
    DPOTrainer,
    GRPOConfig,
    GRPOTrainer,
    KTOConfig,
    KTOTrainer,
    RLOOConfig,
    RLOOTrainer,
    SFTConfig,
    SFTTrainer,
)
from trl.experimental.a2po import A2POConfig, A2POTrainer
from trl.experimental.cpo import CPOConfig, CPOTrainer
from trl.experimental.gkd import GKDConfig, GKDTrainer
from trl.experimental.online_dpo import OnlineDPOConfig, OnlineDPOTrainer
from trl.experimental.orpo import ORPOConfig, ORPOTrainer
from trl.experimental.sdft import SDFTConfig, SDFTTrainer
from trl.experimental.tpo import TPOConfig, TPOTrainer

import hf_sparse
from hf_sparse.hooks import PATCHES, install, uninstall
from tests.tiny_models import EOS, tiny_model
from tests.word_tokenizer import word_tokenizer

FLOOR = -1e4
SENTENCES = ["w5 w6 w7 w8 w9", "w10 w11 w12 w3 w4 w5 w6", "w13 w7"]
PROMPTS = Dataset.from_dict({"prompt": ["w5 w6", "w10 w11 w12", "w4", "w8 w9"]})
PAIRS = Dataset.from_dict(
    {"prompt": ["w5 w6", "w10 w11 w12"], "chosen": [" w7 w8", " w3"], "rejected": [" w9", " w4 w5 w6"]}
)


def sparse(name="llama", head="entmax15", seed=0, **settings):
    return hf_sparse.sparsify(tiny_model(name, seed=seed), attn="entmax15", head=head, **settings)


def log_probs(model, ids, temperature=1.0):
    """log p of each token of ids (B, L) given those before, by the entmax package; near the floor for zero."""
    dense_head = hf_sparse.sparsify(copy_without_head(model), attn="entmax15")
    z = dense_head(ids).logits[:, :-1].float()
    p = entmax.entmax15(z, dim=-1)
    log_p = torch.where(p > 0, p.clamp(min=1e-38).log(), FLOOR + z - z.amax(-1, keepdim=True))
    return (log_p / temperature).log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0], dense_head


def copy_without_head(model):
    dense = tiny_model("llama")
    dense.load_state_dict(model.state_dict())
    return dense


def arguments(config_class, path, **settings):
    common = {
        "use_cpu": True,
        "bf16": False,
        "report_to": [],
        "disable_tqdm": True,
        "max_steps": 1,
        "logging_steps": 1,
    }
    return config_class(str(path), per_device_train_batch_size=4, **common | settings)


def sft(model, path, **settings):
    text = Dataset.from_dict({"text": SENTENCES})
    return SFTTrainer(
        model,
        arguments(SFTConfig, path, eos_token="</s>", learning_rate=0.0, **settings),
        train_dataset=text,
        eval_dataset=text,
        processing_class=word_tokenizer(),
    )


def ids_of(sentence):
    return torch.tensor([[*word_tokenizer()(sentence).input_ids, EOS]])


def loss_by_hand(model, loss):
    """The mean over all tokens of SENTENCES, each sentence alone."""
    dense_head = hf_sparse.sparsify(copy_without_head(model), attn="entmax15")
    losses = [loss(dense_head(ids_of(s)).logits[0, :-1], ids_of(s)[0, 1:]) for s in SENTENCES]
    return float(torch.cat(losses).mean())


@pytest.mark.parametrize("fused_loss", [False, True])
def test_sft_trains_and_evaluates_with_the_loss_of_the_map(fused_loss, tmp_path):
    model = sparse(fused_loss=fused_loss)
    trainer = sft(model, tmp_path)
    expected = loss_by_hand(model, lambda z, y: entmax.entmax15_loss(z, y))
    assert trainer.evaluate()["eval_loss"] == pytest.approx(expected, rel=1e-5)
    trainer.train()
    assert trainer.state.log_history[-2]["loss"] == pytest.approx(expected, rel=1e-5)


def test_sft_takes_the_gradient_of_the_map_in_chunks_too(tmp_path, monkeypatch):
    def gradient(model, loss):
        loss.backward()
        return {name: p.grad.clone() for name, p in model.named_parameters()}

    inputs = {"input_ids": ids_of(SENTENCES[1]), "labels": ids_of(SENTENCES[1])}
    expected = gradient(model := sparse(), model(**inputs).loss)
    for fused_loss in (False, True):
        model = sparse(fused_loss=fused_loss)
        trainer = sft(model, tmp_path)
        monkeypatch.setattr("hf_sparse.model.label_scores.LOGITS_AT_A_TIME", 2 * 23)
        model.train()
        found = gradient(model, trainer.compute_loss(model, {**inputs, "attention_mask": torch.ones(1, 8)}))
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["gpt2", "gemma2", "qwen3"])
def test_sft_reads_heads_of_other_models(name, tmp_path):
    model = sparse(name, head="sparsemax")
    expected = [model(ids_of(s), labels=ids_of(s)).loss.detach() * (ids_of(s).shape[1] - 1) for s in SENTENCES]
    count = sum(ids_of(s).shape[1] - 1 for s in SENTENCES)
    assert sft(model, tmp_path).evaluate()["eval_loss"] == pytest.approx(float(sum(expected)) / count, rel=1e-5)


def test_the_card_says_how_to_load_the_model(tmp_path):
    trainer = sft(sparse(), tmp_path)
    trainer.save_model(str(tmp_path))
    trainer.create_model_card(model_name="mine")
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert card.count("## Sparse maps") == 1
    assert "hf_sparse.from_pretrained" in card


def test_sft_of_an_adapter_in_packed_rows(tmp_path):
    model = sparse()
    text = Dataset.from_dict({"text": SENTENCES})
    trainer = SFTTrainer(
        model,
        arguments(SFTConfig, tmp_path, eos_token="</s>", learning_rate=0.0, padding_free=False),
        train_dataset=text,
        processing_class=word_tokenizer(),
        peft_config=LoraConfig(target_modules=["q_proj"], task_type="CAUSAL_LM"),
    )
    trainer.train()
    expected = loss_by_hand(sparse(), lambda z, y: entmax.entmax15_loss(z, y))
    assert trainer.state.log_history[-2]["loss"] == pytest.approx(expected, rel=1e-5)


def test_dft_weighs_by_sparse_probabilities(tmp_path):
    """Its loss is -p log p, with p held fixed in the gradient: zero where p is zero."""

    def dft(z, y):
        p = entmax.entmax15(z, dim=-1).gather(-1, y[:, None])[:, 0]
        return -torch.special.xlogy(p, p)

    model = sparse()
    found = sft(model, tmp_path, loss_type="dft").evaluate()["eval_loss"]
    assert found == pytest.approx(loss_by_hand(model, dft), rel=1e-4)


def test_label_smoothing_of_sft_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"label_smoothing_factor=0\.1 is that of softmax and would smooth"):
        sft(sparse(), tmp_path, label_smoothing_factor=0.1).train()


def rewards(completions, **_):
    return [float(len(completion.split())) for completion in completions]


def policy_trainer(trainer_class, config_class, model, path, **settings):
    settings = {"num_generations": 4, "max_completion_length": 6, "learning_rate": 1e-3} | settings
    return trainer_class(
        model,
        reward_funcs=rewards,
        args=arguments(config_class, path, **settings),
        train_dataset=PROMPTS,
        processing_class=word_tokenizer(),
    )


class Recorded(GRPOTrainer):
    """Keeps what GRPO took for log-probabilities, with the ids it scored."""

    def _get_per_token_logps_and_entropies(self, model, input_ids, attention_mask, logits_to_keep, **options):
        found = super()._get_per_token_logps_and_entropies(model, input_ids, attention_mask, logits_to_keep, **options)
        vars(self).setdefault("calls", []).append((input_ids, attention_mask, logits_to_keep, found[0]))
        return found


BATCHED = {
    "use_transformers_continuous_batching": True,
    "transformers_continuous_batching_config": {"num_blocks": 16, "page_size": 16, "max_batch_tokens": 32},
}


@pytest.mark.parametrize("batching", [{}, BATCHED], ids=["generate", "continuous batching"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_grpo_has_ratio_one_at_its_first_step_and_scores_what_it_sampled(temperature, batching, tmp_path):
    torch.manual_seed(0)
    model = sparse()
    settings = {"num_iterations": 2, "temperature": temperature, **batching}
    trainer = policy_trainer(Recorded, GRPOConfig, model, tmp_path, **settings)
    trainer.train()
    (ids, mask, kept, old), (shuffled, _, _, new) = trainer.calls
    assert not old.requires_grad
    assert new.requires_grad
    scored = mask[:, -kept:].bool()
    now = torch.stack([new[(shuffled == row).all(-1).nonzero()[0, 0]] for row in ids])
    assert torch.equal((now - old).exp()[scored], torch.ones(int(scored.sum())))
    assert bool((old[scored] > -50).all()), "a sampled token has a probability"


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_grpo_takes_the_gradient_of_the_sparse_log_probability(temperature, tmp_path):
    model = sparse()
    trainer = policy_trainer(GRPOTrainer, GRPOConfig, model, tmp_path, temperature=temperature)
    prompt = torch.tensor([[5, 6, 7]])
    torch.manual_seed(0)
    ids = model.generate(prompt, do_sample=True, temperature=temperature, max_new_tokens=6, eos_token_id=None, top_k=0)
    score = trainer._get_per_token_logps_and_entropies
    found, entropy, _ = score(model, ids, torch.ones_like(ids), 6, compute_entropy=True)
    expected, reference = log_probs(model, ids, temperature)
    torch.testing.assert_close(found, expected[:, -6:], atol=1e-4, rtol=1e-4)
    assert bool(((entropy >= 0) & (entropy < math.log(23))).all())
    model.zero_grad()
    found.sum().backward()
    expected[:, -6:].sum().backward()
    gradients = dict(reference.named_parameters())
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[name].grad, atol=1e-3, rtol=1e-3)


def test_grpo_and_rloo_hold_to_a_reference_that_is_as_sparse(tmp_path):
    sparse().save_pretrained(tmp_path / "model")
    word_tokenizer().save_pretrained(tmp_path / "model")
    for classes in ((GRPOTrainer, GRPOConfig), (RLOOTrainer, RLOOConfig)):
        trainer = policy_trainer(*classes, str(tmp_path / "model"), tmp_path / "run", beta=0.1)
        trainer.train()
        assert trainer.state.log_history[0]["kl"] == pytest.approx(0, abs=1e-6)


def dpo(model, path, **settings):
    settings = {"learning_rate": 0.0, "disable_dropout": False} | settings
    options = {name: settings.pop(name) for name in ("ref_model",) if name in settings}
    return DPOTrainer(
        model,
        args=arguments(DPOConfig, path, **settings),
        train_dataset=PAIRS,
        eval_dataset=PAIRS,
        processing_class=word_tokenizer(),
        **options,
    )


def test_dpo_of_two_sparse_models_with_a_floor_for_impossible_tokens(tmp_path):
    policy, reference = sparse(seed=0), sparse(seed=3)
    metrics = dpo(policy, tmp_path, ref_model=reference).evaluate()
    losses, impossible = [], 0
    for row in PAIRS:
        score = {}
        for answer in ("chosen", "rejected"):
            start = len(word_tokenizer()(row["prompt"]).input_ids) - 1
            ids = ids_of(row["prompt"] + row[answer])
            of_policy, of_reference = (log_probs(each, ids)[0][:, start:] for each in (policy, reference))
            impossible += int((of_policy <= FLOOR).sum())
            score[answer] = float((of_policy - of_reference).sum().detach())
        losses.append(-torch.nn.functional.logsigmoid(torch.tensor(0.1 * (score["chosen"] - score["rejected"]))))
    assert impossible > 0
    assert metrics["eval_loss"] == pytest.approx(float(torch.stack(losses).mean()), rel=1e-3)


def test_dpo_begins_at_log_two_with_the_reference_of_its_folder(tmp_path):
    sparse().save_pretrained(tmp_path / "model")
    word_tokenizer().save_pretrained(tmp_path / "model")
    trainer = dpo(str(tmp_path / "model"), tmp_path / "run")
    assert hf_sparse.is_sparse(trainer.ref_model)
    trainer.train()
    assert trainer.state.log_history[0]["loss"] == pytest.approx(math.log(2), rel=1e-6)


def test_dpo_raises_what_is_chosen_and_was_impossible(tmp_path):
    """The floor has a gradient: it lifts the score of the token against the largest of its row."""
    model = sparse()
    ids = ids_of("w5 w6 w7 w8")
    before = log_probs(model, ids)[0]
    assert bool((before[:, 1:] <= FLOOR).any())
    trainer = dpo(model, tmp_path, ref_model=copy.deepcopy(model), learning_rate=1e-2, max_steps=40)
    trainer.train()
    after = log_probs(model, ids)[0]
    assert float(after[:, 1:].sum().detach()) > float(before[:, 1:].sum().detach()) + 5000


def test_a_model_that_teaches_itself_has_the_maps_of_its_folder(tmp_path):
    def trainer(model):
        settings = {"distillation_mode": "full_logits", "num_generations": 1, "max_completion_length": 4}
        rows = Dataset.from_dict({"prompt": ["w5 w6", "w7 w9"], "privileged_context": ["w8 w10", "w11"]})
        args = arguments(SDFTConfig, tmp_path / "run", **settings)
        return SDFTTrainer(model, args=args, train_dataset=rows, processing_class=word_tokenizer())

    for folder, model in (("dense", tiny_model("llama")), ("sparse", sparse())):
        model.save_pretrained(tmp_path / folder)
        word_tokenizer().save_pretrained(tmp_path / folder)
    with pytest.raises(ValueError, match="the reference model is dense, and this LlamaForCausalLM has"):
        trainer(hf_sparse.sparsify(AutoModelForCausalLM.from_pretrained(tmp_path / "dense"), head="entmax15")).train()
    trainer(hf_sparse.from_pretrained(tmp_path / "sparse")).train()


def test_a_reference_under_other_maps_is_refused(tmp_path):
    tiny_model("llama").save_pretrained(tmp_path / "dense")
    word_tokenizer().save_pretrained(tmp_path / "dense")
    model = hf_sparse.sparsify(type(tiny_model("llama")).from_pretrained(tmp_path / "dense"), head="entmax15")
    with pytest.raises(ValueError, match="the reference model is dense, and this LlamaForCausalLM has"):
        dpo(model, tmp_path / "run").train()
    with pytest.raises(ValueError, match=r"the reference model has .*sparsemax.*save the sparse model"):
        dpo(model, tmp_path / "run", ref_model=hf_sparse.sparsify(tiny_model("llama"), head="sparsemax")).evaluate()


KTO_ROWS = {"prompt": ["w5 w6", "w10 w11"] * 2, "completion": [" w7", " w8"] * 2, "label": [True, False] * 2}


@pytest.mark.parametrize(
    ("trainer_class", "config_class", "rows"),
    [(DPOTrainer, DPOConfig, PAIRS), (KTOTrainer, KTOConfig, Dataset.from_dict(KTO_ROWS))],
    ids=["dpo", "kto"],
)
def test_a_reference_that_is_kept_on_disk_is_not_that_of_other_maps(trainer_class, config_class, rows, tmp_path):
    """The name of its file is made from the rows and the weights, which the dense model and the sparse ones share."""
    rows.save_to_disk(tmp_path / "rows")

    def reward(model):
        trainer = trainer_class(
            model,
            args=arguments(
                config_class, tmp_path / "run", precompute_ref_log_probs=True, max_length=None, learning_rate=0.0
            ),
            train_dataset=load_from_disk(tmp_path / "rows"),
            processing_class=word_tokenizer(),
        )
        trainer.train()
        return trainer.state.log_history[0]["rewards/chosen"]

    for model in (tiny_model("llama"), sparse(), sparse(head="sparsemax")):
        assert reward(model) == pytest.approx(0, abs=1e-4)
        files = len(list((tmp_path / "rows").glob("cache-*")))
    reward(model)
    assert len(list((tmp_path / "rows").glob("cache-*"))) == files  # it is kept


def test_kto_scores_sparse_log_probabilities(tmp_path):
    sparse().save_pretrained(tmp_path / "model")
    word_tokenizer().save_pretrained(tmp_path / "model")
    trainer = KTOTrainer(
        str(tmp_path / "model"),
        args=arguments(KTOConfig, tmp_path / "run", learning_rate=0.0),
        train_dataset=Dataset.from_dict(KTO_ROWS),
        processing_class=word_tokenizer(),
    )
    trainer.train()
    assert trainer.state.log_history[0]["loss"] == pytest.approx(0.5, rel=1e-4)


@pytest.mark.parametrize(
    ("trainer_class", "config_class", "combine"),
    [(CPOTrainer, CPOConfig, torch.sum), (ORPOTrainer, ORPOConfig, torch.mean)],
    ids=["cpo", "orpo"],
)
def test_trainers_without_a_reference_score_sparse_log_probabilities(trainer_class, config_class, combine, tmp_path):
    model = sparse()
    trainer = trainer_class(
        model,
        args=arguments(config_class, tmp_path, max_length=32, remove_unused_columns=False),
        train_dataset=PAIRS,
        processing_class=word_tokenizer(),
    )
    batch = next(iter(trainer.get_train_dataloader()))
    impossible = 0
    for name, found in zip(("chosen", "rejected"), trainer.concatenated_forward(model, batch)):
        columns = (batch[f"{name}_{column}"] for column in ("input_ids", "labels", "attention_mask"))
        for ids, labels, mask, value in zip(*columns, found, strict=True):
            given = mask.bool()
            scored = log_probs(model, ids[given][None])[0][0][labels[given][1:] != -100]
            torch.testing.assert_close(value, combine(scored), atol=1e-2, rtol=1e-5)
            impossible += int((scored < FLOOR / 2).sum())
    assert impossible > 0


def distilled(student, teacher, path):
    return DistillationTrainer(
        student,
        teacher,
        args=arguments(DistillationConfig, path, learning_rate=0.0, max_completion_length=4),
        train_dataset=PROMPTS,
        processing_class=word_tokenizer(),
    )


def test_distillation_into_sparse_attention_runs_and_into_a_sparse_head_is_refused(tmp_path):
    student = hf_sparse.sparsify(tiny_model("llama"), attn="entmax15")
    trainer = distilled(student, copy.deepcopy(student), tmp_path)
    trainer.train()
    assert trainer.state.log_history[0]["loss"] == pytest.approx(0, abs=1e-6)
    trainer = distilled(hf_sparse.sparsify(tiny_model("llama"), attn="entmax15"), tiny_model("llama"), tmp_path)
    trainer.train()
    assert trainer.state.log_history[0]["loss"] > 1e-4
    with pytest.raises(ValueError, match="DistillationTrainer use SparseTrainer with distillation_weight"):
        distilled(sparse(), tiny_model("llama"), tmp_path).train()


def rewarded(trainer_class, config_class, **settings):
    def make(model, path):
        return trainer_class(
            model,
            reward_funcs=lambda completions, **_: [float(len(each)) for each in completions],
            args=arguments(config_class, path, **settings),
            train_dataset=PROMPTS,
            processing_class=word_tokenizer(),
        )

    return make


def with_references(model, path):
    rows = Dataset.from_dict({**PAIRS.to_dict(), "reference": [" w7 w9", " w5"]})
    options = arguments(TPOConfig, path, max_length=32)
    return TPOTrainer(model, args=options, train_dataset=rows, processing_class=word_tokenizer())


@pytest.mark.parametrize(
    "make",
    [
        with_references,
        rewarded(OnlineDPOTrainer, OnlineDPOConfig, max_new_tokens=4, max_length=16),
        rewarded(A2POTrainer, A2POConfig, max_completion_length=4),
    ],
    ids=["tpo", "online dpo", "a2po"],
)
def test_trainers_that_read_logits_read_sparse_log_probabilities(make, tmp_path):
    model, read = sparse(), []

    def look(_, given, options, output):
        if torch.is_grad_enabled():
            ids = options["input_ids"] if "input_ids" in options else given[0]
            read.append((ids.detach(), options["attention_mask"], output.logits.detach()))

    model.register_forward_hook(look, with_kwargs=True)
    trainer = make(model, tmp_path)
    before = copy.deepcopy(model.state_dict())
    trainer.train()
    assert math.isfinite(trainer.state.log_history[0]["loss"])
    model.load_state_dict(before)
    for ids, mask, logits in read:
        longest = mask.sum(-1).argmax()  # A2PO pads between prompt and answer where the tokenizer pads on the right
        given = mask[longest].bool()
        tokens = ids[longest, given][None]
        z = logits[longest, given[-logits.shape[1] :]][:-1]  # of the last positions, where a trainer asks for no more
        found = z.log_softmax(-1).gather(-1, tokens[0, -len(z) :, None])[:, 0]
        torch.testing.assert_close(found, log_probs(model, tokens)[0][0, -len(z) :], atol=1e-2, rtol=1e-5)
    assert read


def test_gkd_measures_the_sparse_distribution_against_the_teachers(tmp_path):
    student, teacher, tokenizer = sparse(), tiny_model("llama", seed=1).eval(), word_tokenizer()
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] + ' ' }}{% endfor %}"
    said = [{"role": "user", "content": "w5 w6"}, {"role": "assistant", "content": "w7 w8 w9"}]
    trainer = GKDTrainer(
        student,
        teacher_model=teacher,
        args=arguments(GKDConfig, tmp_path, lmbda=0.0, temperature=1.0, beta=0.5, learning_rate=0.0),
        train_dataset=Dataset.from_dict({"messages": [said]}),
        processing_class=tokenizer,
    )
    batch = next(iter(trainer.get_train_dataloader()))
    trainer.train()
    ids, answered = batch["input_ids"], batch["labels"][0, 1:] != -100
    with torch.no_grad():
        z = hf_sparse.sparsify(copy_without_head(student), attn="entmax15")(ids).logits[0, :-1][answered]
        p, q = entmax.entmax15(z, dim=-1), teacher(ids).logits[0, :-1][answered].softmax(-1)
    middle = (p + q) / 2
    divergence = (torch.xlogy(p, p) + torch.xlogy(q, q) - 2 * torch.xlogy(middle, middle)).sum(-1) / 2
    assert (p == 0).any()
    assert trainer.state.log_history[0]["loss"] == pytest.approx(float(divergence.mean()), rel=1e-4)


def test_the_change_to_trl_is_in_the_table_and_undone(tmp_path):
    uninstall()
    try:
        plain = SFTTrainer.compute_loss
    finally:
        install()
    sft(sparse(), tmp_path)
    assert SFTTrainer.compute_loss is not plain
    assert any(patch.owner.endswith(":SFTTrainer") for patch in PATCHES)
    uninstall()
    try:
        assert SFTTrainer.compute_loss is plain
    finally:
        install()
