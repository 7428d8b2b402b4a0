#!/usr/bin/env python3
"""Prints what `cargo bench` measured as the tables of docs/performance.md.

    cargo bench && python3 benches/table.py

Of each benchmark: the median of the samples, the least of them (what it takes when nothing else runs) and the 95th
percentile; per element where the benchmark says how many elements a run has.
"""

import json
import os
import pathlib
import statistics
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "criterion"


def measured():
    """(group, function, value) -> (median, least, 95th percentile) in nanoseconds."""
    found = {}
    for path in sorted(TARGET.glob("**/new/benchmark.json")):
        about = json.loads(path.read_text())
        samples = json.loads(path.with_name("sample.json").read_text())
        throughput = about.get("throughput") or {}
        elements = throughput.get("Elements", 1)
        times = sorted(time / runs / elements for time, runs in zip(samples["times"], samples["iters"]))
        name = (about["group_id"], about["function_id"] or "", about["value_str"] or "")
        found[name] = (statistics.median(times), times[0], times[(len(times) * 95 - 1) // 100])
    return found


def text(nanoseconds):
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if nanoseconds >= size:
            return f"{nanoseconds / size:.3g} {unit}"
    return f"{nanoseconds:.3g} ns"


def table(head, rows):
    print("| " + " | ".join(head) + " |")
    print("|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print()


def order(value):
    return [int(word) if word.isdigit() else 0 for word in value.replace(",", "").split()]


def main():
    found = measured()
    if not found:
        sys.exit(f"nothing is measured in {TARGET}: run `cargo bench` first")
    values = sorted({value for group, _, value in found if group == "index"}, key=order)
    rows = []
    for value in values:
        ours = found.get(("index", "FreeIndex", value))
        theirs = found.get(("index", "buddy_system_allocator", value))
        if ours and theirs:
            ratios = [f"{ours[i] / theirs[i]:.2f}" for i in (0, 1)]
            rows.append([value, *(text(x[i]) for i in (0, 1) for x in (ours, theirs)), *ratios])
    if rows:
        head = ["index, a step", "FreeIndex, median", "buddy, median", "FreeIndex, least", "buddy, least"]
        table([*head, "ratio of medians", "ratio of least"], rows)
    for group in sorted({group for group, _, _ in found} - {"index"}):
        names = [name for name in found if name[0] == group]
        names.sort(key=lambda name: (name[1], order(name[2])))
        rows = [[", ".join(filter(None, name[1:])), *map(text, found[name])] for name in names]
        table([group, "median", "least", "95th percentile"], rows)
    run = found.get(("run", "ipuctl run of true", ""))
    plain = found.get(("run", "true", ""))
    if run and plain:
        print(f"`ipuctl run` adds {text(run[0] - plain[0])} (median), {text(run[2] - plain[2])} (95th percentile).")


if __name__ == "__main__":
    main()
