"""`python -m benchmarks.peers.table FILE.json [--plot FILE.svg]`: what a comparison found, for a page.

Prints a table in Markdown, and the line that says where it was measured. With `--plot` it draws the warm
rates of each work as bars. The fastest side of a work has a bar of length 1, since works differ tenfold.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

Results = dict[str, Any]


def rate(messages_per_s: float) -> str:
    """Return a rate as people read it: 1.24 M/s, 618 k/s or 950/s."""
    if messages_per_s >= 1e6:
        return f"{messages_per_s / 1e6:.2f} M/s"
    if messages_per_s >= 1e4:
        return f"{messages_per_s / 1e3:.0f} k/s"
    return f"{messages_per_s:,.0f}/s"


def table(results: Results) -> str:
    """Return a row for each work and side that is not the first: rates, their ratio, processor time."""
    lines = [
        "| Work | Ours, warm (cold) | Theirs, warm (cold) | Ratio | Processor s a million, ours / theirs |",
        "|---|---|---|---|---|",
    ]
    for work, found in results.items():
        ours, *others = found["sides"].items()
        for name, theirs in others:
            costs = ours[1]["processor_s_a_million"], theirs["processor_s_a_million"]
            lines.append(
                f"| {work} | {_rates(ours[1])} | {name}: {_rates(theirs)} "
                f"| {ours[1]['warm'] / theirs['warm']:.2f} "
                f"| {costs[0]:.2f} / {costs[1]:.2f}, {costs[0] / costs[1]:.2f} |"
            )
    return "\n".join(lines)


def _rates(side: Results) -> str:
    return f"{rate(side['warm'])} ({rate(side['cold'])})"


def measured_on(document: Results) -> str:
    """Return where and when the results were measured."""
    about = document["environment"]
    machine, versions = about["machine"], about["versions"]
    return (
        f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gib']} GiB, "
        f"load {machine['load_average'][0]} at the end; Python {about['python']}, "
        f"PySpark {versions['pyspark']}, pyarrow {versions['pyarrow']}; {document['turns']} turns at most; "
        f"{about['time'][:10]}; {document['command']}"
    )


def plot(results: Results, file: Path) -> None:
    """Draw each work's warm rates beside each other, as parts of the fastest."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "rocketq"
    from matplotlib import pyplot

    names = list(dict.fromkeys(name for found in results.values() for name in found["sides"]))
    figure, axes = pyplot.subplots(figsize=(9, 0.9 + 0.62 * len(results)), layout="constrained")
    height = 0.8 / len(names)
    for at, name in enumerate(names):
        places, parts, labels = [], [], []
        for row, found in enumerate(results.values()):
            if name in found["sides"]:
                fastest = max(side["warm"] for side in found["sides"].values())
                places.append(row + (at - (len(names) - 1) / 2) * height)
                parts.append(found["sides"][name]["warm"] / fastest)
                labels.append(rate(found["sides"][name]["warm"]))
        bars = axes.barh(
            places, parts, height * 0.92, label=name, color=("#d9481c", "#7a8797", "#b8c0cc")[at % 3]
        )
        axes.bar_label(bars, labels, padding=4, fontsize=9)
    axes.set_yticks(range(len(results)), list(results))
    axes.invert_yaxis()
    axes.set_xlim(0, 1.15)
    axes.set_xticks([])
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=len(names), frameon=False)
    figure.savefig(file, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers.table", description="A comparison as a table."
    )
    parser.add_argument("file", type=Path, help="what a comparison wrote with --json")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="also draw the warm rates")
    chosen = parser.parse_args()
    document = json.loads(chosen.file.read_text())
    print(table(document["results"]))
    print(f"\n{measured_on(document)}")
    if chosen.plot is not None:
        plot(document["results"], chosen.plot)


if __name__ == "__main__":
    main()
