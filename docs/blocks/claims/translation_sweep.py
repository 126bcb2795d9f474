"""Claims on translation from scratch: figures of the sweep over maps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from recipes.translation_sweep.report import RESULTS, TIMES, late, settled, training_speeds

from ._outcome import Figures, NotRun, Outcome, figures_of, listed, runs, seeds_of

EMBEDDED, LONGER = (f"{RESULTS}/{name}.json" for name in ("scenes", "scenes_longer"))
# The longest training first.
STUDIES = {
    "Multi30k, 15 epochs": f"{RESULTS}/multi30k_converged.json",
    "Multi30k": f"{RESULTS}/multi30k.json",
    "embedded sample": EMBEDDED,
}
LONGEST = next(iter(STUDIES.values()))
PLACES = {"attention": "attended", "output": "head_support"}
AT_OUTPUT = ("softmax", "output-sparsemax", "output-entmax15", "output-alpha_relu")


def sweeps(*names: str, studies: Mapping[str, str] = STUDIES) -> tuple[str, list[Figures]]:
    """Figures of runs that belong together, from the first study that has all of them.

    Returns:
        The name of the study with its number of seeds, where these are several, and the figures of each run.

    Raises:
        NotRun: a run is missing in every study.
    """
    for study, path in studies.items():
        found = figures_of(path)
        if set(names) <= set(found):
            return study + seeds_of(path, names), [found[name] for name in names]
    raise NotRun(next(name for name in names if name not in found))


def evidence(names: Sequence[str], needed: Sequence[str]) -> list[tuple[str, dict[str, Figures]]]:
    """Figures of as many of the runs as the first study has that has all the needed ones.

    A study without some of the runs is followed by the first one that has them all.

    Raises:
        NotRun: a run is missing in every study.
    """
    study = next((path for path in STUDIES.values() if set(needed) <= set(figures_of(path))), EMBEDDED)
    there = [name for name in names if name in figures_of(study)]
    chosen = [names] if len(there) == len(names) else [there, names]
    found = [(asked, *sweeps(*asked)) for asked in chosen]
    return [(study, dict(zip(asked, figures))) for asked, study, figures in found]


def swept(prefix: str) -> dict[float, Figures]:
    """Figures of the runs on the embedded sample whose names are ``prefix`` and a number, by that number.

    Raises:
        NotRun: there are none.
    """
    found = {
        float(name.removeprefix(prefix)): figures
        for name, figures in figures_of(EMBEDDED).items()
        if name.startswith(prefix)
    }
    if not found:
        raise NotRun(f"{prefix}*")
    return found


def maps(prefix: str = "") -> list[str]:
    """Runs of three maps, each at the output and in attention, the sparsest last.

    Sparsemax is the run that starts as 1.5-entmax where the longest study has it.
    """
    sparsest = "sparsemax-from-entmax15"
    if prefix + sparsest not in figures_of(LONGEST):
        sparsest = "sparsemax"
    return [prefix + name for name in ("softmax", "entmax15", sparsest)]


def entmax_translates_best() -> Outcome:
    """Compare BLEU of three maps, each at the output and in attention, in both directions.

    Each rival counts in the longest training that has it.
    """
    texts, held = [], []
    for direction, prefix in (("de-en", ""), ("en-de", "en-de-")):
        softmax, entmax15, sparsemax = maps(prefix)
        rivals = {softmax, sparsemax}
        for study, found in evidence([softmax, entmax15, sparsemax], [softmax, entmax15]):
            bleu = {name: run["bleu"] for name, run in found.items()}
            shown = {name.removeprefix(prefix): value for name, value in bleu.items()}
            texts.append(f"{study}, {direction}: {listed(shown, '.1f')}")
            met = rivals & bleu.keys()
            held += [bleu[entmax15] > bleu[rival] for rival in met]
            rivals -= met
    return Outcome("; ".join(texts), all(held))


def output_alpha_has_an_optimum_inside() -> Outcome:
    """Compare BLEU over alpha at the output; in the second training, which is shorter, all attention is 1.5-entmax."""
    softmax, _, sparsemax = maps()
    texts, held = [], []
    for one, two in ((softmax, sparsemax), ("output-1", "output-2")):
        names = {1: one, 1.33: "output-1.33", 1.5: "entmax15", 2: two}
        study, found = sweeps(*names.values())
        bleu = {alpha: run["bleu"] for alpha, run in zip(names, found)}
        texts.append(f"{study}: {listed({f'{alpha}:': value for alpha, value in bleu.items()}, '.1f')}")
        held.append(max(bleu, key=bleu.__getitem__) in (1.33, 1.5))
    return Outcome("; ".join(texts), all(held))


def supports_shrink_with_alpha() -> Outcome:
    """Compare the support sizes of three maps, in attention and at the output."""
    texts, held = [], []
    for study, found in evidence(maps(), maps()[:2]):
        sizes = {place: [run[key] for run in found.values()] for place, key in PLACES.items()}
        text = "; ".join(f"{place}: {', '.join(f'{size:.1f}' for size in row)}" for place, row in sizes.items())
        texts.append(f"{study}: {text}")
        held += [row == sorted(row, reverse=True) for row in sizes.values()]
    return Outcome("; ".join(texts), all(held))


def entmax_is_nearly_as_fast() -> Outcome:
    """Compare the training speed of 1.5-entmax, at the output and in attention, with softmax's."""
    turns = training_speeds(figures_of(TIMES)["times"])["entmax15"]
    return Outcome(f"Multi30k, trained in turns: {settled(turns)} of softmax", late(turns) > 0.85)


def relu_is_as_fast() -> Outcome:
    """Compare the training speeds of alpha-ReLU and entmax at the output with softmax's."""
    speeds = training_speeds(figures_of(TIMES)["times"])
    relu, entmax = speeds["output-alpha_relu"], speeds["output-entmax15"]
    text = f"Multi30k, trained in turns: alpha-ReLU {settled(relu)}, entmax {settled(entmax)} of softmax"
    return Outcome(text, late(relu) > max(0.95, late(entmax)))


def at_output(key: str) -> list[tuple[str, dict[str, float]]]:
    """A figure of the output maps, by study; sparsemax that begins as 1.5-entmax is in attention, too.

    Raises:
        NotRun: no study has sparsemax.
    """
    *_, sparsest = maps()
    found = []
    for study, path in STUDIES.items():
        run = figures_of(path)
        names = [*AT_OUTPUT, *([] if "output-sparsemax" in run else [sparsest])]
        there = [name for name in names if name in run]
        if set(AT_OUTPUT) - {"output-sparsemax"} <= set(there):  # not every study has sparsemax at the output
            figures = {name.removeprefix("output-"): run[name][key] for name in there}
            found.append((study + seeds_of(path, there), figures))
    if not any(name.startswith("sparsemax") for _, figures in found for name in figures):
        raise NotRun("output-sparsemax")
    return found


def relu_is_on_par() -> Outcome:
    """Compare BLEU of four output maps."""
    texts, held = [], []
    for study, bleu in at_output("bleu"):
        texts.append(f"{study}: {listed(bleu, '.1f')}")
        sparsemax = next((value for name, value in bleu.items() if name.startswith("sparsemax")), None)
        held.append(bleu["alpha_relu"] >= bleu["entmax15"] - 0.5)
        held.append(sparsemax is None or sparsemax == min(bleu.values()))
    return Outcome("; ".join(texts), all(held))


def sparse_models_do_not_prefer_silence() -> Outcome:
    """Compare how often output maps prefer the empty string, in the longest training."""
    study, shares = at_output("empty_preferred")[0]
    sparse = max(share for name, share in shares.items() if name != "softmax")
    return Outcome(f"{study}: {listed(shares, '.1%')}", shares["softmax"] > sparse == 0)


def relu_is_less_sparse() -> Outcome:
    """Compare the support sizes of alpha-ReLU and entmax at the output."""
    texts, held = [], []
    for study, sizes in at_output("head_support"):
        texts.append(f"{study}: {sizes['alpha_relu']:.1f} against {sizes['entmax15']:.1f} tokens")
        held.append(sizes["alpha_relu"] > sizes["entmax15"])
    return Outcome("; ".join(texts), all(held))


def threshold_grows() -> Outcome:
    """Compare the threshold and the norm of entmax's logits before and after training."""
    study, (run,) = sweeps("entmax15")
    first, *_, last = run["curve"]
    threshold, norm = ((first[key], last[key]) for key in ("threshold", "logit_norm"))
    text = f"{study}: threshold {threshold[0]:.2f} to {threshold[1]:.2f}, norm {norm[0]:.0f} to {norm[1]:.0f}"
    return Outcome(text, threshold[1] > threshold[0] and norm[1] > norm[0])


def tau_hardly_matters() -> Outcome:
    """Compare BLEU over tau, in short training and after longer training, which decides."""
    texts, spread = [], 0.0
    for path in (EMBEDDED, LONGER):
        found = [figures for name, figures in figures_of(path).items() if _is_tau_run(name)]
        bleu = {float(figures["config"]["head"]["tau"]): figures["bleu"] for figures in found}
        if len(bleu) < 3:
            raise NotRun("output-alpha_relu-tau-*")
        shown = listed({f"tau {tau:.2g}:": value for tau, value in sorted(bleu.items())}, ".1f")
        texts.append(f"after {runs(path)[0]['settings']['steps']:,} steps {shown}")
        spread = max(bleu.values()) - min(bleu.values())
    return Outcome("; ".join(texts), spread < 2)


def _is_tau_run(name: str) -> bool:
    return name == "output-alpha_relu" or name.startswith("output-alpha_relu-tau-")


def tau_without_data() -> Outcome:
    """Compare tau estimated from the weights alone with the untrained model's mean threshold on data.

    The head shares the matrix of the embeddings, or has its own.
    """
    texts, held = [], []
    for kind, name in {"tied": "output-alpha_relu", "untied": "output-alpha_relu-untied"}.items():
        study, (run,) = sweeps(name)
        estimated, measured = run["config"]["head"]["tau"], run["curve"][0]["threshold"]
        texts.append(f"{study}, {kind}: estimated {estimated:.2f}, on data {measured:.2f}")
        held.append(abs(estimated - measured) < 0.05)
    return Outcome("; ".join(texts), all(held))


def sums_concentrate() -> Outcome:
    """Measure the mean and the deviation of the sums of alpha-ReLU's weights."""
    study, (run,) = sweeps("output-alpha_relu")
    mean, deviation = (float(run["head_sum"][key]) for key in ("mean", "std"))
    return Outcome(f"{study}: {mean:.2f} ± {deviation:.2f}", abs(mean - 1) < 0.3 and deviation < 0.3)


def control_costs_nothing() -> Outcome:
    """Compare BLEU over lambda and q with softmax's; lambda 0 is sparsemax."""
    softmax = figures_of(EMBEDDED)["softmax"]["bleu"]
    texts, best = [f"softmax {softmax:.1f}"], 0.0
    for kind in ("sparsegen_lin", "sparsehourglass"):
        bleu = {f"{value:g}:": run["bleu"] for value, run in swept(f"cross-{kind}-").items()}
        texts.append(f"{kind} {listed(bleu, '.1f')}")
        best = max(best, *bleu.values())
    return Outcome("; ".join(texts), best >= softmax)


def lambda_controls_sparsity() -> Outcome:
    """Compare the number of source tokens attended over lambda."""
    attended = {value: run["attended"] for value, run in sorted(swept("cross-sparsegen_lin-").items())}
    if len(attended) < 2:
        raise NotRun("cross-sparsegen_lin-*")
    text = listed({f"{value:g}:": number for value, number in attended.items()}, ".1f")
    falling = list(attended.values())
    return Outcome(f"tokens attended at lambda {text}", falling == sorted(falling, reverse=True))
