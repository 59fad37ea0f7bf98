"""The report and the explorer, on cells whose figures were worked out by hand."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from kvtrace.errors import KvtraceError
from kvtrace.lab.explorer import write_site
from kvtrace.lab.report.charts import varied
from kvtrace.lab.report.regression import regression
from kvtrace.lab.report.write import write_report
from kvtrace.lab.sources import load_results
from kvtrace.reports.document import Document, Section
from kvtrace.reports.markdown import markdown
from tests.viewer.chromium import Tab

from .cells import Sweep, both_made, drawn, first_table, job, request, table


def written(directory: Path) -> str:
    write_report([directory], directory / "report")
    return (directory / "report" / "report.md").read_text()


def test_the_figures_of_a_cell_are_those_of_its_records(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, policy=["fcfs"])
    sweep.cell([*job("a", 0, 10, 50), *job("b", 100, 30, 150)])
    (row,) = table(written(sweep.close()), "Cells")
    # a: 0-50, 150-200. b: 100-250, 350-500. Four requests of 5 tokens in 0.5 s
    assert row["makespan s"] == "0.5"
    assert row["output tok/s"] == "40"
    assert row["requests/s"] == "8"
    assert row["turn mean ms"] == "100"
    assert row["JCT mean s"] == "0.3"  # 0.2 and 0.4
    assert row["JCT p99 s"] == "0.4"
    assert row["TTFT mean ms"] == "20"
    assert row["TPOT ms"] == "20"  # (50 - 10) / 4 = 10 and (150 - 30) / 4 = 30
    assert row["cached share"] == "0.4"


def test_failed_requests_are_counted_and_their_jobs_not_completed(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, policy=["fcfs"])
    lost = request("c", 0, 0, 1, 1, first_token_ns=None, last_token_ns=None, output_tokens=0, error="boom", last=True)
    sweep.cell([*job("a", 0, 10, 50), lost])
    text = written(sweep.close())
    (row,) = table(text, "Cells")
    assert (row["jobs"], row["JCT mean s"]) == ("1", "0.2")
    assert "1 requests failed; 1 of 2 jobs are compared" in text


def test_differences_are_paired_by_job_and_baseline_is_the_first_value(tmp_path: Path) -> None:
    """GIVEN eight jobs that both policies completed, and another one of each THEN the eight are compared."""
    both = [f"s{number}" for number in range(8)]
    sweep = Sweep(tmp_path, policy=["fcfs", "priority"], rate=["1.0"])
    sweep.cell([turn for name in [*both, "c"] for turn in job(name, 0, 10, 55)], rate=1.0)
    sweep.cell([turn for name in ["d", *both] for turn in job(name, 0, 20, 50)], policy="priority", rate=1.0)
    text = written(sweep.close())
    jct, ttft = table(text, "Against fcfs")
    assert (jct["jobs"], ttft["jobs"]) == ("8", "8")
    assert (jct["fcfs"], jct["difference"], jct["95% interval"]) == ("0.21", "-0.01", "-0.01 to -0.01")
    assert (jct["share"], jct["verdict"]) == ("-4.8%", "lower")
    assert (ttft["fcfs"], ttft["difference"], ttft["verdict"]) == ("10", "10", "higher")


def test_latencies_by_turn_are_of_jobs_that_went_so_far(tmp_path: Path) -> None:
    """GIVEN two jobs of two turns and one of one THEN the first turn's mean leaves out the one that ended there."""
    sweep = Sweep(tmp_path, policy=["fcfs"])
    longer = [request("b", 0, 0, 5, 100), request("b", 1, 200, 205, 400, last=True)]
    sweep.cell([*job("a", 0, 10, 60), *longer, request("c", 0, 0, 5, 999, last=True)])
    (row,) = table(written(sweep.close()), "Latency by turn")
    assert (row["turn 1"], row["turn 2"], row["last / first"]) == ("80", "130", "1.625")


def test_repeats_are_averaged_with_their_range(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, policy=["fcfs"])
    for repeat, took in enumerate((50, 60, 100)):
        sweep.cell(job("a", 0, 10, took), repeat=repeat)
    text = written(sweep.close())
    (row,) = table(text, "Repeats")
    assert (row["repeats"], row["JCT mean s"]) == ("3", "0.24 (0.2 to 0.3)")
    (row,) = table(text, "Latency by turn")
    assert (row["turn 1"], row["last / first"]) == ("70", "1")


def test_few_pairs_have_a_difference_and_no_verdict(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, policy=["fcfs", "priority"])
    sweep.cell([*job("a", 0, 10, 50), *job("b", 0, 10, 60)])
    sweep.cell([*job("a", 0, 10, 45), *job("b", 0, 10, 55)], policy="priority")
    jct, _ = table(written(sweep.close()), "Against fcfs")
    assert (jct["difference"], jct["95% interval"], jct["verdict"]) == ("-0.01", "-", "too few pairs")


def test_the_best_of_comparable_cells_is_marked(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, policy=["fcfs", "priority"], rate=["1.0", "2.0"])
    sweep.cell(job("a", 0, 10, 50), rate=1.0)
    sweep.cell(job("a", 0, 10, 40), policy="priority", rate=1.0)
    sweep.cell(job("a", 0, 10, 30), rate=2.0)
    sweep.cell(job("a", 0, 10, 35), policy="priority", rate=2.0)
    text = written(sweep.close())
    assert "![mean job completion time (s)](study-jct_s_mean.svg)" in text  # against the rate, one line a policy
    assert "<svg" in (tmp_path / "report" / "study-jct_s_mean.svg").read_text()
    cells = text.partition("### Cells")[2].partition("\n###")[0]
    heading, _, *rows = [line.split(" | ") for line in cells.splitlines() if line.startswith("|")]
    column = heading.index("JCT mean s")
    marked = {tuple(row[:2]): row[column].startswith("**") for row in rows}
    assert marked == {
        ("| fcfs", "1.0"): False,
        ("| priority", "1.0"): True,
        ("| fcfs", "2.0"): True,
        ("| priority", "2.0"): False,
    }


def test_a_plot_is_against_what_differs_between_the_phases_of_a_cell(tmp_path: Path) -> None:
    def phases(block: int) -> list[dict[str, Any]]:
        described = {"sha256": "one", "jobs": 1, "requests": 1}
        lost = {"small": 1024, "large": 4096}
        return [
            {
                "phase": number,
                "name": name,
                **described,
                "parameters": {"block": block, "evicted": lost[name], "seed": 1},
            }
            for number, name in enumerate(lost)
        ]

    sweep = Sweep(tmp_path, policy=["fcfs"], block_size=["16", "64"])
    for block in (16, 64):  # a sweep tells the workload the cell's block size
        records = [request("a", 0, 0, 9, 50, phase=phase, last=True, cached_tokens=0) for phase in (0, 1)]
        sweep.cell(records, block_size=block, phases=("small", "large"), workloads=phases(block))
    assert varied(load_results(sweep.close()), "policy") == ["evicted", "block_size"]
    text = written(tmp_path)
    assert "study-jct_s_mean.svg" in text
    assert "study-cached_share.svg" not in text  # nothing was cached anywhere


def test_cells_that_ran_once_say_so(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, policy=["fcfs", "priority"])
    sweep.cell(job("a", 0, 10, 50))
    sweep.cell(job("a", 0, 10, 40), policy="priority")
    assert "Each cell ran once" in written(sweep.close())
    for policy in ("fcfs", "priority"):
        sweep.cell(job("a", 0, 10, 45), policy=policy, repeat=1)
    (tmp_path / "studies" / "study.json").unlink()
    (tmp_path / "studies").rmdir()
    assert "Each cell ran once" not in written(sweep.close())


@pytest.mark.parametrize(("short_ms", "intercept", "warned"), [(10.0, "5", False), (4.0, "-3", True)])
def test_a_line_that_falls_below_nothing_is_warned_of(
    short_ms: float, intercept: str, warned: bool, tmp_path: Path
) -> None:
    sweep = Sweep(tmp_path, policy=["fcfs"])
    sweep.cell(job("a", 0, 10, 50))
    (result,) = load_results(sweep.close())
    steps = [(100.0, short_ms), (200.0, 2 * short_ms - float(intercept)), (300.0, 3 * short_ms - 2 * float(intercept))]
    result.steps = (
        3.0,
        sum(x for x, _ in steps),
        sum(y for _, y in steps),
        sum(x * x for x, _ in steps),
        sum(x * y for x, y in steps),
        sum(y * y for _, y in steps),
    )
    ((title, blocks),) = regression([result])
    text = markdown(Document("one", "", [Section("study", "study", [Section(title, "part", blocks)])], ""))
    (row,) = table(text, "Step time against tokens, by capacity")
    assert row["ms a step"] == intercept
    assert ("takes no negative time" in text) == warned


def test_failed_cells_are_shown_with_their_error(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, policy=["fcfs", "priority"])
    sweep.cell(job("a", 0, 10, 50))
    sweep.cell(policy="priority", error="no <b>memory</b> | at all\x1b[31m")
    text = written(sweep.close())
    assert "1 of 2 cells ran, 1 failed" in text
    assert [row["jobs"] for row in table(text, "Cells")] == ["1", "failed"]
    assert "1 of 2 cells failed and are not compared" in text
    page = (tmp_path / "report" / "report.html").read_text()
    assert "no &lt;b&gt;memory&lt;/b&gt; | at all" in page
    assert "\x1b" not in page + text
    assert "<b>memory" not in text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"workload": {"sha256": "other"}}, "different prompts or arrivals"),
        ({"kv_tokens": 3200}, r"different numbers of blocks \(100, 200\)"),
        ({"facts": {"software": {"python": "3.11", "vllm": "0.26.0"}}}, r"different software \(vllm 0.26.0, 0.32.0\)"),
        ({"facts": {"device": "another"}}, "different devices"),
    ],
)
def test_unfair_comparisons_are_warned_of(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, policy=["fcfs", "priority"])
    sweep.cell(job("a", 0, 10, 50))
    sweep.cell(job("a", 0, 10, 50), policy="priority", **change)
    assert re.search(message, written(sweep.close()))


def test_fair_comparisons_are_not_warned_of(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, policy=["fcfs", "priority"])
    sweep.cell(job("a", 0, 10, 50))
    sweep.cell(job("a", 0, 10, 50), policy="priority")
    assert "Is it fair?" not in written(sweep.close())


def test_a_late_client_is_warned_of(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, policy=["fcfs"])
    sweep.cell([request("a", 0, 80, 90, 99, due_ns=0, last=True)])
    assert "sent a request 80 ms late" in written(sweep.close())


def test_several_late_clients_are_one_sentence(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, policy=["fcfs", "priority"])
    for policy, repeat, late in (("fcfs", 0, 80), ("fcfs", 1, 20), ("priority", 0, 60), ("priority", 1, 95)):
        sent = [request("a", 0, late, late + 10, late + 20, due_ns=0, last=True)]
        sweep.cell(sent, policy=policy, repeat=repeat)
    text = written(sweep.close())
    assert text.count("ms late") == 1
    assert "in 3 of 4 runs of a workload the client sent a request 60 to 95 ms late (most in priority, w)" in text


def test_the_best_of_repeats_is_told_for_each(tmp_path: Path) -> None:
    """They have other requests: the lighter ones are not the better setting."""
    sweep = Sweep(tmp_path, policy=["fcfs", "priority"])
    for policy, repeat, turn_ms in (("fcfs", 0, 50), ("fcfs", 1, 90), ("priority", 0, 60), ("priority", 1, 80)):
        sweep.cell(job("a", 0, 10, turn_ms), policy=policy, repeat=repeat)
    head, *rows = first_table(written(sweep.close()).partition("### Cells")[2], marks=True)
    column = head.index("JCT mean s")
    marked = {(row[0], row[1]) for row in rows if row[column].startswith("**")}
    assert marked == {("fcfs", "0"), ("priority", "1")}


def test_phases_of_several_kinds_have_their_own_panels(tmp_path: Path) -> None:
    def phases() -> list[dict[str, Any]]:
        described = {"sha256": "one", "jobs": 1, "requests": 1}
        return [
            {"phase": 0, "name": "fixed", "parameters": {"kind": "fixed", "prompt": 9}, **described},
            {"phase": 1, "name": "zipf", "parameters": {"kind": "zipf", "longest": 90}, **described},
        ]

    sweep = Sweep(tmp_path, compare=None, block_size=["16", "32"])
    for block, ttft in ((16, 5), (32, 9)):
        records = [request("a", 0, 1000 * n, 1000 * n + ttft, 1000 * n + 50, phase=n, last=True) for n in (0, 1)]
        sweep.cell(records, block_size=block, phases=("fixed", "zipf"), workloads=phases())
    text = written(sweep.close())
    assert varied(load_results(tmp_path), None) == ["block_size"]
    assert "study-ttft_ms_mean.svg" in text
    drawn = (tmp_path / "report" / "study-ttft_ms_mean.svg").read_text()
    assert all(f"<!-- {name} -->" in drawn for name in ("fixed", "zipf"))


def test_each_phase_is_held_against_its_own_prediction(tmp_path: Path) -> None:
    def records(first: int, second: int) -> list[dict[str, Any]]:
        return [
            request("a", 0, 1000 * n, 1000 * n + 5, 1000 * n + end, phase=n, last=True)
            for n, end in enumerate((first, second))
        ]

    phases = [
        {"phase": n, "name": name, "sha256": "one", "jobs": 1, "requests": 1, "parameters": {}}
        for n, name in enumerate(("x", "y"))
    ]
    sweep = Sweep(tmp_path, policy=["fcfs", "priority"])
    for policy, measured, predicted in (("fcfs", (100, 200), (110, 190)), ("priority", (150, 150), (90, 160))):
        for ends, made in ((measured, False), (predicted, True)):
            sweep.cell(records(*ends), policy=policy, predicted=made, phases=("x", "y"), workloads=phases)
    text = written(sweep.close())
    rows = table(text, "Predicted cells")
    assert [(row["policy"], row["phase"], row["JCT error"]) for row in rows] == [
        ("fcfs", "0: x", "+10.0%"),
        ("fcfs", "1: y", "-5.0%"),
        ("priority", "0: x", "-40.0%"),
        ("priority", "1: y", "+6.7%"),
    ]
    assert "4 phases of cells are also measured" in text
    # x is slower with priority, and predicted to be faster; y is faster both times
    assert "2 pairs of cells differ in policy only; prediction orders 1 as measured." in text


def test_cold_and_warm_passes_and_phase_orders_are_set_side_by_side(tmp_path: Path) -> None:
    def phases(*names: str) -> list[dict[str, Any]]:
        described = {"sha256": "one", "jobs": 1, "requests": 1, "parameters": {}}
        return [{"phase": number, "name": name, **described} for number, name in enumerate(names)]

    def one(phase: int, ttft: int) -> dict[str, Any]:
        return request("a", 0, 1000 * phase, 1000 * phase + ttft, 1000 * phase + 50, phase=phase, last=True)

    sweep = Sweep(tmp_path, compare=None, phases=["x+y+x", "y+x+x"])
    sweep.cell([one(0, 9), one(1, 7), one(2, 3)], phases=("x", "y", "x"), workloads=phases("x", "y", "x"))
    sweep.cell([one(0, 8), one(1, 5), one(2, 4)], phases=("y", "x", "x"), workloads=phases("y", "x", "x"))
    text = written(sweep.close())
    warm = [(row["TTFT cold ms"], row["TTFT warm ms"]) for row in table(text, "Cold and warm")]
    assert warm == [("9", "3"), ("5", "4")]
    orders = [
        (row["workload"], row["place"], row["TTFT mean ms"]) for row in table(text, "Does the order of phases matter?")
    ]
    assert ("y", "1", "8") in orders
    assert ("y", "2", "7") in orders


def test_phases_in_another_order_are_compared_with_themselves(tmp_path: Path) -> None:
    """GIVEN cells that send x and y, y twice, in two orders THEN x is compared with x, and a second y with a second."""

    def phases(*names: str) -> list[dict[str, Any]]:
        described = {"sha256": "one", "jobs": 8, "requests": 8, "parameters": {}}
        return [{"phase": number, "name": name, **described} for number, name in enumerate(names)]

    def sent(phase: int, ttft: int) -> list[dict[str, Any]]:
        begin = 1000 * phase
        return [request(f"s{n}", 0, begin, begin + ttft, begin + ttft + 50, phase=phase, last=True) for n in range(8)]

    sweep = Sweep(tmp_path, compare="phases", phases=["x+y+y", "y+y+x"])
    for names, ttfts in ((("x", "y", "y"), (10, 20, 30)), (("y", "y", "x"), (21, 31, 11))):
        records = [record for phase, ttft in enumerate(ttfts) for record in sent(phase, ttft)]
        sweep.cell(records, phases=names, workloads=phases(*names))
    text = written(sweep.close())
    rows = [row for row in table(text, "Against x+y+y") if row["of"] == "TTFT (ms)"]
    found = {row["workload"]: (row["x+y+y"], row["difference"]) for row in rows}
    assert found == {"x": ("10", "1"), "y": ("20", "1"), "y, again": ("30", "1")}
    for ttft in (10, 20, 30):
        assert f"| **{ttft}** |" in text
        assert f"| **{ttft + 1}** |" not in text


def in_column(title: str) -> str:
    """A JavaScript expression: the text of the cell of `row` below that title."""
    heads = "[...document.querySelectorAll('thead th')]"
    return f"row.cells[{heads}.findIndex(head => head.textContent.startsWith('{title}'))].textContent"


def test_the_explorer_has_every_run_and_its_filters(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path / "sweep", policy=["fcfs", "priority"])
    parameters = {"workload": {"parameters": {"kind": "agent", "rate": 2.0}}}
    sweep.cell(job("a", 0, 10, 50), **parameters)
    sweep.cell(policy="priority", error="</script><script>alert(1)</script>", phases=("w",))
    site = tmp_path / "site"
    assert write_site([sweep.close()], site) == 2
    data = json.loads((site / "runs.json").read_text())
    done, failed = sorted(data["runs"], key=lambda run: run["status"], reverse=True)
    assert {name: done[name] for name in data["filters"]} == {
        "study": "study",
        "made": "measured",
        "model": "tiny",
        "capacity": 1600,
        "workload": "w",
        "requests": 9,
        "cache": "cold",
        "policy": "fcfs",
        "rate": 2.0,
        "block_size": 16,
        "max_num_seqs": 256,
        "max_num_batched_tokens": None,
        "status": "ok",
    }
    assert done["figures"]["jct_s_mean"] == 0.2
    assert failed["error"].startswith("</script>")
    page = (site / "index.html").read_text()
    assert page.count("</script>") == 2  # the page's own
    assert "http" not in re.sub(r"<title>.*?</title>", "", page)


def test_the_explorer_filters_and_sorts_in_a_browser(tab: Tab, tmp_path: Path) -> None:
    sweep = Sweep(tmp_path / "sweep", policy=["fcfs", "priority", "ttl-pin"])
    for policy, turn_ms in (("fcfs", 50), ("priority", 30), ("ttl-pin", 40)):
        sweep.cell(job("a", 0, 10, turn_ms), policy=policy)
    sweep.cell(policy="fcfs", error="<img src=x>", seed=2)
    write_site([sweep.close()], tmp_path / "site")
    column = "[...document.querySelectorAll('tbody tr')].map(row => " + in_column("{}") + ")"
    browser = tab()
    browser.open(tmp_path / "site" / "index.html")
    assert len(browser.evaluate(column.format("policy"))) == 4
    assert "model tiny" in browser.texts("#same")[0], "what is the same everywhere takes no column"
    assert browser.evaluate("document.querySelectorAll('tbody img').length") == 0
    head = "[...document.querySelectorAll('th button')].find(button => button.textContent.startsWith('JCT mean'))"
    browser.evaluate(f"{head}.click()")
    jct = browser.evaluate(f"{column.format('policy')}.slice(0, 3)")
    assert jct == ["priority", "ttl-pin", "fcfs"]  # 0.16, 0.18 and 0.2 s
    marked = "[...document.querySelectorAll('td.best')].map(cell => cell.parentElement).map(row => {})"
    assert set(browser.evaluate(marked.format(in_column("policy")))) == {"priority"}
    points = "[...document.querySelectorAll('#chart .point')].map(point => point.textContent)"
    assert sorted(browser.evaluate(points)) == [
        "fcfs, w, JCT mean s 0.2",
        "priority, w, JCT mean s 0.16",
        "ttl-pin, w, JCT mean s 0.18",
    ]
    select = "const s = document.querySelector('select[name=policy]'); s.value = 'fcfs';"
    browser.evaluate(f"(() => {{ {select} s.dispatchEvent(new Event('change')); }})()")
    assert "policy fcfs" in browser.texts("#same")[0]
    assert browser.evaluate("document.getElementById('count').textContent") == "2 of 4 runs"
    assert not browser.console


def test_the_explorer_marks_the_best_of_cells_that_were_sent_the_same(tab: Tab, tmp_path: Path) -> None:
    sweep = Sweep(tmp_path / "sweep", policy=["fcfs", "priority"])
    for policy, turn_ms in (("fcfs", 50), ("priority", 30)):
        sweep.cell(job("a", 0, 10, turn_ms), policy=policy)
    sweep.cell(job("a", 0, 10, 12), seed=2, workload={"name": "light", "sha256": "two"})  # nothing to compare it with
    write_site([sweep.close()], tmp_path / "site")
    browser = tab()
    browser.open(tmp_path / "site" / "index.html")
    marked = "[...document.querySelectorAll('td.best')].map(cell => cell.parentElement).map(row => {})"
    assert set(browser.evaluate(marked.format(in_column("profile")))) == {"w"}
    assert set(browser.evaluate(marked.format(in_column("policy")))) == {"priority"}


@pytest.mark.parametrize("width", [1000, 1280])
def test_the_explorer_fits_a_window(tab: Tab, tmp_path: Path, width: int) -> None:
    # GIVEN runs that differ in policy, rate, profile and KV budget
    sweep = Sweep(tmp_path / "sweep", policy=["fcfs", "priority"], kv_tokens=[800, 1600])
    for policy in ("fcfs", "priority"):
        for number, tokens in enumerate((800, 1600)):
            workload = {"name": f"agents-{number}", "parameters": {"kind": "agent", "rate": 1.0 + number}}
            sweep.cell(job("a", 0, 10, 50), policy=policy, kv_tokens=tokens, workload=workload)
    write_site([sweep.close()], tmp_path / "site")
    browser = tab(width)
    browser.open(tmp_path / "site" / "index.html")
    # THEN the table and the page are no wider than the window
    table, room = browser.evaluate(
        "(() => { const m = document.querySelector('main'); return [m.scrollWidth, m.clientWidth]; })()"
    )
    assert table <= room
    assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_directory_without_results_says_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(KvtraceError, match=r"kvtrace lab run MATRIX\.toml"):
        write_report([tmp_path], tmp_path / "report")


def test_draws_of_predicted_cells_stand_beside_their_figures(tmp_path: Path) -> None:
    text = written(drawn(tmp_path))
    rows = table(text, "Draws")
    assert [(row["made"], row["draws"]) for row in rows] == [("predicted", "8")] * 4
    # the standard deviation of 8 numbers in a row is 2.449, Student's quantile at 7 about 2.36: 5.77 steps each way
    shown = {(row["policy"], row["rate"]): row["JCT mean s"] for row in rows}
    assert shown["fcfs", "1.0"] == "0.3 (0.2942 to 0.3058)"
    assert shown["priority", "2.0"] == "0.26 (0 to 0.8372)"  # no job takes less than nothing
    assert {row["cached share"] for row in rows} == {"-"}  # which was not drawn
    assert "### Repeats" not in text
    assert "how much is not known without repeats" not in text


def test_a_predicted_difference_is_held_against_what_two_runs_differ_by(tmp_path: Path) -> None:
    text = written(drawn(tmp_path))
    runs = {(row["rate"], row["of"]): row for row in table(text, "Against fcfs, between two runs")}
    assert {row["policy"] for row in runs.values()} == {"priority"}
    sure, unsure = runs["1.0", "JCT mean s"], runs["2.0", "JCT mean s"]
    # 5.77 steps each way, of both: 8.16
    assert (sure["difference"], sure["95% interval"], sure["verdict"]) == ("-0.1", "-0.1082 to -0.09184", "lower")
    assert (unsure["difference"], unsure["verdict"]) == ("-0.04", "within what two runs differ by")
    assert runs["1.0", "TTFT mean ms"]["verdict"] == "same"
    jobs = {(row["rate"], row["of"]): row["verdict"] for row in table(text, "Against fcfs")}
    assert jobs["1.0", "JCT (s)"] == "lower"
    assert jobs["2.0", "JCT (s)"] == "lower, within what two runs differ by"


def test_a_difference_that_draws_turn_round_is_marked(tmp_path: Path) -> None:
    directory = drawn(tmp_path)
    [path] = [each for each in directory.glob("cells/priority-*/facts.json") if '"rate": 1.0' in cell_of(each)]
    told = json.loads(path.read_text())
    told["predicted"]["draws"] = [{"jct_s_mean": 0.5 + 0.001 * number} for number in range(8)]  # fcfs has 0.3
    path.write_text(json.dumps(told))
    [row] = [
        each for each in table(written(directory), "Against fcfs") if (each["rate"], each["of"]) == ("1.0", "JCT (s)")
    ]
    assert row["verdict"] == "lower, within what two runs differ by"


def test_draws_of_repeats_are_compared_repeat_by_repeat(tmp_path: Path) -> None:
    """Repeats have other requests, so a difference between them is not one of runs."""
    sweep = Sweep(tmp_path, policy=["fcfs", "priority"])
    for repeat, base in enumerate((0.3, 3.0)):
        for policy, more in (("fcfs", 0.0), ("priority", 0.1)):
            draws = [{"jct_s_mean": base + more + 0.001 * (number - 3.5)} for number in range(8)]
            facts = {"predicted": {"time_from": "h100.duckdb", "notes": [], "draws": draws}}
            sweep.cell(job("a", 0, 10, 50), policy=policy, repeat=repeat, predicted=True, facts=facts)
    text = written(sweep.close())
    rows = table(text, "Against fcfs, between two runs")
    assert [(row["repeat"], row["fcfs"], row["difference"], row["verdict"]) for row in rows] == [
        ("0", "0.3", "0.1", "higher"),
        ("1", "3", "0.1", "higher"),
    ]
    assert [row["repeat"] for row in table(text, "Draws")] == ["0", "1", "0", "1"]


def cell_of(path: Path) -> str:
    return path.with_name("cell.json").read_text()


def test_cells_that_were_not_drawn_have_no_table_of_draws(tmp_path: Path) -> None:
    text = written(both_made(tmp_path))
    assert "### Draws" not in text
    assert "### Against fcfs, between two runs" not in text
    assert "with draws" not in text


def test_measured_figures_are_counted_that_lie_within_the_draws(tmp_path: Path) -> None:
    directory = both_made(tmp_path)
    for path in directory.glob("cells/*-predicted/facts.json"):
        told = json.loads(path.read_text())
        # errors are 20, 10, 0 and 80 ms
        told["predicted"]["draws"] = [{"jct_s_mean": 0.3 + 0.002 * (number - 3.5)} for number in range(8)]
        path.write_text(json.dumps(told))
    # 0.3 with 0.0115 each way; measured 0.3, 0.2, 0.3, 0.26
    assert "Of the 4 with draws, 2 are measured within what two runs differ by." in written(directory)


def test_the_explorer_shows_draws_beside_the_figure(tab: Tab, tmp_path: Path) -> None:
    write_site([drawn(tmp_path / "sweep")], tmp_path / "site")
    runs = json.loads((tmp_path / "site" / "runs.json").read_text())["runs"]
    assert {run["draws"] for run in runs} == {8}
    mean, low, high = next(run for run in runs if run["rate"] == 1.0 and run["policy"] == "fcfs")["spreads"][
        "jct_s_mean"
    ]
    assert (mean, low, high) == (pytest.approx(0.3), pytest.approx(0.2942, abs=1e-4), pytest.approx(0.3058, abs=1e-4))
    browser = tab()
    browser.open(tmp_path / "site" / "index.html")
    column = "[...document.querySelectorAll('tbody tr')].map(row => " + in_column("JCT mean") + ")"
    assert "0.30.294\N{EN DASH}0.306" in browser.evaluate(column)
    titles = "[...document.querySelectorAll('#chart .point')].map(point => point.textContent)"
    assert any("draws 0.294 to 0.306" in title for title in browser.evaluate(titles))
    assert browser.evaluate("document.querySelectorAll('#chart .whisker').length") == 4
    assert not browser.console


def test_predicted_cells_are_marked_and_held_against_measured_ones(tmp_path: Path) -> None:
    text = written(both_made(tmp_path))
    rows = table(text, "Cells")
    assert [row["made"] for row in rows] == ["measured", "predicted"] * 4
    assert "4 of 4 cells ran, 0 failed. Not measured but predicted by replay: 4 of 4 cells ended, 0 failed." in text
    assert "step times of h100.duckdb (4 of 4 cells)" in text
    # JCT is two turns and 0.1 s: 0.3, 0.2, 0.3, 0.26 measured; errors of 20, 10, 0 and 80 ms
    errors = [float(row["JCT error"].strip("%+")) for row in table(text, "Predicted cells")]
    assert errors == [6.7, 0.0, 5.0, 30.8]  # by policy, then rate
    assert "Mean absolute error of the mean JCT: 10.6%" in text
    assert "2 pairs of cells differ in policy only; prediction orders 1 as measured." in text
    compared = table(text, "Against fcfs")
    assert {(row["made"], row["rate"]) for row in compared} == {
        (made, rate) for made in ("measured", "predicted") for rate in ("1.0", "2.0")
    }
    assert "fcfs (predicted)" in (tmp_path / "report" / "study-jct_s_mean.svg").read_text()


def test_the_explorer_marks_predicted_runs(tmp_path: Path) -> None:
    site = tmp_path / "site"
    write_site([both_made(tmp_path / "sweep")], site)
    runs = json.loads((site / "runs.json").read_text())["runs"]
    assert sorted(run["made"] for run in runs) == ["measured"] * 4 + ["predicted"] * 4
    assert len({run["cell"] for run in runs}) == 8
