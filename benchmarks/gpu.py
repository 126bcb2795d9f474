"""``python -m benchmarks.gpu [--smoke] [--sections NAME ...] [--out FILE]``: the Triton kernels beside softmax's.

Correctness comes first, in bfloat16 against float64; then times and peak memory, each as a ratio to its baseline in
the same run; last, which targets were met. A candidate that is not installed or fails costs its own row only, and says
why. Every section ends by its deadline, the last one before twelve minutes: what it has not measured then is
skipped, by name. The sections run in a process of their own: one that hangs, or whose GPU no longer answers, is ended,
and the others go on in a new one. The JSON is written after every row.
``--smoke`` runs everything in Triton's interpreter, on the CPU, at sizes that say nothing: to see that it runs.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import triton
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask
from transformers import ContinuousBatchingConfig, GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedModel
from triton.testing import do_bench

from hf_sparse import sparsify
from hf_sparse.attention import flex_entmax_attention
from hf_sparse.functional import entmax15
from hf_sparse.kernels import triton_attention, triton_decode_scores, triton_decode_values
from hf_sparse.kernels.gpu.scores import Scores
from hf_sparse.losses import (
    alpha_relu_loss,
    entmax15_loss,
    linear_alpha_relu_loss,
    linear_entmax_loss,
    sparsemax_loss,
)

from ._machine import machine
from ._targets import verdicts

SMOKE = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE, DTYPE = ("cpu", torch.float32) if SMOKE else ("cuda", torch.bfloat16)
GRACE = 10  # seconds after its section's deadline at which what still runs is stopped, and after as many more killed
# Relative to the size of the whole result: what rounding weights and results to the dtype costs, with room.
TOLERANCE = {torch.bfloat16: 2e-2, torch.float32: 1e-4}
FAILURES = (
    ImportError, RuntimeError, ValueError, TypeError, AttributeError, LookupError, AssertionError, OSError,
    subprocess.SubprocessError, triton.TritonError,
)  # fmt: skip
OUT = Path(__file__).parent / "results" / "gpu.json"


class Report:
    """The rows of one run: each is measured, or tells why not. Written after every row, in case the next one hangs.

    Args:
        out: where they are written.
        start: of the run, seconds since the epoch.
        rows: of a process before this one.
    """

    def __init__(self, out: Path, start: float, rows: list[dict[str, Any]]) -> None:
        self.out, self.start, self.rows = out, start, rows
        self.running, self.deadline = "", float("inf")
        gpu = "none: interpreted, times mean nothing" if SMOKE else torch.cuda.get_device_name()
        self.machine = machine() | {"triton": triton.__version__, "gpu": gpu}

    def add(self, section: str, case: str, candidate: str, measured: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        row: dict[str, Any] = {"section": section, "case": case, "candidate": candidate}
        left = self.deadline - (time.time() - self.start)
        if left <= 0:
            row["skipped"] = f"{self.deadline} s were over"
        else:
            signal.setitimer(signal.ITIMER_REAL, left + GRACE)
            try:
                row |= measured()
            except ModuleNotFoundError as error:
                row["missing"] = f"{error.name} is not installed"
            except FAILURES as error:
                row["failed"] = described(error)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        self.rows.append(row)
        self.write()
        print(
            " ".join(f"{value:.4g}" if isinstance(value, float) else str(value) for value in row.values()), flush=True
        )
        if "failed" in row and not answers():
            sys.exit("the GPU no longer answers this process")
        return row

    def write(self) -> None:
        found = {"machine": self.machine, "running": self.running, "rows": self.rows}
        new = self.out.with_suffix(".new")
        new.write_text(json.dumps(found, indent=1) + "\n")
        new.replace(self.out)

    def run(self, section: Callable[[Report], None]) -> None:
        """A section; what fails between its rows ends it alone."""
        self.running, self.deadline = section.__name__, SECTIONS[section]
        self.write()
        try:
            section(self)
        except FAILURES as error:
            self.add(section.__name__, "inputs", "all that follow", lambda error=error: {"failed": described(error)})

    def compare(
        self,
        section: str,
        case: str,
        runs: dict[str, Callable[[], Any]],
        clock: Callable[[Callable[[], Any]], dict[str, float]] | None = None,
        **about: float,
    ) -> None:
        """Time the runs; ratios are to the first that works, and every row says what the case is about."""
        baseline: dict[str, Any] = {}
        for name, run in runs.items():
            row = self.add(section, case, name, lambda run=run: (clock or timed)(run) | about)
            if "ms" in row and baseline:
                row |= {"ratio": row["ms"] / baseline["ms"], "baseline": baseline["candidate"]}
                self.write()
                print(f"    {row['ratio']:.2f} of {row['baseline']}", flush=True)
            elif "ms" in row:
                baseline = row


def answers() -> bool:
    """Whether the GPU still works for this process: after a bad access it never does again."""
    try:
        if not SMOKE:
            torch.cuda.synchronize()
    except RuntimeError:
        return False
    return True


def described(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]


def timed(run: Callable[[], Any]) -> dict[str, float]:
    """Milliseconds of a call, the median of many, and the most memory it held beyond what was there."""
    if SMOKE:
        start = time.perf_counter()
        run()
        return {"ms": 1e3 * (time.perf_counter() - start)}
    run()
    torch.cuda.synchronize()
    held = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run()
    peak = torch.cuda.max_memory_allocated() - held
    return {"ms": do_bench(run, warmup=20, rep=80, return_mode="median"), "peak_mb": peak / 2**20}


def replayed(run: Callable[[], Any]) -> dict[str, float]:
    """Milliseconds of a call as one CUDA graph: what the GPU takes, without the host, which launches the kernels."""
    if SMOKE:
        return timed(run)
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        run()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return {"ms": do_bench(graph.replay, warmup=20, rep=80, return_mode="median")}


def once(run: Callable[[], Any]) -> dict[str, float]:
    """Milliseconds of the second call, for what is long and compiles in its first."""
    run()
    start = time.perf_counter()
    run()
    return {"ms": 1e3 * (time.perf_counter() - start)}


def stop(signum: int, frame: Any) -> None:
    raise TimeoutError("its section's time was over")


def error(actual: Tensor, expected: Tensor) -> float:
    return float(((actual.double() - expected).norm() / expected.norm()).detach())


def with_gradients(function: Callable[..., Tensor], *leaves: Tensor) -> Callable[[], tuple[Tensor, ...]]:
    """A call of ``function`` and of its backward."""
    leaves = tuple(leaf.detach().requires_grad_() for leaf in leaves)
    upstream: list[Tensor] = []  # made by the first call, which is not timed

    def run() -> tuple[Tensor, ...]:
        out = function(*leaves)
        if not upstream:
            upstream.append(torch.linspace(-1, 1, out.numel(), device=out.device).view(out.shape).to(out.dtype))
        return (out, *torch.autograd.grad(out, leaves, upstream[0]))

    return run


# ---- Attention ------------------------------------------------------------------------------------------------


def local_inputs(
    length: int, heads: int, key_heads: int, dim: int, width: float | None, batch: int = 1
) -> list[Tensor]:
    """q, k and v whose scores fall off with distance like ``8 exp(-d^2 / 2 width^2)``; nearly equal for no width."""
    generator = torch.Generator(DEVICE).manual_seed(length)

    def noise(h: int) -> Tensor:
        return torch.randn(batch, h, length, dim, generator=generator, device=DEVICE)

    if width is None:
        return [
            (x * size).to(DTYPE) for x, size in ((noise(heads), 0.1), (noise(key_heads), 1), (noise(key_heads), 1))
        ]
    # The normal density's Fourier transform, at the quantiles of the normal distribution.
    quantiles = (torch.arange(dim // 2, device=DEVICE) + 0.5) / (dim // 2)
    angle = torch.arange(length, device=DEVICE)[:, None] * (torch.special.ndtri(quantiles) / width)
    feature = torch.cat([angle.cos(), angle.sin()], 1) * (8 * dim**0.5 / (dim // 2)) ** 0.5
    q, k = (feature + 0.05 * noise(h) for h in (heads, key_heads))
    return [x.to(DTYPE) for x in (q, k, noise(key_heads))]


def flash(q: Tensor, k: Tensor, v: Tensor, causal: bool = True) -> Tensor:
    return triton_attention(q, k, v, 1.5, 2.0, scaling=q.shape[-1] ** -0.5, causal=causal)


def written_down(q: Tensor, k: Tensor, v: Tensor, causal: bool = True) -> Tensor:
    groups = q.shape[1] // k.shape[1]
    z = q @ k.repeat_interleave(groups, 1).mT * q.shape[-1] ** -0.5
    if causal:
        z = z.masked_fill(torch.ones(z.shape[2:], dtype=torch.bool, device=z.device).triu(1), -torch.inf)
    return entmax15(z, impl="torch") @ v.repeat_interleave(groups, 1)


def softmax_attention(backend: SDPBackend) -> Callable[..., Tensor]:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(SDPBackend.MATH if SMOKE else backend):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])

    return attend


def adasplash(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return importlib.import_module("adasplash").adasplash_v2(q.contiguous(), k.contiguous(), v.contiguous())


def flex(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    blocks = create_block_mask(lambda b, h, i, j: j <= i, None, None, q.shape[2], k.shape[2], device=DEVICE)
    return flex_entmax_attention(q, k, v, 1.5, block_mask=blocks)


def one_query(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return triton_decode_values(entmax15(triton_decode_scores(q, k, q.shape[-1] ** -0.5), impl="triton"), v)


def live_share(q: Tensor, k: Tensor, v: Tensor) -> float:
    """The share of visible tiles that hold support."""
    attention = importlib.import_module("hf_sparse.kernels.gpu.attention")
    alpha = torch.full((q.shape[1],), 1.5, device=q.device)
    scores = Scores(alpha, 2, q.shape[-1] ** -0.5, causal=True)
    live = attention.attention_forward(q, k, v, scores)[2]
    tiles = attention.tiles_for(q.shape[-1], v.shape[-1], q.dtype)
    queries, keys = (torch.arange(n, device=q.device) for n in live.shape[2:])
    visible = keys[None, :] * tiles.keys < (queries[:, None] + 1) * tiles.queries
    return float(live.double().mean((0, 1)).sum() / visible.sum())


# ---- Sections -------------------------------------------------------------------------------------------------


def check(report: Report) -> None:
    """Every kernel against float64, on inputs of this run."""
    length = 40 if SMOKE else 1000
    for width, key_heads, causal in ((None, 1, True), (length / 8, 2, True), (length / 8, 1, False)):
        q, k, v = local_inputs(length, 2, key_heads, 16 if SMOKE else 128, width)
        ours = with_gradients(lambda *x, causal=causal: flash(*x, causal), q, k, v)
        true = with_gradients(lambda *x, causal=causal: written_down(*x, causal), *(x.double() for x in (q, k, v)))
        case = f"T = {length}, {'flat' if width is None else 'local'}, {key_heads} of 2 heads, causal {causal}"
        report.add("check", case, "flash entmax15", lambda ours=ours, true=true: checked(ours(), true()))
    q, k, v = local_inputs(length, 2, 1, 16 if SMOKE else 128, length / 8)
    exact = written_down(q[:, :, -1:].double(), k.double(), v.double(), causal=False)
    report.add(
        "check", f"decode, T = {length}", "entmax15", lambda: checked((one_query(q[:, :, -1:], k, v),), (exact,))
    )
    z = torch.randn(4, 300 if SMOKE else 131_072, device=DEVICE, generator=torch.Generator(DEVICE).manual_seed(0)) * 3
    y = torch.arange(4, device=DEVICE)
    for name, loss in LOSSES.items():
        ours = with_gradients(lambda z, loss=loss: loss(z, y, impl="triton"), z.to(DTYPE))
        true = with_gradients(lambda z, loss=loss: loss(z, y, impl="torch"), z.to(DTYPE).double())
        report.add("check", f"rows, V = {z.shape[1]}", name, lambda ours=ours, true=true: checked(ours(), true()))
    report.add("check", "rows, N V > 2^31: the last of them", "entmax15 loss", check_last_rows)
    # Supports of trained-like logits are listed; those of a hundredth of them are too long.
    hidden, weight, y = trained_like(*((8, 300, 16) if SMOKE else (256, 32_768, 512)))
    for size, kind in ((1.0, "short"), (0.01, "long")):
        for name, loss in FUSED.items():
            exact = [x.double() for x in (hidden * size, weight)]
            ours = with_gradients(partial(loss, y=y, impl="triton"), hidden * size, weight)
            true = with_gradients(two_steps(LOSSES[name.removeprefix("linear ")], y), *exact)
            case = f"fused linear loss, {len(hidden)} x {len(weight)}, {kind} supports"
            report.add("check", case, name, lambda ours=ours, true=true: checked(ours(), true()))


def check_last_rows() -> dict[str, Any]:
    """Rows so many and so long that no 32 bits count their entries."""
    num_rows, length = (6, 300) if SMOKE else (16_384, 262_144)
    generator = torch.Generator(DEVICE).manual_seed(0)
    z = torch.randn(num_rows, length, device=DEVICE, dtype=DTYPE, generator=generator)
    y = torch.arange(num_rows, device=DEVICE)
    results = []
    for leaf, rows, impl in ((z, y, "triton"), (z[-2:].double(), y[-2:], "torch")):
        loss = entmax15_loss(leaf.requires_grad_(), rows, reduction="none", impl=impl)
        results.append((loss[-2:], torch.autograd.grad(loss.sum(), leaf)[0][-2:]))
    return checked(*results)


def checked(actual: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> dict[str, Any]:
    errors = [error(*pair) for pair in zip(actual, expected)]
    return {"errors": errors, "verdict": "right" if max(errors) < TOLERANCE[DTYPE] else "WRONG"}


LOSSES: dict[str, Callable[..., Tensor]] = {
    "entmax15 loss": entmax15_loss,
    "sparsemax loss": sparsemax_loss,
    "alpha-ReLU loss": lambda z, y, **options: alpha_relu_loss(z, y, 1.5, 3.0, **options),
}


def fused_loss(loss: Callable[..., Tensor], *settings: float) -> Callable[..., Tensor]:
    return lambda hidden, weight, y, **options: loss(hidden, weight, y, *settings, **options)


def two_steps(loss: Callable[..., Tensor], y: Tensor) -> Callable[..., Tensor]:
    """The loss of a linear layer whose logits are rounded as the layer rounds them, and nothing else is."""

    def step(hidden: Tensor, weight: Tensor) -> Tensor:
        z = hidden @ weight.T
        with torch.no_grad():
            rounded = (hidden.to(DTYPE) @ weight.to(DTYPE).T).to(z.dtype)
        return loss(z + (rounded - z).detach(), y, impl="torch")

    return step


FUSED: dict[str, Callable[..., Tensor]] = {
    "linear entmax15 loss": fused_loss(linear_entmax_loss, 1.5),
    "linear sparsemax loss": fused_loss(linear_entmax_loss, 2.0),
    "linear alpha-ReLU loss": fused_loss(linear_alpha_relu_loss, 1.5, 3.0),
}


def trained_like(num_rows: int, vocabulary: int, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states, weights and targets whose logits have standard deviation 2.5, the target's being 6 higher."""
    generator = torch.Generator(DEVICE).manual_seed(1)
    weight = torch.randn(vocabulary, dim, generator=generator, device=DEVICE) * dim**-0.5
    y = torch.randint(vocabulary, (num_rows,), generator=generator, device=DEVICE)
    hidden = weight[y] * 6 + torch.randn(num_rows, dim, generator=generator, device=DEVICE) * 2.5
    return hidden.to(DTYPE), weight.to(DTYPE), y


def rows(report: Report) -> None:
    for vocabulary in (300,) if SMOKE else (32_768, 131_072, 262_144):
        hidden, weight, y = trained_like(*((8, vocabulary, 16) if SMOKE else (4096, vocabulary, 1024)))
        z = hidden @ weight.T
        candidates = {
            "cross_entropy": lambda z, y=y: F.cross_entropy(z, y),
            "cross_entropy of float32, as Transformers'": lambda z, y=y: F.cross_entropy(z.float(), y),
        } | {name: lambda z, loss=loss, y=y: loss(z, y, impl="triton") for name, loss in LOSSES.items()}
        case, runs = f"{len(z)} x {vocabulary}", {name: with_gradients(loss, z) for name, loss in candidates.items()}
        report.compare("rows, forward + backward", case, runs)
        report.compare("rows, forward + backward", f"{case}, as a CUDA graph", runs, replayed)


def fused(report: Report) -> None:
    size, vocabulary = (16, 300) if SMOKE else (4096, 131_072)
    hidden, weight, y = trained_like(size, vocabulary, size)
    candidates = {
        "liger": lambda x, w: liger(x, w, y),
        "linear_cross_entropy": lambda x, w: F.linear_cross_entropy(x, w, y),
        "cross_entropy": lambda x, w: F.cross_entropy((x @ w.T).float(), y),
    } | {name: partial(loss, y=y, impl="triton") for name, loss in FUSED.items()}
    runs = {name: with_gradients(loss, hidden, weight) for name, loss in candidates.items()}
    report.compare("fused linear loss, forward + backward", f"N = D = {size}, V = {vocabulary}", runs)


def liger(hidden: Tensor, weight: Tensor, y: Tensor) -> Tensor:
    module = importlib.import_module("liger_kernel.ops.fused_linear_cross_entropy")
    found = module.LigerFusedLinearCrossEntropyFunction.apply(hidden, weight, y)
    return found[0] if isinstance(found, tuple) else found


# Shares of the visible tiles that hold support.
DENSITIES = (1.0, 0.5, 0.25)


def models(report: Report) -> None:
    """A training step of a model whose attention is as random weights leave it: nearly every key has weight."""
    sizes = (16, 1, 300) if SMOKE else (128, 4, 32_000)
    for length in (48,) if SMOKE else (2048, 8192):
        runs = {
            name: training_step(length, *sizes, maps)
            for name, maps in {
                "softmax, cross_entropy": {},
                "entmax15 attention": {"attn": "entmax15"},
                "entmax15 head": {"head": "entmax15"},
                "entmax15 attention and head, fused": {"attn": "entmax15", "head": "entmax15", "fused_loss": True},
            }.items()
        }
        report.compare("training step", f"T = {length}", runs, length=length, tokens=length * batch_of(length))


def training_step(
    length: int, head_dim: int, num_layers: int, vocabulary: int, maps: dict[str, Any]
) -> Callable[[], None]:
    """Forward and backward of a Llama with 16 heads, 4 of them with keys of their own."""
    config = LlamaConfig(
        vocab_size=vocabulary, hidden_size=16 * head_dim, intermediate_size=44 * head_dim,
        num_hidden_layers=num_layers, num_attention_heads=16, num_key_value_heads=4, use_cache=False,
        max_position_embeddings=length,
    )  # fmt: skip
    torch.manual_seed(0)
    with torch.device(DEVICE):
        model = LlamaForCausalLM(config).to(DTYPE)
    if maps:
        model = sparsify(model, **maps)
    ids = torch.randint(vocabulary, (batch_of(length), length), device=DEVICE)

    def run() -> None:
        model(input_ids=ids, labels=ids).loss.backward()
        model.zero_grad()

    return run


def width_for(density: float, length: int, dim: int) -> float | None:
    """The width of ``local_inputs`` that leaves a density, by halving: longer rows have narrower supports."""
    if density == 1:
        return None
    narrow, wide = 0.01 * length, 4.0 * length
    for _ in range(0 if SMOKE else 10):
        width = (narrow * wide) ** 0.5
        if live_share(*local_inputs(length, 1, 1, dim, width)) < density:
            narrow = width
        else:
            wide = width
    return wide


def batch_of(length: int) -> int:
    return 1 if SMOKE else max(1, 16_384 // length)


def described_by(length: int, density: float) -> dict[str, float]:
    return {"length": length, "tokens": length * batch_of(length), "density": density}


def attention(report: Report) -> None:
    heads, dim = (2, 16) if SMOKE else (16, 128)
    for length in (48,) if SMOKE else (2048, 8192, 32_768, 4096, 16_384):
        for density in DENSITIES:
            q, k, v = local_inputs(length, heads, heads, dim, width_for(density, length, dim), batch_of(length))
            case, about = f"T = {length}, density {density}", described_by(length, density)
            report.add("attention", case, "live tiles", lambda q=q, k=k, v=v: {"share": live_share(q, k, v)})
            attends = {
                "SDPA flash": softmax_attention(SDPBackend.FLASH_ATTENTION),
                "SDPA cuDNN": softmax_attention(SDPBackend.CUDNN_ATTENTION),
                "flash entmax15": flash,
            }
            runs = {name: with_gradients(attend, q, k, v) for name, attend in attends.items()}
            report.compare("attention, forward + backward", case, runs, **about)
            runs = {name: partial(attend, q, k, v) for name, attend in attends.items()}
            report.compare("attention, forward", case, runs, **about)


def others(report: Report) -> None:
    """adasplash tunes itself for minutes at every new length, FlexAttention is compiled: they come last."""
    heads, dim = (2, 16) if SMOKE else (16, 128)
    for length in (48,) if SMOKE else (2048, 8192):
        for density in DENSITIES:
            inputs = local_inputs(length, heads, heads, dim, width_for(density, length, dim), batch_of(length))
            attends = {"adasplash 2": adasplash, "flash entmax15": flash}
            if not SMOKE:  # on the CPU torch's FlexAttention gives no gradients
                attends["FlexAttention entmax15"] = flex
            case, about = f"T = {length}, density {density}, beside adasplash", described_by(length, density)
            runs = {name: with_gradients(attend, *inputs) for name, attend in attends.items()}
            report.compare("attention, forward + backward", case, runs, **about)
            report.compare("attention, forward + backward", f"{case}, as a CUDA graph", runs, replayed, **about)


def decode(report: Report) -> None:
    heads, key_heads, dim = (4, 2, 16) if SMOKE else (32, 8, 128)
    for length in (130,) if SMOKE else (4096, 16_384, 65_536):
        q, k, v = local_inputs(length, heads, key_heads, dim, length / 20, batch=1 if SMOKE else 8)
        q = q[:, :, -1:]

        attends = {"SDPA": partial(F.scaled_dot_product_attention, enable_gqa=True), "entmax15": one_query}
        runs = {name: partial(attend, q, k, v) for name, attend in attends.items()}
        report.compare("decode, one query", f"T = {length}", runs)
        report.compare("decode, one query", f"T = {length}, as a CUDA graph", runs, replayed)


def language_model(dtype: torch.dtype, maps: dict[str, Any], **sizes: int) -> PreTrainedModel:
    """A Llama with random weights, made sparse by ``maps``, none of whose strings ends before it is long enough."""
    config = LlamaConfig(**sizes, max_position_embeddings=2048, eos_token_id=None, pad_token_id=0)
    torch.manual_seed(0)
    with torch.device(DEVICE):
        model = LlamaForCausalLM(config).to(dtype).eval()
    return sparsify(model, **maps) if maps else model


def strings(model: PreTrainedModel, prompts: list[list[int]], length: int, **options: Any) -> list[list[int]]:
    """Greedy continuations of prompts of one length, each of ``length`` tokens."""
    ids = torch.tensor(prompts, device=DEVICE)
    mask = torch.ones_like(ids)
    out = model.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=length, **options)
    return out[:, ids.shape[1] :].tolist()


def batch_strings(model: PreTrainedModel, prompts: list[list[int]], length: int) -> list[list[int]]:
    """The same of prompts of any length, which continuous batching decodes."""
    settings = GenerationConfig(do_sample=False, max_new_tokens=length, eos_token_id=-1, pad_token_id=0)
    pages = ContinuousBatchingConfig(num_blocks=64, max_batch_tokens=64) if SMOKE else None  # else all memory's
    found = model.generate_batch(
        prompts, generation_config=settings, continuous_batching_config=pages, progress_bar=False
    )
    return [output.generated_tokens for output in found.values()]


BOTH: dict[str, Any] = {"attn": "entmax15", "head": "entmax15"}
TINY = {
    "vocab_size": 300, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip
LARGE = {
    "vocab_size": 32_000, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 4,
    "num_attention_heads": 16, "num_key_value_heads": 4,
}  # fmt: skip


def generation(report: Report) -> None:
    """Strings of a model, with the graph that Transformers compiles over a static cache, and many requests at once.

    A model's weights are random here, so that attention is dense, and every step costs what it can cost at most.
    """
    model, length = language_model(torch.float32, BOTH, **TINY), 4 if SMOKE else 24
    prompts = torch.randint(1, 300, (3, 10), generator=torch.Generator().manual_seed(0)).tolist()
    expected = strings(model, prompts, length)
    for name, decode_all in {
        "over a static cache, compiled": partial(strings, cache_implementation="static"),
        "by continuous batching": batch_strings,
    }.items():
        report.add("check", "generate", name, lambda run=decode_all: same(run(model, prompts, length), expected))
    sizes, batch, length, before = (TINY, 2, 4, 8) if SMOKE else (LARGE, 8, 64, 512)
    prompts = torch.randint(1, 300, (batch, before), generator=torch.Generator().manual_seed(0)).tolist()
    models = {
        "softmax": language_model(DTYPE, {}, **sizes),
        "entmax15 attention and head": language_model(DTYPE, BOTH, **sizes),
    }
    for how, decode_all in {
        "a kernel after the other": strings,
        "compiled over a static cache": partial(strings, cache_implementation="static"),
        "continuous batching": batch_strings,
    }.items():
        runs = {name: partial(decode_all, model, prompts, length) for name, model in models.items()}
        report.compare("generate", f"{batch} strings of {length} tokens after {before}, {how}", runs, once)


def same(actual: list[list[int]], expected: list[list[int]]) -> dict[str, Any]:
    """How large a share of the tokens differs."""
    pairs = [pair for ours, theirs in zip(actual, expected, strict=True) for pair in zip(ours, theirs, strict=True)]
    differing = sum(a != b for a, b in pairs) / len(pairs)
    return {"errors": [differing], "verdict": "WRONG" if differing else "right"}


# By when each is over, in seconds from the start; what one leaves is the next one's. The interpreter is in no hurry.
SECTIONS = {
    section: seconds * (10 if SMOKE else 1)
    for section, seconds in {
        check: 90,
        rows: 140,
        fused: 190,
        decode: 215,
        generation: 330,
        models: 365,
        attention: 535,
        others: 685,
    }.items()
}


def work(out: Path, start: float, names: list[str]) -> None:
    """Run the named sections, adding to what is in ``out``."""
    signal.signal(signal.SIGALRM, stop)
    report = Report(out, start, json.loads(out.read_text())["rows"])
    for section in SECTIONS:
        if section.__name__ in names:
            report.run(section)


def supervise(out: Path, names: list[str], arguments: list[str]) -> list[dict[str, Any]]:
    """Run the named sections in a process of their own, or in several where one dies or hangs; returns the rows."""
    deadlines = {section.__name__: deadline for section, deadline in SECTIONS.items()}
    start = time.time()
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps({"rows": []}))
    while names:
        command = [sys.executable, "-m", "benchmarks.gpu", *arguments, "--out", str(out), "--work", str(start), *names]
        worker, killed = subprocess.Popen(command), False
        while worker.poll() is None:
            time.sleep(0.5)
            running = json.loads(out.read_text()).get("running", names[0])
            if time.time() - start > deadlines[running] + 2 * GRACE:
                killed = True
                worker.kill()
                worker.wait()
        found = json.loads(out.read_text())
        name = found.pop("running", names[0])
        names = names[names.index(name) + 1 :] if worker.returncode else []
        if worker.returncode:
            why = "hung, and was killed" if killed else f"died: its process ended with {worker.returncode}"
            found["rows"].append({"section": name, "case": "the rest", "candidate": "all that follow", "failed": why})
            print(name, why, flush=True)
        if not SMOKE:
            found["targets"] = verdicts(found["rows"])
        out.write_text(json.dumps(found, indent=1) + "\n")
    return found["rows"]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, in Triton's interpreter on the CPU")
    parser.add_argument("--out", type=Path, help=f"where to write the JSON (default: {OUT.name}; nowhere for --smoke)")
    names = [section.__name__ for section in SECTIONS]
    parser.add_argument("--sections", nargs="+", choices=names, default=names, help="run these only")
    parser.add_argument("--work", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.smoke and not SMOKE:
        # Triton reads this when it is first imported.
        environment = os.environ | {"TRITON_INTERPRET": "1"}
        os.execve(sys.executable, [sys.executable, "-m", "benchmarks.gpu", *sys.argv[1:]], environment)
    if not SMOKE and not torch.cuda.is_available():
        parser.error("no GPU was found; --smoke runs without one")
    if options.work:
        work(options.out, float(options.work[0]), options.work[1:])
        return 0
    start = time.time()
    with tempfile.TemporaryDirectory() as folder:
        out = options.out or (Path(folder) / OUT.name if SMOKE else OUT)
        chosen = [name for name in names if name in options.sections]
        rows = supervise(out, chosen, ["--smoke"] if options.smoke else [])
    checks = [row for row in rows if row["section"] == "check"]
    wrong = sum(row.get("verdict") != "right" for row in checks)
    for verdict in verdicts(rows):
        told = "not judged" if SMOKE and "reached" in verdict else verdict["verdict"]
        reached = f"{verdict['reached']:.2f} at {verdict['worst case']}" if "reached" in verdict else ""
        print(f"{told}: {verdict['target']}: at most {verdict['at most']}", *[reached] * bool(reached), sep=", ")
    print(f"{wrong} of {len(checks)} checks wrong; {time.time() - start:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
