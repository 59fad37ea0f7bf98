"""The page of `kvtrace advise`, from figures that are given."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvtrace.lab.replay.advise import FIGURES, Advice, Answer, Drawn, Question
from kvtrace.lab.replay.check import Outcome
from kvtrace.queries.statistics import Interval

ERRORS = {"request_mean": -0.05, "ttft_mean": 0.1, "tokens_per_s": 0.01, "hit_share": 0.02}


def answer(name: str, request: float, evictions: int, host_bytes: int = 0, *, helps: bool) -> Answer:
    gains = {"request": request, "ttft": request, "throughput": request, "hit_share": request}
    outcome = Outcome(10, 1, 2, evictions, 0, 3, 1.0)
    return Answer(Question(name, ("a=1",), f"--{name}", host_bytes), outcome, 5_000_000, gains, helps)


def test_gains_within_their_error_are_marked_and_equal_what_ifs_are_named_once() -> None:
    answers = [answer("small", 0.2, 7, 16 << 30, helps=True), answer("large", 0.2, 7, 64 << 30, helps=True)]
    advice = Advice([*answers, answer("tiny", 0.03, 8, helps=False)], ERRORS, 0.999, {}, ["a machine stalled"])
    lines = advice.text()
    assert lines[0] == "predicted change of"
    assert all(len(line) <= 80 for line in lines)
    assert lines[2].split() == ["small", "-20.0%", "-20.0%", "+20.0%", "+20.0", "pp", "7", "+17.2", "GB", "host"]
    assert lines[4].split() == ["tiny", "(-3.0%)", "(-3.0%)", "+3.0%", "+3.0", "pp", "8", "+5.0", "MB"]
    assert advice.options == [("small", "--small")]
    assert "Warning: a machine stalled." in lines


def test_no_change_has_no_sign_and_offload_has_a_further_error() -> None:
    none = answer("none", -0.0001, 8, helps=False)
    assert none.cells(ERRORS)[1:5] == ["(0.0%)", "(0.0%)", "(0.0%)", "(0.0 pp)"]
    assert answer("some", 0.0006, 8, helps=False).cells(ERRORS)[1] == "(-0.1%)"
    for host_bytes in (0, 1 << 30):
        advice = Advice([answer("tier", 0.2, 7, host_bytes, helps=True)], ERRORS, 1.0, {}, [])
        assert any("Offload errs by more" in note for note in advice.notes) == bool(host_bytes)


def test_it_says_when_nothing_would_help() -> None:
    advice = Advice([answer("tiny", 0.03, 8, helps=False)], ERRORS, 1.0, {"odd": "it failed"}, [])
    text = " ".join(advice.text())
    assert "Nothing here would have helped" in text
    assert "Not replayed: odd: it failed." in text
    assert "In vLLM" not in text


def drawn(answer: Answer, beside: float) -> Answer:
    """An answer whose every gain is what two runs differ by, more or less."""
    answer.drawn = {
        figure: Drawn(gain, Interval(gain - beside, gain + beside, 8)) for figure, gain in answer.gains.items()
    }
    return answer


def test_gains_within_what_two_runs_differ_by_are_marked_and_told() -> None:
    answers = [
        drawn(answer("sure", 0.3, 7, helps=True), 0.1),
        drawn(answer("chance", 0.2, 8, helps=False), 0.25),
        answer("undrawn", 0.03, 9, helps=False),
    ]
    advice = Advice(answers, ERRORS, 1.0, {}, [], draws=8)
    lines = advice.text()
    assert lines[2].split()[:6] == ["sure", "-30.0%", "-30.0%", "+30.0%", "+30.0", "pp"]
    assert lines[3].split()[:6] == ["chance", "[-20.0%]", "[-20.0%]", "[+20.0%]", "[+20.0", "pp]"]
    assert lines[4].split()[1] == "(-3.0%)"
    assert lines[6] == "8 draws of step times: predicted change, and what two runs differ by (95%)"
    assert lines[8].split() == ["sure", *["-30.0", "±10.0%"] * 2, "+30.0", "±10.0%", "+30.0", "±10.0", "pp"]
    assert len(advice.drawn_rows) == 2
    assert "Not recommended, as their gains are within what two runs differ by: chance." in advice.notes
    assert advice.options == [("sure", "--sure")]
    told = {each["name"]: each.get("over_draws") for each in advice.to_json()["answers"]}
    assert [told[name]["request"]["told_apart"] for name in ("sure", "chance")] == [True, False]
    assert told["undrawn"] is None


def test_it_says_when_nothing_is_more_than_chance() -> None:
    advice = Advice([drawn(answer("chance", 0.2, 8, helps=False), 0.25)], ERRORS, 1.0, {}, [], draws=8)
    assert any(note.endswith("its expected error and than what two runs differ by.") for note in advice.notes)
    assert "draws" not in Advice([], ERRORS, 1.0, {}, []).to_json()


def test_a_gain_that_draws_turn_round_is_none() -> None:
    turned = answer("turned", 0.2, 8, helps=False)
    turned.drawn = {figure: Drawn(-0.2, Interval(-0.25, -0.15, 8)) for figure in FIGURES}
    assert turned.by_chance("request")


@given(
    st.lists(st.floats(-9.99, 0.999), min_size=4, max_size=4),
    st.lists(st.floats(0, 2), min_size=4, max_size=4),
    st.integers(0, 99_999_999),
)
def test_the_tables_fit_eighty_columns(gains: list[float], beside: list[float], evictions: int) -> None:
    one = answer("token budget 0.5x", 0.1, evictions, 128 << 30, helps=True)
    one.gains = dict(zip(FIGURES, gains, strict=True))
    one.drawn = {
        figure: Drawn(min(gain, 0.999), Interval(gain - width, gain + width, 8))
        for (figure, gain), width in zip(one.gains.items(), beside, strict=True)
    }
    lines = Advice([one], ERRORS, 1.0, {}, [], draws=8).text()
    assert all(len(line) <= 80 for line in lines)
    # a gain is marked if the interval holds 0, whatever its size
    for figure, gain in one.gains.items():
        assert one.by_chance(figure) == (gain != 0 and abs(gain) <= one.drawn[figure].half_width)
