"""`python -m benchmarks.peers.table FILE.json [--plot FILE.svg]`: what a comparison found, for a page.

Prints tables in Markdown, and the line that says where it was measured. With `--plot` it draws the warm
rates of each work as bars. The fastest side of a work has a bar of length 1, since works differ tenfold.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

Results = dict[str, Any]
#: What is done with each size of a topic.
WORKS: Final = ("write", "read", "stream", "topic to topic")


def rate(messages_per_s: float) -> str:
    """Return a rate as people read it: 1.24 M/s, 618 k/s or 950/s."""
    if messages_per_s >= 1e6:
        return f"{messages_per_s / 1e6:.2f} M/s"
    if messages_per_s >= 1e4:
        return f"{messages_per_s / 1e3:.0f} k/s"
    return f"{messages_per_s:,.0f}/s"


def _rows(head: str, lines: Iterable[str]) -> str:
    return "\n".join([head, "|" + "---|" * (head.count("|") - 1), *lines])


def works(found: Results) -> str:
    """Return a row for each work and side that is not the first: rates, their ratio, processor time."""
    lines = []
    for work, result in found.items():
        ours, *others = result["sides"].items()
        for name, theirs in others:
            costs = ours[1]["processor_s_a_million"], theirs["processor_s_a_million"]
            lines.append(
                f"| {work} | {_rates(ours[1])} | {name}: {_rates(theirs)} "
                f"| {ours[1]['warm'] / theirs['warm']:.2f} "
                f"| {costs[0]:.2f} / {costs[1]:.2f}, {costs[0] / costs[1]:.2f} |"
            )
    head = "| Work | Ours, warm (cold) | Theirs, warm (cold) | Ratio | Processor s a million, ours / theirs |"
    return _rows(head, lines)


def _rates(side: Results) -> str:
    return f"{rate(side['warm'])} ({rate(side['cold'])})"


def disk(found: Results) -> str:
    lines = [
        f"| {topic} | {name} | {size:,} |" for topic, sides in found.items() for name, size in sides.items()
    ]
    return _rows("| Topic | System | Bytes of disk a message |", lines)


def memory(found: Results) -> str:
    lines = [f"| {name} | {_mib(peaks)} |" for name, peaks in found.items()]
    return _rows("| System | Peak memory, MiB |", lines)


def _mib(peaks: Results) -> str:
    return ", ".join(f"{kind} {mib:,}" for kind, mib in peaks.items())


def streams(found: Results) -> str:
    """Return a row for each rate and side; of several turns the medians."""
    lines = []
    for case, sides in found.items():
        for name, turns in sides.items():
            late = {part: [turn["latency_ms"][part] for turn in turns] for part in turns[0]["latency_ms"]}
            told = " / ".join(f"{statistics.median(values):,.0f}" for values in late.values())
            cores = statistics.median(turn["processor_cores"] for turn in turns)
            sending = statistics.median(turn["sender_processor_cores"] for turn in turns)
            peaks = _mib(turns[-1]["memory_mib"])
            lines.append(f"| {case} | {name} | {told} | {cores:.2f} | {sending:.2f} | {peaks} |")
    head = (
        "| Stream | System | Latency, ms: p50 / p99 / max | Processors | of the sender | Peak memory, MiB |"
    )
    return _rows(head, lines)


def sizes(found: Results) -> str:
    """Return a row for each size of a topic and side."""
    lines = []
    for rows, sides in found.items():
        for name, side in sides.items():
            rates = " | ".join(rate(side["rows_per_s"][work]) for work in WORKS)
            lines.append(f"| {int(rows) / 1e6:g} M | {name} | {rates} | {_mib(side['memory_mib'])} |")
    head = "| Rows | System | Write | Read | Stream | Topic to topic | Peak memory, MiB |"
    return _rows(head, lines)


#: Which part of the results makes which table.
TABLES: Final[dict[str, Callable[[Results], str]]] = {
    "works": works,
    "disk_bytes_a_message": disk,
    "memory_mib": memory,
    "streams": streams,
    "sizes": sizes,
}


def measured_on(document: Results) -> str:
    """Return where and when the results were measured."""
    about = document["environment"]
    machine, versions = about["machine"], about["versions"]
    return (
        f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gib']} GiB, "
        f"load {machine['load_average'][0]} at the end; Python {about['python']}, "
        f"PySpark {versions['pyspark']}, pyarrow {versions['pyarrow']}; "
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
        prog="python -m benchmarks.peers.table", description="A comparison as tables."
    )
    parser.add_argument("file", type=Path, help="what a comparison wrote with --json")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="also draw the warm rates of the works")
    chosen = parser.parse_args()
    document = json.loads(chosen.file.read_text())
    results = document["results"]
    for part, table in TABLES.items():
        if part in results:
            print(f"{table(results[part])}\n")
    print(measured_on(document))
    if chosen.plot is not None:
        if "works" not in results:
            parser.error("this comparison has no rates of works to draw")
        plot(results["works"], chosen.plot)


if __name__ == "__main__":
    main()
