"""Put the measured figures into docs/performance.md and docs/service.md, and draw the former's pictures.

    python benchmarks/plot.py            rewrite the tables between their markers, and the pictures
    python benchmarks/plot.py --check    exit 1 if a table is not what results/*.json say

The page keeps its text; what stands between `<!-- table: NAME -->` and `<!-- end -->` is made here.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PAGES = tuple(HERE.parent / "docs" / name for name in ("performance.md", "service.md"))
Found = dict[str, Any]

UNITS = {
    "popcount_bit_mac_per_s": ("popcount", "AND + popcount from the first-level cache", "G bit-multiply-adds/s"),
    "float32_flop_per_s": ("float32 product", "NumPy's float32 matrix product", "GFLOP/s"),
    "float64_flop_per_s": ("float64 product", "NumPy's float64 matrix product", "GFLOP/s"),
    "read_labels_bytes_per_s": ("reading", "a gigabyte of labels, every one read and added", "GB/s"),
    "read_words_bytes_per_s": ("reading words", "the same bytes added as 64-bit words", "GB/s"),
    "increments_per_s": ("increments", "a histogram counted up in the first-level cache", "G increments/s"),
}
ORDER = ("verax numba", "verax numpy", "verax torch")
# Okabe and Ito's colours, which the colour-blind tell apart too; shapes say the same.
STYLES = {
    "verax numba": ("#0072B2", "o", "-"), "verax numba, with errors": ("#0072B2", "s", "--"),
    "verax numpy": ("#D55E00", "^", "-"), "verax numpy, with errors": ("#D55E00", "v", "--"),
    "verax torch": ("#CC79A7", "D", "-"), "np.bincount a pair": ("#009E73", "x", ":"),
    "sklearn confusion_matrix a pair": ("#000000", "+", ":"), "torch one-hot product": ("#E69F00", "*", ":"),
}  # fmt: skip


def size(x: float) -> str:
    """A number of agents or tasks, short.

    >>> size(10_000_000), size(2000), size(50)
    ('10^7', '2,000', '50')
    """
    power = len(str(int(x))) - 1
    return f"10^{power}" if x >= 10_000 and x == 10**power else f"{x:,}"


def shape(case: Found) -> str:
    return f"{size(case['agents'])} x {size(case['tasks'])} x {case['classes']}"


def duration(s: float) -> str:
    """Seconds in the unit that suits them.

    >>> duration(0.00123), duration(0.58), duration(4000), duration(3e6)
    ('1.2 ms', '0.58 s', '1.1 h', '35 days')
    """
    for unit, name in ((86400.0, " days"), (3600.0, " h"), (1.0, " s")):
        if s >= (unit if unit > 1 else 0.1):
            return f"{three(s / unit)}{name}"
    return f"{three(s * 1000)} ms"


def three(x: float) -> str:
    """Two digits that count, three from 100 on."""
    return f"{x:,.0f}" if x >= 9.95 else f"{x:.1f}" if x >= 0.995 else f"{x:.2f}"


def percent(x: float) -> str:
    return f"{three(100 * x)} %"


def cell(timing: Found | None) -> str:
    if timing is None:
        return ""
    if timing["median_s"] is None:
        return "-"
    return ("~" if timing["scaled"] else "") + duration(timing["median_s"])


def spread(timing: Found) -> str:
    return f"{cell(timing)} ({duration(timing['least_s'])} to {duration(timing['most_s'])})"


def table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def way(case: Found, name: str, gives: str, threads: int = 1) -> Found | None:
    wanted = (name, gives, threads)
    return next((w for w in case["ways"] if (w["way"], w["gives"], w["threads"]) == wanted), None)


# Tables.


def of_pairs(found: Found, gives: str) -> str:
    """Ways down, cases across: the median."""
    cases = [c for c in found["cases"] if c["kind"] == "pairs"]
    names = list(dict.fromkeys((w["way"], w["threads"]) for c in cases for w in c["ways"] if w["gives"] == gives))
    header = ["", *(shape(c) for c in cases)]
    rows = [
        [name + (f", {threads} threads" if threads > 1 else ""), *(cell(way(c, name, gives, threads)) for c in cases)]
        for name, threads in names
    ]
    return table(header, rows)


def of_totals(found: Found) -> str:
    return of_pairs(found, "totals")


def of_score(found: Found) -> str:
    return of_pairs(found, "score")


def of_mean(found: Found) -> str:
    return of_pairs(found, "mean")


def of_tables(found: Found) -> str:
    kept, dropped = of_pairs(found, "tables"), of_pairs(found, "tables, dropped").splitlines()[2:]
    return "\n".join([kept, *(line.replace(" |", ", dropped |", 1) for line in dropped)])


def of_million(found: Found) -> str:
    """The mean over peers: what, way, time with spread, read passes, time an agent."""
    case = next((c for c in found["cases"] if c["kind"] == "linear"), {"ways": []})
    names = {"scores": "scores, as arrays", "with errors": "with standard errors, as arrays", "score": "`verax.score`"}
    rows = []
    for w in case["ways"]:
        ours = w["way"].startswith("verax") and w["median_s"] is not None
        passes = three(w["median_s"] / case["read_pass_s"]) if ours else ""
        each = f"{w['median_s'] / case['agents'] * 1e6:.1f} µs" if ours else ""
        rows.append([w["way"], names[w["gives"]], spread(w) if ours else cell(w), passes, each])
    return table(["", "gives", "time", "read passes", "an agent"], rows)


def of_rows(found: Found) -> str:
    case = next((c for c in found["cases"] if c["kind"] == "rows"), {"ways": []})
    return table(["", "time"], [[w["way"], spread(w) if w["median_s"] else "-"] for w in case["ways"]])


def of_ceilings(found: Found) -> str:
    rows = [[UNITS[k][0], UNITS[k][1], f"{v / 1e9:,.1f} {UNITS[k][2]}"] for k, v in found["ceilings"].items()]
    return table(["ceiling", "measured as", "found"], rows)


def of_fractions(found: Found) -> str:
    """What share of its ceiling each of our ways reaches on one thread."""
    rows = []
    for case in found["cases"]:
        for w in case["ways"]:
            if w["delivered"] is not None and w["threads"] == 1 and w["gives"] not in ("score", "mean", "tables"):
                shares = [percent(w["delivered"]), percent(w["done"]) if w["done"] != w["delivered"] else ""]
                rows.append([shape(case), w["way"], w["gives"], UNITS[w["ceiling"]][0], *shares])
    return table(["case", "way", "gives", "ceiling", "asked for", "done"], rows)


def of_memory(found: Found) -> str:
    cases = {c["name"]: c for c in found["cases"]}
    rows = []
    for m in found["memory"]:
        extra = f"{m['extra_bytes'] / 2**20:,.0f} MiB" if "extra_bytes" in m else "-"
        gives = "`verax.score`" if m["gives"] == "score" else m["gives"]
        result = f"{m['result_bytes'] / 2**20:,.0f} MiB" if m.get("result_bytes") else ""
        rows.append([shape(cases[m["case"]]) if m["case"] in cases else m["case"], m["way"], gives, extra, result])
    return table(["case", "way", "gives", "memory risen by", "of which the result"], rows)


def of_checks(found: Found) -> str:
    rows = []
    for c in found["checks"]:
        value = "-" if c["found"] is None else format(c["found"], c["form"])
        verdict = "not measured" if c["found"] is None else "reached" if c["reached"] else "**not reached**"
        rows.append([c["what"], c["target"], value, verdict])
    return table(["", "target", "found", ""], rows)


def of_compiling(found: Found) -> str:
    return table(["", "seconds"], [[name, f"{s:.2f}"] for name, s in found["compiling"].items()])


def of_machine(found: Found) -> str:
    m, ways = found["machine"], [w for c in found["cases"] for w in c["ways"]]
    ways += [point for g in found["growth"] for points in g["lines"].values() for point in points]
    ways = [w for w in ways if w["median_s"] is not None]
    busy = [w for w in ways if (w["others"] or 0) > 0.1]
    runs = " or ".join(str(n) for n in sorted({w["runs"] for w in ways}))
    first, last = (edge(c["when"] for c in found["cases"]) for edge in (min, max))
    return (
        f"{m['cpu']}, {m['cores']} cores, {first} to {last}. Medians of {runs} runs. Other processes used more than a "
        f"tenth of a core during {len(busy)} of {len(ways)} figures (`others` in the JSON), and at most "
        f"{max([0.0, *(w['others'] for w in busy)]):.1f} cores. "
        + ", ".join(f"{name} {version}" for name, version in found["versions"].items()) + "."
    )  # fmt: skip


def of_gpu() -> str:
    """The figures of benchmarks/gpu.py, where they are: what down, cases across."""
    path = HERE / "results" / "gpu.json"
    if not path.exists():
        return "No GPU figures are recorded here; `python3 benchmarks/gpu.py --out FILE` makes them."
    found = json.loads(path.read_text())
    cases = {name: _timings("", figures) for name, figures in found.items() if name.startswith(("all pairs", "mean"))}
    names = list(dict.fromkeys(name for figures in cases.values() for name in figures))
    rows = [[name, *(figures.get(name, "") for figures in cases.values())] for name in names]
    machine, peaks = found["machine"], found["peaks"]
    most = "; ".join(f"{name.replace(',', '')} {value:,.0f}" for name, value in peaks.items())
    text = f"{machine['device']}, torch {machine['torch']}; at most: {most}."
    return f"{table(['', *cases], rows)}\n\n{text}"


def of_sparse() -> str:
    """The figures of benchmarks/sparse.py: ways down, worlds across."""
    found = json.loads((HERE / "results" / "sparse.json").read_text())
    worlds = [*found["worlds"].values()]
    rows = [[way, *(_cost(w["ways"].get(way)) for w in worlds)] for way in worlds[0]["ways"]]
    head = [f"{name}: {w['meetings'] / 1e6:,.0f} million answers meet" for name, w in found["worlds"].items()]
    apart = [w["largest difference from DuckDB"] for w in worlds if "largest difference from DuckDB" in w]
    machine = found["machine"]
    versions = ", ".join(f"{name} {machine[name]}" for name in machine if name not in ("processor", "cores"))
    text = (
        f"Median of {found['runs']}; {found['load before']:.0f} processes ran or waited on {machine['cores']} cores "
        f"when it began, which makes processor seconds longer. {versions}."
        + (f" Largest difference from DuckDB: {max(apart):.0e}." if apart else "")
    )
    return f"{table(['', *head], rows)}\n\n{text}"


def of_whole() -> str:
    """The figures of benchmarks/whole.py: cases down, verax and what stands beside it across."""
    found = json.loads((HERE / "results" / "whole.json").read_text())
    rows = []
    for case, ways in found["cases"].items():
        mine, others = ways["verax"], {way: figures for way, figures in ways.items() if way != "verax"}
        beside = "; ".join(f"{way}: {_cost(figures, 'seconds')}" for way, figures in others.items())
        ratio = "; ".join(f"{mine['seconds']['median'] / f['seconds']['median']:.1f}" for f in others.values())
        rows.append([case, _cost(mine, "seconds"), beside, ratio])
    versions = ", ".join(f"{k} {v}" for k, v in found["machine"].items() if k not in ("processor", "cores"))
    text = (
        f"Processor seconds, median of {found['runs']}, and the most memory; load {found['load before']} when it "
        f"began. {versions}."
    )
    return f"{table(['', 'verax', 'beside it', 'times as long'], rows)}\n\n{text}"


def of_service() -> str:
    """The figures of benchmarks/service.py: databases down, what is handed in by library and service, then reading."""
    found = json.loads((HERE / "results" / "service.json").read_text())
    taken, read = [], []
    for name, case in found["cases"].items():
        for way, figures in (("`Rounds.take`", case["library"]), ("`verax serve`", case["submit"])):
            taken.append([name, way, f"{figures['per_s']:.0f}", *_waits(figures), f"{figures['cpu_ms']:.1f} ms"])
        rows = {
            "a live round, by 200 at once": case["live"], "a sealed round, by 20": case["settling"]["before"],
            "the same while it settles": case["settling"]["during"],
        }  # fmt: skip
        read += [[name, what, f"{figures['number']:,}", *_waits(figures)] for what, figures in rows.items()]
    times = {name: case["times the library"]["cpu"] for name, case in found["cases"].items()}
    said = " and ".join(f"{ratio:.2f} times ({name})" for name, ratio in times.items())
    machine = found["machine"]
    return (
        f"{found['agents']:,} agents hand in {found['tasks']:,} answers each, sealed and signed; to the service "
        f"{found['at once']} at once:\n\n{table(['', '', 'a second', 'p50', 'p99', 'processor'], taken)}\n\n"
        f"A submission costs the service's process {said} what it costs the library's.\n\nReading:\n\n"
        f"{table(['', '', 'reads', 'p50', 'p99'], read)}\n\n"
        f"{machine['cores']} cores for all of it, clients and databases too; {machine['load before']:.0f} processes "
        f"ran or waited there when it began,\nwhich makes waits longer. Python {machine['Python']}."
    )


def _waits(figures: Found) -> tuple[str, str]:
    return f"{figures['p50_ms']:.0f} ms", f"{figures['p99_ms']:.0f} ms"


def _cost(figures: Found | None, what: str = "processor seconds") -> str:
    if figures is None:
        return "not measured"
    seconds = figures[what]["median"]
    return f"{seconds:.{1 if seconds >= 10 or what != 'seconds' else 2}f} s, {figures['megabytes']:,} MB"


def _timings(name: str, found: Any) -> dict[str, str]:
    if isinstance(found, dict) and set(found) == {"median", "min", "max"}:
        return {name: f"{duration(found['median'])} ({duration(found['min'])} to {duration(found['max'])})"}
    if isinstance(found, dict):
        each = [_timings(f"{name}, {key}" if name else key, value) for key, value in found.items()]
        return {key: value for figures in each for key, value in figures.items()}
    return {name: f"{found:.0%}" if "share" in name else f"{found:,.0f}"}


TABLES = {
    "machine": of_machine, "totals": of_totals, "tables": of_tables, "score": of_score, "mean": of_mean,
    "million": of_million, "ce": of_rows, "ceilings": of_ceilings, "fractions": of_fractions,
    "memory": of_memory, "checks": of_checks, "compiling": of_compiling,
}  # fmt: skip


def page(text: str, found: Found) -> str:
    """The page with its tables as the figures have them."""

    def made(match: re.Match[str]) -> str:
        name = match[1]
        own = {"gpu": of_gpu, "sparse": of_sparse, "whole": of_whole, "service": of_service}
        text = own[name]() if name in own else TABLES[name](found)
        if text.count("\n") == 1:  # a header alone
            text = (
                f"Not measured yet: `python benchmarks/scoring.py --case {name} --out benchmarks/results/scoring.json`"
            )
        return f"<!-- table: {name} -->\n{text}\n<!-- end -->"

    return re.sub(r"<!-- table: (\w+) -->.*?<!-- end -->", made, text, flags=re.S)


# Pictures.


def pictures(found: Found) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
                         "grid.color": "#dddddd", "grid.linewidth": 0.6, "axes.axisbelow": True})  # fmt: skip
    if found["growth"]:
        _growth(plt, found)
    _fractions(plt, found)


def _growth(plt: Any, found: Found) -> None:
    """Time against agents, tasks and classes; and an agent's cost where pairs are not needed."""
    titles = {
        "agents": "All pairs: agents (1,000 tasks, 10 classes)", "tasks": "All pairs: tasks (100 agents, 10 classes)",
        "classes": "All pairs: classes (100 agents, 10,000 tasks)",
        "agents, mean over peers": "Mean over peers, an agent (1,000 tasks, 10 classes)",
    }  # fmt: skip
    rows, columns = -(-len(found["growth"]) // 2), min(2, len(found["growth"]))
    figure, axes = plt.subplots(
        rows, columns, figsize=(10 if columns > 1 else 7, 3.6 * rows), layout="constrained", squeeze=False
    )
    handles: dict[str, Any] = {}
    for axis in axes.flat[len(found["growth"]) :]:
        axis.set_visible(False)
    for g, axis in zip(found["growth"], axes.flat, strict=False):
        flat = "mean over peers" in g["by"]
        for name, points in g["lines"].items():
            colour, marker, line = STYLES[name]
            points = [p for p in points if p["median_s"] is not None]
            y = [p["median_s"] / (p["at"] * 1e-6 if flat else 1) for p in points]
            (handle,) = axis.plot([p["at"] for p in points], y, color=colour, marker=marker, ls=line, ms=6, lw=1.5)
            handles.setdefault(name, handle)
        axis.set(xscale="log", yscale="log", title=titles[g["by"]], xlabel=g["by"].split(",")[0])
        axis.set_ylabel("microseconds an agent" if flat else "seconds")
        if flat:
            axis.set_ylim(0.3, 300)
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=2, frameon=False)
    figure.savefig(PAGES[0].parent / "performance-growth.png", dpi=110)
    plt.close(figure)


def _fractions(plt: Any, found: Found) -> None:
    """Each way's share of the ceiling that bounds it."""
    points: dict[str, list[tuple[str, float, str]]] = {}
    for case in found["cases"]:
        for w in case["ways"]:
            if w["delivered"] is not None and w["threads"] == 1 and w["gives"] in ("totals", "scores", "with errors"):
                group = superscript(shape(case)) + ("" if w["gives"] == "totals" else f", {w['gives']}")
                points.setdefault(group, []).append((w["way"], w["delivered"], UNITS[w["ceiling"]][0]))
    lines = sum(len(p) for p in points.values()) + len(points)
    figure, axis = plt.subplots(figsize=(10, 0.22 * lines + 1.2), layout="constrained")
    at, ticks, handles = 0.0, [], {}
    for group in points.values():
        ticks.append(at + (len(group) - 1) / 2)
        for name, share, ceiling in group:
            colour, marker, _ = STYLES[name]
            axis.plot([1e-4, share], [at, at], color=colour, lw=1, alpha=0.4)
            handles[name] = axis.plot(share, at, color=colour, marker=marker, ms=7, ls="")[0]
            text = axis.text(share * 1.15, at, f"{percent(share)} of {ceiling}", va="center", fontsize=8)
            text.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0.5})
            at += 1
        at += 1
    axis.set_yticks(ticks, points)
    axis.set_ylim(at - 0.5, -1)
    axis.axvline(1, color="black", lw=1, zorder=0)
    axis.set(xscale="log", xlim=(1e-4, 20), xlabel="share of the ceiling that bounds it (log scale; 1 is the ceiling)")
    axis.grid(False, axis="y")
    figure.legend(handles.values(), handles, loc="outside upper center", ncols=4, frameon=False)
    figure.savefig(PAGES[0].parent / "performance-ceilings.png", dpi=110)
    plt.close(figure)


def superscript(text: str) -> str:
    """Powers as they are printed.

    >>> superscript("2 x 10^7 x 10")
    '2 x 10⁷ x 10'
    """
    return re.sub(r"\^(\d)", lambda m: "⁰¹²³⁴⁵⁶⁷⁸⁹"[int(m[1])], text)


def main() -> None:
    found = json.loads((HERE / "results" / "scoring.json").read_text())
    for path in PAGES:
        text = path.read_text()
        made = page(text, found)
        if "--check" not in sys.argv:
            path.write_text(made)
        elif made != text:
            sys.exit(f"docs/{path.name} is not what the results say: run python benchmarks/plot.py")
    if "--check" in sys.argv:
        return
    pictures(found)


if __name__ == "__main__":
    main()
