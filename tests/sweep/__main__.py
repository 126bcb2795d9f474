"""Run the sweep over Transformers' mappings and write docs/support.json and docs/support.md.

``python -m tests.sweep`` runs everything (half an hour on one core), ``--mapping`` and ``--type`` a part,
``--slice 2/8`` every eighth entry from the second. Entries that were not run keep what an earlier run wrote.
``--table`` only writes the table anew. ``--attn relu_over_n`` checks attention alone, with another map, and prints.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import signal
import time
import warnings

import transformers

from tests.sweep.architectures import MAPPINGS, entries
from tests.sweep.support import FURTHER, read, write
from tests.sweep.verdict import verdict

SECONDS_PER_MODEL = 180


def _late(*_: object) -> None:
    raise TimeoutError(f"took more than {SECONDS_PER_MODEL} s")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.sweep", description=__doc__)
    parser.add_argument("--mapping", choices=MAPPINGS, action="append")
    parser.add_argument("--type", action="append", help="a model type, as bloom")
    parser.add_argument("--slice", default="1/1", help="k/n: every n-th entry from the k-th")
    parser.add_argument("--redo", help="only entries whose last result was this")
    parser.add_argument("--attn", help="a map for attention other than entmax15; nothing is written")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    warnings.filterwarnings("ignore")
    everything = {(mapping, *entry) for mapping in MAPPINGS for entry in entries(mapping)}
    known = {entry: found for entry, found in read().items() if entry in everything}
    if options.table:
        write(known)
        return
    chosen = [(mapping, kind, name) for mapping in options.mapping or MAPPINGS for kind, name in entries(mapping)]
    if options.type:
        chosen = [entry for entry in chosen if entry[1] in options.type]
    if options.redo:
        chosen = [entry for entry in chosen if known.get(entry, {}).get("result") == options.redo]
    first, step = map(int, options.slice.split("/"))
    signal.signal(signal.SIGALRM, _late)
    for mapping, kind, name in chosen[first - 1 :: step]:
        signal.alarm(SECONDS_PER_MODEL)
        start = time.time()
        with contextlib.redirect_stderr(io.StringIO()):
            found = verdict(mapping, kind, name, options.attn)
        signal.alarm(0)
        print(
            f"{time.time() - start:5.1f} s  {mapping} {kind} {name}: {found['result']} {found.get('reason', '')}; "
            + "; ".join(f"{check} {found[check]}" for check in FURTHER if check in found),
            flush=True,
        )
        if options.attn is None:
            known[mapping, kind, name] = found
            write(known)


if __name__ == "__main__":
    main()
