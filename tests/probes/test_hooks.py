"""Hooks: originals run once and undisturbed, whatever the hook does."""

from __future__ import annotations

import importlib
import os
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtrace.probes.hooks import Hook, Patches, catch_up, wrap


class Reports(list):
    def __init__(self) -> None:
        self.fired: list[str] = []

    def __call__(self, hook: str, state: str, detail: str) -> None:
        if state == "fired":
            self.fired.append(hook)
        else:
            self.append((hook, state, detail))


@pytest.fixture
def engine_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "fake_engine.py").write_text(
        textwrap.dedent(
            """
            class Base:
                def run(self, n):
                    return ("ran", n)
                @staticmethod
                def fixed(n):
                    return n + 1
            class Derived(Base):
                pass
            def free(n):
                return n * 2
            """
        )
    )
    (tmp_path / "fake_user.py").write_text("from fake_engine import free\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "fake_engine"
    for name in ("fake_engine", "fake_user"):
        sys.modules.pop(name, None)


def test_a_hook_sees_arguments_and_result_of_a_module_imported_later(engine_module: str) -> None:
    seen: list[Any] = []
    reports = Reports()
    patches = Patches(reports)
    patches.install(
        [
            Hook(
                f"{engine_module}:Base.run",
                "runs",
                before=lambda args, kwargs: seen.append(args[1]) or "state",
                after=lambda state, result, args, kwargs: seen.append((state, result)),
            ),
            Hook(f"{engine_module}:free", "frees", before=lambda args, kwargs: seen.append(args)),
            Hook(f"{engine_module}:Base.fixed", "fixed", before=lambda args, kwargs: seen.append(args)),
            Hook(f"{engine_module}:Base.gone", "what gone does"),
        ]
    )
    assert reports == []  # nothing is imported yet
    module, user = importlib.import_module(engine_module), importlib.import_module("fake_user")
    assert module.Derived().run(3) == ("ran", 3)
    assert user.free(4) == 8  # imported by name
    assert module.Base.fixed(1) == module.Base().fixed(1) == 2
    assert seen == [3, ("state", ("ran", 3)), (4,), (1,), (1,)]
    assert [state for _, state, _ in reports] == ["installed", "installed", "installed", "absent"]
    assert reports[-1][2] == "what gone does"
    assert reports.fired == [f"{engine_module}:{path}" for path in ("Base.run", "free", "Base.fixed")]  # once each
    assert module.__spec__.loader is module.__loader__  # the ordinary one, not kvtrace's
    patches.uninstall()


def test_a_module_that_the_package_does_not_have_is_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would never be imported, so nothing else would tell; what is there is not imported to find out."""
    for name in ("__init__.py", "core/__init__.py", "core/present.py", "core/folder/__init__.py"):
        path = tmp_path / "fake_package" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("def run(): ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.import_module("fake_package")
    reports = Reports()
    patches = Patches(reports)
    names = ("core.present", "core.folder", "core.moved", "elsewhere.moved")
    patches.install([Hook(f"fake_package.{name}:run", "runs") for name in names] + [Hook("not_imported.yet:run", "")])
    try:
        assert reports == [
            ("fake_package.core.moved:run", "absent", "runs"),
            ("fake_package.elsewhere.moved:run", "absent", "runs"),
        ]
        assert "fake_package.core" not in sys.modules
        importlib.import_module("fake_package.core.present")
        assert reports[2:] == [("fake_package.core.present:run", "installed", "")]
    finally:
        patches.uninstall()
        for name in [name for name in sys.modules if name.startswith("fake_package")]:
            del sys.modules[name]


def test_uninstalling_puts_the_very_originals_back(engine_module: str) -> None:
    module = importlib.import_module(engine_module)
    originals = dict(vars(module.Base)), module.free
    patches = Patches(Reports())
    targets = ("Base.run", "Base.fixed", "Derived.run", "free")
    patches.install([Hook(f"{engine_module}:{path}", "", before=lambda *_: None) for path in targets])
    assert module.free is not originals[1]
    patches.uninstall()
    assert (dict(vars(module.Base)), module.free) == originals
    assert "run" not in vars(module.Derived)
    assert not [finder for finder in sys.meta_path if type(finder).__module__ == "kvtrace.probes.imports"]


@pytest.mark.parametrize("place", ["before", "after"])
def test_a_hook_that_raises_is_cut_off_and_reported_and_the_original_runs_once(place: str) -> None:
    calls: list[int] = []
    hook_calls: list[int] = []
    reports = Reports()

    def original(n: int) -> int:
        calls.append(n)
        return -n

    def broken(*_: Any) -> None:
        hook_calls.append(1)
        raise AttributeError("no such attribute")

    wrapped = wrap(original, Hook("module:function", "everything", **{place: broken}), reports)
    assert [wrapped(n) for n in (1, 2, 3)] == [-1, -2, -3]
    assert calls == [1, 2, 3]
    assert hook_calls == [1]
    [(target, state, detail)] = reports
    assert (target, state) == ("module:function", "disabled")
    assert "no such attribute" in detail
    assert "everything" in detail


@settings(max_examples=200)
@given(st.lists(st.sampled_from(["puts off", "fails later", "fails at once", "catches up", "does neither"])))
def test_what_is_put_off_is_done_in_turn_before_the_next_hook_that_catches_up(calls: list[str]) -> None:
    done: list[int] = []
    reports = Reports()

    def fail(number: int, *_: Any) -> None:
        raise ValueError(number)

    def put_off(state: None, result: int, args: tuple[int], kwargs: dict[str, Any]) -> int:
        return -result

    def hooked(name: str, **parts: Any) -> Callable[[int], int]:
        return wrap(lambda number: -number, Hook(f"m:{name}", "", **parts), reports)

    def put_off_once(state: None, result: int, args: tuple[int], kwargs: dict[str, Any]) -> int:
        if result != first:
            return -result
        raise ValueError(result)

    first = -calls.index("fails at once") if "fails at once" in calls else 1
    functions = {
        "puts off": hooked("puts off", after=put_off, later=done.append),
        "fails later": hooked("fails later", after=put_off, later=fail),
        "fails at once": hooked("fails at once", after=put_off_once, later=done.append),
        "catches up": hooked("catches up", catches_up=True),
        "does neither": hooked("does neither"),
    }
    recorded: list[int] = []
    pending: list[int] = []
    for number, name in enumerate(calls):
        if name == "catches up":
            recorded, pending = recorded + pending, []
        elif name == "puts off":
            pending.append(number)
        assert functions[name](number) == -number
        assert done == recorded
    catch_up()
    assert done == recorded + pending
    failed = [f"m:{name}" for name in ("fails later", "fails at once") if name in calls]
    assert sorted((hook, state) for hook, state, _ in reports) == [(hook, "disabled") for hook in sorted(failed)]


def test_what_was_put_off_before_its_hook_failed_is_done() -> None:
    done: list[int] = []
    reports = Reports()

    def positive(state: None, result: int, args: tuple[int], kwargs: dict[str, Any]) -> int:
        if result < 0:
            raise ValueError(result)
        return result

    wrapped = wrap(int, Hook("m:f", "", after=positive, later=done.append), reports)
    assert [wrapped(number) for number in (1, 2, -1, 3)] == [1, 2, -1, 3]
    catch_up()
    assert done == [1, 2]
    assert [state for _, state, _ in reports] == ["disabled"]


def test_an_interruption_passes_and_what_it_came_before_is_done_later() -> None:
    done: list[int] = []

    def interrupted_at_2(number: int) -> None:
        if number == 2:
            raise KeyboardInterrupt
        done.append(number)

    reports = Reports()
    wrapped = wrap(int, Hook("m:f", "", after=lambda state, result, *_: result, later=interrupted_at_2), reports)
    for number in (1, 2, 3, 4):
        wrapped(number)
    with pytest.raises(KeyboardInterrupt):
        wrap(int, Hook("m:g", "", catches_up=True), reports)(5)
    catch_up()
    assert done == [1, 3, 4]
    assert reports == []


def test_a_forked_child_does_not_do_what_its_parent_put_off() -> None:
    done: list[int] = []
    wrapped = wrap(int, Hook("m:f", "", after=lambda state, result, *_: result, later=done.append), Reports())
    wrapped(1)
    child = os.fork()
    if child == 0:
        catch_up()
        os._exit(len(done))
    assert os.waitpid(child, 0)[1] == 0
    catch_up()
    assert done == [1]


def test_the_originals_exception_passes_and_does_not_disable_the_hook() -> None:
    reports = Reports()
    seen: list[Any] = []

    def original(n: int) -> int:
        if n == 0:
            raise ValueError("the engine's own")
        return n

    wrapped = wrap(original, Hook("m:f", "", after=lambda state, result, args, kwargs: seen.append(result)), reports)
    with pytest.raises(ValueError, match="the engine's own"):
        wrapped(0)
    assert wrapped(5) == 5
    assert seen == [5]
    assert reports == []


def test_a_one_shot_iterator_reaches_both_the_hook_and_the_original() -> None:
    seen: list[Any] = []
    hook = Hook(
        "m:f",
        "",
        after=lambda state, result, args, kwargs: seen.append(list(args[0])),
        arguments=lambda args, kwargs: ((list(args[0]),), {}),
    )
    wrapped = wrap(sum, hook, Reports())
    assert wrapped(iter([1, 2, 3])) == 6
    assert seen == [[1, 2, 3]]


def test_off_means_off(monkeypatch: pytest.MonkeyPatch) -> None:
    from kvtrace.probes import plugin

    monkeypatch.delenv("KVTRACE_RUN_DIR", raising=False)
    before = list(sys.meta_path)
    plugin.load()
    assert sys.meta_path == before


def test_a_run_directory_that_cannot_be_used_is_said_and_survived(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from kvtrace.probes import plugin

    monkeypatch.setenv("KVTRACE_RUN_DIR", "/proc/nowhere")
    plugin.load()
    try:
        from kvtrace.capture.recorder import Recorder
        from kvtrace.events import BLOCK_EVENT

        recorder = Recorder(Path("/proc/nowhere"))
        recorder.stream(BLOCK_EVENT)(1, 1, 1, 1, 1, 1, 1, 0, 0)
        assert recorder.stopped is not None
        assert "/proc/nowhere" in capfd.readouterr().err
    finally:
        plugin.unload()
