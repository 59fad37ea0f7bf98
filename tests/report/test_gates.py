"""Gates: what passes, what fails, and what recordings cannot tell."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from kvtrace.cli.main import app
from kvtrace.errors import KvtraceError
from kvtrace.reports.compare import compare
from kvtrace.reports.gates import Judgement, judge, read_gate
from kvtrace.reports.metrics import METRICS

from .conftest import HOSTILE, MakeTrace, run_sql

BY_TURN = "UPDATE request SET {} = {} + (request % 5) * {} * 1000000;"
"""Changes times of some turns only, so that differences have intervals of some width."""


@pytest.fixture(scope="module")
def again(make_trace: MakeTrace) -> list[Path]:
    """A recorded twice more: first tokens come 1 ms later, and as before."""
    return [make_trace(run_sql(slower_ms=1), "again"), make_trace(run_sql(), "again")]


def only(condition: str, base: Path, other: Path, again: list[Path] | None = None) -> Judgement:
    (judgement,) = judge([read_gate(condition)], compare([base, other], None, again or []))
    return judgement


def idle(requests: int, seconds: float) -> str:
    """The second half of a run of so many requests comes that much later."""
    later = int(seconds * 1e9)
    half = requests // 2
    return f"""
    UPDATE request SET arrival_ns = arrival_ns + {later}, queued_ns = queued_ns + {later},
        scheduled_ns = scheduled_ns + {later}, first_token_ns = first_token_ns + {later},
        finished_ns = finished_ns + {later} WHERE request > {half};
    UPDATE step_schedule SET start_ns = start_ns + {later}, scheduled_ns = scheduled_ns + {later} WHERE step > {half};
    UPDATE step_update SET update_ns = update_ns + {later}, end_ns = end_ns + {later} WHERE step > {half};
    """


@pytest.mark.parametrize(
    ("condition", "verdict"),
    [
        ("ttft_mean > +5%", "failed"),  # 25 ms of 29.5
        ("ttft_mean > 23", "failed"),
        ("ttft_mean > +24.5 ms", "no verdict"),  # less than the 1 ms of noise beyond the limit
        ("ttft_mean > 90%", "passed"),
        ("ttft_mean < -5%", "passed"),
        ("hit_rate < -2pp", "passed"),
        ("step_p50 > 1%", "passed"),
        ("ttft_p99 > +5%", "no verdict"),  # 40 pairs
    ],
)
def test_a_gate_fails_if_the_difference_is_beyond_its_limit_and_the_noise(
    condition: str, verdict: str, base: Path, again: list[Path], make_trace: MakeTrace
) -> None:
    slower = make_trace(run_sql(slower_ms=25))
    assert only(condition, base, slower, again).verdict == verdict


def test_fewer_hits_fail_in_percentage_points(base: Path, again: list[Path], make_trace: MakeTrace) -> None:
    fewer = make_trace(run_sql() + "UPDATE prefix_lookup SET local_hit_tokens = local_hit_tokens // 2")
    judgement = only("hit_rate < -2pp", base, fewer, again)
    assert (judgement.verdict, judgement.change.partition(" (")[0]) == ("failed", "-8.368pp")  # 780 and 380 of 4,780


def test_a_limit_inside_the_interval_has_no_verdict(base: Path, again: list[Path], make_trace: MakeTrace) -> None:
    mixed = make_trace(run_sql() + BY_TURN.format("first_token_ns", "first_token_ns", 10))
    judgement = only("ttft_mean > 20 ms", base, mixed, again)  # 20 ms in the mean, by 0 to 40
    assert judgement.verdict == "no verdict"
    assert judgement.reason.startswith("too few requests: the limit is inside")


@pytest.mark.parametrize("count", [0, 1])
def test_without_repetitions_nothing_fails(count: int, base: Path, again: list[Path], make_trace: MakeTrace) -> None:
    judgement = only("ttft_mean > +5%", base, make_trace(run_sql(slower_ms=25)), again[:count])
    assert judgement.verdict == "no verdict"
    assert judgement.reason.startswith("too few repetitions: A was recorded")


def test_a_run_that_idled_leads_nobody(make_trace: MakeTrace) -> None:
    """GIVEN a run of 50 s in which no request came for further 150 s THEN the other is not told to be 296% faster."""
    quiet = make_trace(run_sql(sessions=125) + idle(500, 149.5), "quiet")
    steady = make_trace(run_sql(sessions=125), "steady")
    comparison = compare([quiet, steady])
    throughput = next(row for row in comparison.rows if row.metric.key == "output_throughput")
    first, second = throughput.values
    assert first
    assert second
    assert second / first - 1 == pytest.approx(2.96, abs=0.005)
    assert throughput.differences == (None,)
    told = "idle time: no request for 149.3 of 200.0 s against 0.0 of 50.5 s"  # from 26.249 to 175.5 s
    assert comparison.warnings == (f"A and B: {told}; throughputs are not compared",)
    for condition in ("output_throughput < -5%", "request_throughput > 5%"):
        judgement = only(condition, quiet, steady)
        assert (judgement.verdict, judgement.reason) == ("no verdict", told)
    assert only("ttft_p99 > +5%", quiet, steady).verdict == "passed"
    done = CliRunner().invoke(app, ["compare", str(quiet), str(steady)])
    assert "296" not in done.output


def test_runs_that_idle_alike_are_compared(make_trace: MakeTrace) -> None:
    rests = [make_trace(run_sql() + idle(40, seconds)) for seconds in (10, 10.1)]
    comparison = compare(rests)
    assert next(row for row in comparison.rows if row.metric.key == "output_throughput").differences[0] is not None
    assert comparison.warnings == ()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("DELETE FROM request WHERE request > 37", "unequal load: 40 requests against 37"),
        ("UPDATE request SET output_tokens = 9", "unequal load: 400 output tokens against 360"),
        ("UPDATE request SET prompt_tokens = prompt_tokens + 9", "unequal load: 4,780 prompt tokens against 5,140"),
    ],
)
def test_unequal_load_has_no_verdict(
    change: str, reason: str, base: Path, again: list[Path], make_trace: MakeTrace
) -> None:
    judgement = only("ttft_mean > +5%", base, make_trace(run_sql(slower_ms=25) + change), again)
    assert (judgement.verdict, judgement.reason) == ("no verdict", reason)


def test_a_repetition_has_the_same_settings(base: Path, make_trace: MakeTrace) -> None:
    with pytest.raises(KvtraceError, match=r"no repetition of .*other blocks"):
        compare([base, base], None, [make_trace(run_sql(blocks=80))])


@pytest.mark.parametrize(
    ("condition", "complaint"),
    [
        ("ttft", "expected METRIC, < or >"),
        ("ttft_mean >= 5%", "expected METRIC, < or >"),
        ("speed > 5%", "no metric 'speed'; there are: output_throughput, .*ttft_p99"),
        ("ttft_mean > 2pp", "ttft_mean has no unit 'pp'; expected one of: %, ms"),
        ("hit_rate < -2 ms", "expected one of: %, pp, ratio"),
    ],
)
def test_a_wrong_condition_says_what_is_expected(condition: str, complaint: str) -> None:
    with pytest.raises(KvtraceError, match=complaint):
        read_gate(condition)


def test_every_metric_has_a_key_of_its_own() -> None:
    assert len({metric.key for metric in METRICS}) == len(METRICS)
    assert all(read_gate(f"{metric.key} > 1").unit == metric.unit for metric in METRICS)


@pytest.mark.parametrize(
    ("conditions", "code"),
    [(["hit_rate < -2pp"], 0), (["ttft_mean > 5%", "ttft_p99 > 5%"], 3), (["ttft_p99 > 5%", "hit_rate < -2pp"], 4)],
)
def test_the_exit_code_tells(
    conditions: list[str], code: int, base: Path, again: list[Path], make_trace: MakeTrace
) -> None:
    slower = make_trace(run_sql(slower_ms=25))
    options = [text for condition in conditions for text in ("--fail-if", condition)]
    options += [text for path in again for text in ("--repetition", str(path))]
    done = CliRunner().invoke(app, ["compare", str(base), str(slower), *options])
    assert done.exit_code == code, done.output


def test_the_verdicts_are_in_the_page_the_markdown_and_junit(
    base: Path, again: list[Path], make_trace: MakeTrace, tmp_path: Path
) -> None:
    slower = make_trace(run_sql(slower_ms=25, tag=HOSTILE), "a<b>")
    options = ["-o", str(tmp_path), "--pair", "order", "--repetition", str(again[0]), "--repetition", str(again[1])]
    gates = ["--fail-if", "ttft_mean > +5%", "--fail-if", "ttft_p99 > +5%", "--fail-if", "hit_rate < -2pp"]
    done = CliRunner().invoke(app, ["compare", str(base), str(slower), *gates, *options])
    assert done.exit_code == 3
    assert '<td class="worse">failed</td>' in (tmp_path / "compare.html").read_text()
    assert r"| ttft_mean \> +5% | B | +84.75% (+84.75% .. +84.75%) | failed |" in (tmp_path / "compare.md").read_text()
    suite = ElementTree.fromstring((tmp_path / "gates.xml").read_bytes())
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("3", "1", "1")
    assert [[kind.tag for kind in case] for case in suite] == [["failure"], ["error"], []]
    CliRunner().invoke(app, ["compare", str(base), str(slower), "-o", str(tmp_path)])
    assert not (tmp_path / "gates.xml").exists()
