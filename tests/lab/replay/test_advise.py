"""The page of `kvtrace advise`, from figures that are given."""

from __future__ import annotations

from kvtrace.lab.replay.advise import Advice, Answer, Question
from kvtrace.lab.replay.check import Outcome

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
