"""Bad and damaged files."""

from __future__ import annotations

import json
import random
import shutil

import torch

import hf_sparse
from tests.bad_calls.calls import BadCall, World, bad_call, family, spelled, word
from tests.bad_calls.settings import tampered_block


@family(5)
def tampered_files(rng: random.Random, world: World) -> BadCall:
    folder = world.folder / f"tampered-{rng.randrange(10**9)}"
    shutil.copytree(world.saved, folder)
    config = json.loads((folder / "config.json").read_text())
    kind = rng.choice(("block", "block", "block", "block", "no block", "class", "layers", "json", "gone"))
    named: tuple[str, ...] = ()
    if kind == "block":
        config["hf_sparse"], named = tampered_block(rng, config["hf_sparse"])
        named = (*named, "sparse checkpoint") if config["hf_sparse"] is None else named
    elif kind == "no block":
        del config["hf_sparse"]
        named = ("not a sparse checkpoint", "hf_sparse")
    elif kind == "class":
        config["architectures"] = rng.choice(([word(rng)], [], None, ["LlamaConfig"], [3], "Llama"))
        named = ("class", *spelled(config["architectures"]))
    elif kind == "layers":
        config["hf_sparse"]["attn"] = {"decoder": [{"name": "entmax15"}] * rng.choice((1, 3, 7))}
        named = ("decoder",)
    text = json.dumps(config)
    if kind == "json":
        text, named = text[: len(text) // 2], ("config.json",)
    (folder / "config.json").write_text(text)
    if kind == "gone":
        (folder / "config.json").unlink()
        named = (str(folder),)
    shown = {key: config.get(key) for key in ("hf_sparse", "architectures")}
    return BadCall(f"from_pretrained of {kind}: {shown}", lambda: hf_sparse.from_pretrained(folder), named)


@family(2)
def loading(rng: random.Random, world: World) -> BadCall:
    name, value = rng.choice((
        ("path", str(world.folder / "nowhere")), ("path", None), ("path", 3), ("path", ""),
        ("auto_class", "AutoModelForCausalLM"), ("auto_class", 3), ("auto_class", torch.nn.Linear),
        ("attn_implementation", "eager"), ("attn_implementation", "sdpa"),
    ))  # fmt: skip
    return bad_call(hf_sparse.from_pretrained, {"path": world.saved}, name, value)


@family(2)
def saving(rng: random.Random, world: World) -> BadCall:
    name, value = rng.choice((
        ("path", None), ("path", 3), ("metrics", 3), ("metrics", [1]),
        ("metrics", {"support": "x"}), ("metrics", "x"), ("metrics", {3: 1.0}),
    ))  # fmt: skip
    good = {"model": world.sparse, "path": world.folder / f"saved-{rng.randrange(10**9)}"}
    return bad_call(hf_sparse.save_pretrained, good, name, value)
