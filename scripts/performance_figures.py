"""The tables of docs/performance.md and what the README shows of them, as lists of lines; writes nothing."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

Report = dict[str, Any]

ORDER = ("prefill", "decode", "together", "whole", "warm_ttft", "ready", "first_answer")
PEERS = {"vllm": "vLLM", "transformers": "`generate`"}
STAGES = {
    "child": "in process",
    "http": "over HTTP",
    "start": "from start, caches of compiled code warm",
    "first start": "from start, caches of compiled code empty",
}
IN_README = {"prefill", "decode", "together", "warm_ttft", "ready", "whole"}


def metric_words(metric: str, output: int) -> str:
    """What a metric is, in words."""
    kind, _, size = metric.partition(" ")
    prompts, _, tokens = size.partition(" x ")
    count = f"{int(tokens):,}" if tokens else ""
    return {
        "prefill": f"prefill of {count} tokens",
        "decode": f"one token after {count}, alone",
        "together": f"one token of {prompts} answers after {count} each",
        "whole": f"{prompts} new prompts of {count}, {output} tokens each",
        "warm_ttft": f"first token of {count} just asked",
        "ready": "until ready",
        "first_answer": "until the first answer",
    }[kind]


def duration(seconds: float) -> str:
    """Seconds in a unit that suits them."""
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.1f} ms" if seconds >= 0.001 else f"{seconds * 1e3:.2f} ms"


def duration_spread(part: Report, name: str) -> str:
    """A median with its quartiles, in the unit that suits the median."""
    values = [part[f"{name}_{each}"] for each in ("median", "q1", "q3")]
    factor, digits, unit = (1, 2, "s") if values[0] >= 1 else (1e3, 1 if values[0] >= 0.01 else 2, "ms")
    median, low, high = (f"{value * factor:.{digits}f}" for value in values)
    return f"{median} ({low}-{high}) {unit}"


def goal_words(part: Report) -> str:
    """What was asked for, and whether it is there."""
    if part["goal"] is None:
        return ""
    sign = "at most" if part["is_at_most"] else "at least"
    stretch = f", hoped {part['stretch']:g}" if part["stretch"] is not None else ""
    return f"{sign} {part['goal']:g}{stretch}: {'reached' if part['is_reached'] else '**not reached**'}"


def in_order(summary: Iterable[Report]) -> list[Report]:
    """Stages as they are measured, in each metrics in one order."""
    stages = tuple(STAGES)
    return sorted(
        summary, key=lambda each: (stages.index(each["stage"]), ORDER.index(each["metric"].partition(" ")[0]))
    )


def peers_table(report: Report, peer: str) -> list[str]:
    """Kvist against one peer in all that was measured."""
    lines = ["| | what | Kvist | peer | in mode | ratio of each round | goal |", "|---|---|---|---|---|---|---|"]
    for part in in_order(each for each in report["summary"] if each["peer"] == peer):
        ours, theirs = duration_spread(part, "ours_s"), duration_spread(part, "theirs_s")
        ratio = f"**{part['ratio_median']:.2f}** ({part['ratio_q1']:.2f}-{part['ratio_q3']:.2f}, {part['ratio_count']})"
        mode = part["mode"].partition(" ")[2] or "-"
        words = metric_words(part["metric"], report["settings"]["output"])
        lines.append(
            f"| {STAGES[part['stage']]} | {words} | {ours} | {theirs} | {mode} | {ratio} | {goal_words(part)} |"
        )
    return lines


def goals_table(report: Report) -> list[str]:
    """Every metric that has a goal, on one line each."""
    lines = ["| | what | Kvist | peer | ratio | goal |", "|---|---|---|---|---|---|"]
    for part in in_order(report["summary"]):
        if part["goal"] is None or part["metric"].partition(" ")[0] not in IN_README:
            continue
        words = metric_words(part["metric"], report["settings"]["output"])
        ours, theirs = duration(part["ours_s_median"]), duration(part["theirs_s_median"])
        where = f"{PEERS[part['peer']]}, {STAGES[part['stage']].split(',')[0]}"
        sign = "<=" if part["is_at_most"] else ">="
        lines.append(
            f"| {where} | {words} | {ours} | {theirs} | **{part['ratio_median']:.2f}** | {sign} {part['goal']:g} |"
        )
    return lines


def failures(report: Report) -> list[str]:
    """Stages that ended early, so that nobody takes what is missing for what was not asked."""
    said = report.get("failures", [])
    return [f"Not all was measured: {each.splitlines()[0][:160]}" for each in said] + ([""] if said else [])


def limits_table(report: Report) -> list[str]:
    """What the machine does at most."""
    units = {"matrix product": "GFLOP/s"}
    lines = ["| limit | measured |", "|---|---|"]
    for limit in report["limits"]:
        median, low, high = (limit[f"per_s_{name}"] / 1e9 for name in ("median", "q1", "q3"))
        unit = units.get(limit["what"], "GB/s")
        lines.append(f"| {limit['what']} | {median:,.0f} ({low:,.0f}-{high:,.0f}) {unit} |")
    return lines


def profile_table(report: Report, case: str) -> list[str]:
    """One case by parts, what takes longest first; the step itself last."""
    lines = [
        "| part | calls | ms | share | GB/s | GFLOP/s | of what the machine does |",
        "|---|---|---|---|---|---|---|",
    ]
    parts = [part for part in report["summary"] if part["case"] == case]
    for part in sorted(parts, key=lambda each: (each["part"] == "step", -each["took_s_median"])):
        took = part["took_s_median"]
        rates = [f"{part[name] / took / 1e9:,.0f}" if part[name] else "" for name in ("bytes", "flops")]
        of_bound = "" if part["of_bound"] is None else f"{part['of_bound']:.0%}"
        name = "**all**" if part["part"] == "step" else part["part"]
        calls = "" if part["part"] in ("step", "between") else str(part["calls"])
        lines.append(
            f"| {name} | {calls} | {took * 1e3:.2f} | {part['share']:.0%} | {rates[0]} | {rates[1]} | {of_bound} |"
        )
    return lines


def profile_tables(report: Report) -> list[str]:
    """Every case that was profiled."""
    lines: list[str] = []
    for case in dict.fromkeys(part["case"] for part in report["summary"]):
        if case.startswith("sequence"):
            continue
        lines += ["", f"### {case[0].upper()}{case[1:]}", "", *profile_table(report, case)]
    return lines


def rounds_table(report: Report) -> list[str]:
    """What a script of bench/micro measured of single structures."""
    lines = ["| case | ms | ns per unit |", "|---|---|---|"]
    for part in report["summary"]:
        median, low, high = (part[f"took_cpu_s_{name}"] * 1e3 for name in ("median", "q1", "q3"))
        lines.append(f"| {part['case']} | {median:.3f} ({low:.3f}-{high:.3f}) | {part['ns_per_unit']:,.0f} |")
    return lines


def command_of(report: Report) -> str:
    """What was typed."""
    return " ".join(report["command"])


def page_sections(read: Callable[[str], Report], machine: Callable[[Report], str]) -> dict[str, Sequence[str]]:
    """The generated parts of docs/performance.md, by name."""
    peers, profile = read("peers-smollm2-cpu.json"), read("step-profile-smollm2-cpu.json")
    versions = ", ".join(f"{name} {value}" for name, value in sorted(peers["versions"].items()))
    about = [f"{machine(peers)}; {versions}. Made by", "", "```text", command_of(peers), "```", "", *failures(peers)]
    return {
        "vllm": [*about, *peers_table(peers, "vllm")],
        "transformers": peers_table(peers, "transformers"),
        "profile": [
            f"{machine(profile)}. Made by",
            "",
            "```text",
            command_of(profile),
            "```",
            "",
            *limits_table(profile),
            *profile_tables(profile),
        ],
    }
