"""What the pretrained recipe aims at, and whether its figures meet it."""

from __future__ import annotations

from collections.abc import Sequence

from ..lib.records import Record


def verdicts(records: Sequence[Record]) -> list[tuple[str, str, bool]]:
    """Each aim with what was found, and whether that meets it.

    Args:
        records: of all runs, with one seed each.
    """
    by_run = {record["run"]: record["figures"] for record in records}
    parts = {part: [each for each in records if each["settings"]["part"] == part] for part in OF_PART}
    attention, more = by_run["smollm2-attention"], by_run["smollm2-attention-fifth"]
    head = by_run["smollm2-head"]
    sizes = head["sizes"].values()
    coverage = by_run["smollm2-coverage"]["coverage"]
    ahead = sum(found["loss"] < found["nucleus"]["loss"] for found in sizes)
    furthest = max(abs(sets["entmax"]["coverage"] - float(asked)) for asked, sets in coverage.items())
    smaller = sum(
        sets["entmax"]["size"] <= min(sets["aps"]["size"], sets["raps"]["size"]) for sets in coverage.values()
    )
    return [
        (
            "SmolLM2 attention: loss within 1 %, at most 12 % of the edges",
            "; ".join(f"{each['increase']:+.1%} at {each['edges']:.1%}" for each in (attention, more)),
            attention["increase"] <= 0.01 and attention["edges"] <= 0.12,
        ),
        (
            "SmolLM2 head: smaller loss than top-p at equal mean numbers of classes",
            f"at {ahead} of {len(sizes)} sizes",
            ahead == len(sizes),
        ),
        ("SmolLM2 head: coverage within one point of what was asked", f"{furthest:.1%} at most", furthest <= 0.01),
        (
            "SmolLM2 head: sets no larger than those of APS and RAPS",
            f"at {smaller} of {len(coverage)} coverages",
            smaller == len(coverage),
        ),
        *(verdict(record) for part, verdict in OF_PART.items() for record in parts[part]),
    ]


def _of_constraint(record: Record) -> tuple[str, str, bool]:
    figures, settings = record["figures"], record["settings"]
    how = "trained by adapters" if settings["rank"] else "no weight trained, only settings"
    length, edges = settings["length"], 0.12 if settings["length"] <= 256 else 0.05
    return (
        f"SmolLM2 attention, {how}: loss within 1 %, at most {edges * 100:g} % of the edges of {length} tokens",
        f"{figures['increase']:+.1%} at {figures['edges']:.1%}",
        figures["increase"] <= 0.01 and figures["edges"] <= edges,
    )


def _of_trained_head(record: Record) -> tuple[str, str, bool]:
    figures, classes = record["figures"], record["settings"]["few_classes"]
    own, cut = (figures[way]["loss"] / figures["continued"]["loss"] - 1 for way in ("trained", "cut"))
    return (
        f"SmolLM2 head, trained: loss within 2 % of dense trained alike with at most {classes:g} classes",
        f"{own:+.1%} with {figures['trained']['support']:.0f}; the dense one's best cut {cut:+.1%}",
        own <= 0.02 and figures["trained"]["support"] <= classes,
    )


def _of_cache(record: Record) -> tuple[str, str, bool]:
    context, found = max(record["figures"]["contexts"].items(), key=lambda item: int(item[0]))
    faster = found["milliseconds"]["dense"] / found["milliseconds"]["screened"]
    model = f"SmolLM2 in {record['settings']['dtype']}, {int(context):,} tokens in the cache"
    aim = f"{model}: at most 30 % of the bytes read in a step, all proved, faster than dense"
    met = found["share"] <= 0.3 and faster > 1 and found["proved"] == 1
    return aim, f"{found['share']:.1%}, {found['proved']:.0%}, {faster:.1f} times as fast", met


def _of_speech(record: Record) -> tuple[str, str, bool]:
    figures, kinds = record["figures"], " and ".join(record["settings"]["kinds"])
    more = figures["calibrated"] - figures["dense"]
    return f"Whisper, {kinds} attention: word error rate within one point", f"{more:+.1%}", more < 0.01 + 1e-9


def _of_training(record: Record) -> tuple[str, str, bool]:
    figures = record["figures"]
    more = figures["trained"] - figures["continued"]
    return (
        "Whisper, all attention and head, trained: word error rate within one point of dense trained alike, 98 % of "
        "the tokens possible",
        f"{more:+.1%}, {figures['possible']:.1%}",
        more < 0.01 + 1e-9 and figures["possible"] >= 0.98,
    )


def _of_proofs(record: Record) -> tuple[str, str, bool]:
    shares = [record["figures"][goal]["proofs"]["exact_search"]["proved"] for goal in ("coverage", "classes")]
    return "Whisper: 95 % of the transcripts proved", f"{min(shares):.0%} by `exact_search`", min(shares) >= 0.95


def _of_times(record: Record) -> tuple[str, str, bool]:
    errors = {way: record["figures"][way]["seconds"] for way in ("dense", "calibrated")}
    aim = "Whisper, times of words: mean error no larger than that of dense cross-attention"
    return aim, f"{errors['calibrated']:.2f} s, dense {errors['dense']:.2f} s", errors["calibrated"] <= errors["dense"]


def _of_sentences(record: Record) -> tuple[str, str, bool]:
    figures, part = record["figures"], record["settings"]["part"]
    distilled = "distilled" in figures
    own, spearman = figures["distilled" if distilled else "calibrated"], 0.99 if distilled else 0.98
    lost, how = figures["dense"]["recall"] - own["recall"], ", distilled" if distilled else ""
    return (
        f"MiniLM, {part}{how}: recall within one point, Spearman at least {spearman:.2f}, 80 % zeros",
        f"{-lost:+.1%}, {own['spearman']:.3f}, {own['zeros']:.1%}",
        lost < 0.01 + 1e-9 and own["spearman"] >= spearman and own["zeros"] >= 0.8,
    )


OF_PART = {
    "trained": _of_constraint,
    "trained_head": _of_trained_head,
    "cache": _of_cache,
    "paragraphs": _of_sentences,
    "captions": _of_sentences,
    "speech": _of_speech,
    "speech_trained": _of_training,
    "speech_head": _of_proofs,
    "speech_times": _of_times,
}
