#!/usr/bin/env python3
"""Prints the results of `cargo bench` as the tables of docs/performance.md.

    cargo bench && python3 benches/table.py

Each row has the median of the samples, the minimum (the time on an idle machine) and the 95th percentile; per element if
the benchmark sets a throughput.
"""

import json
import os
import pathlib
import statistics
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "criterion"


def load_results():
    """(group, function, value) -> (median, minimum, 95th percentile) in nanoseconds."""
    found = {}
    for path in sorted(TARGET.glob("**/new/benchmark.json")):
        benchmark = json.loads(path.read_text())
        samples = json.loads(path.with_name("sample.json").read_text())
        throughput = benchmark.get("throughput") or {}
        elements = throughput.get("Elements", 1)
        times = sorted(time / runs / elements for time, runs in zip(samples["times"], samples["iters"]))
        name = (benchmark["group_id"], benchmark["function_id"] or "", benchmark["value_str"] or "")
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
    found = load_results()
    if not found:
        sys.exit(f"no results in {TARGET}: run `cargo bench` first")
    values = sorted({value for group, _, value in found if group == "index"}, key=order)
    rows = []
    for value in values:
        ours = found.get(("index", "FreeIndex", value))
        theirs = found.get(("index", "buddy_system_allocator", value))
        if ours and theirs:
            ratios = [f"{ours[i] / theirs[i]:.2f}" for i in (0, 1)]
            rows.append([value, *(text(x[i]) for i in (0, 1) for x in (ours, theirs)), *ratios])
    if rows:
        head = ["index, per step", "FreeIndex, median", "buddy, median", "FreeIndex, minimum", "buddy, minimum"]
        table([*head, "ratio of medians", "ratio of minima"], rows)
    for group in sorted({group for group, _, _ in found} - {"index"}):
        names = [name for name in found if name[0] == group]
        names.sort(key=lambda name: (name[1], order(name[2])))
        rows = [[", ".join(filter(None, name[1:])), *map(text, found[name])] for name in names]
        table([group, "median", "minimum", "95th percentile"], rows)
    run = found.get(("run", "ipuctl run of true", ""))
    plain = found.get(("run", "true", ""))
    if run and plain:
        print(f"`ipuctl run` adds {text(run[0] - plain[0])} (median), {text(run[2] - plain[2])} (95th percentile).")


if __name__ == "__main__":
    main()
