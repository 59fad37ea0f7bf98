"""Answers of KV cache groups to lookups, and what happens when a group cannot be asked."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvtrace.capture.recorder import Recorder
from kvtrace.events import GROUP_LOOKUP
from kvtrace.format.reader import open_recording
from kvtrace.probes.group_lookups import GroupLookups
from kvtrace.probes.hooks import Patches
from kvtrace.probes.optional_attributes import OptionalAttributes
from tests.probes.records import EngineWith, records_of


class SlidingWindowSpec:
    """Named as vLLM's."""


class Group:
    """A group whose lookups find three blocks of 16 tokens, but for EAGLE's drop."""

    kv_cache_spec = SlidingWindowSpec()
    block_size = 16

    @classmethod
    def find_longest_cache_hit(cls, **asked: Any) -> tuple[list[Any], int]:
        hit = min(48, asked["max_length"] // 16 * 16)
        return [], max(hit - 16 * asked["drop_eagle_block"], 0)


class Coordinator:
    """A coordinator of one such group."""

    eagle_group_ids = frozenset({0})
    single_type_managers = (Group(),)

    def find_longest_cache_hit(self, block_hashes: list[bytes], max_cache_hit_length: int) -> tuple[list[Any], int]:
        return self.single_type_managers[0].find_longest_cache_hit(
            block_hashes=block_hashes,
            max_length=max_cache_hit_length,
            kv_cache_group_ids=[0],
            drop_eagle_block=True,
            alignment_tokens=16,
        )


class Followed:
    """An engine with such a coordinator, followed."""

    def __init__(self, run: Path, coordinator: Any, **manager: Any) -> None:
        self.run, self.coordinator = run, coordinator
        self.recorder = Recorder(run)
        self.recorder.note("role", opens=True, role="engine")
        self.patches = Patches(lambda *_: None)
        self.lookups = GroupLookups(self.recorder, self.patches)
        self.engine: Any = EngineWith(
            scheduler=SimpleNamespace(
                kv_cache_manager=SimpleNamespace(enable_caching=True, coordinator=coordinator, **manager)
            ),
            hash_block_size=16,
            step=3,
            group_lookups=None,
            has_connector=bool(manager),
            optional=OptionalAttributes(self.recorder),
        )
        self.lookups.follow(self.engine)

    def look_up(self) -> int:
        """Look up, complete and record; the hit."""
        hit: int = self.coordinator.find_longest_cache_hit([bytes(8)] * 5, 79)[1]
        answers = self.lookups.take()
        if answers is not None:
            self.lookups.complete(self.engine, answers)
            self.lookups.record(self.engine, 11, 7, answers)
        return hit

    def journal(self) -> str:
        return "".join(path.read_text() for path in self.run.rglob("journal.jsonl"))


@pytest.fixture
def followed(tmp_path: Path) -> Any:
    made: list[Followed] = []

    def follow(coordinator: Any, **manager: Any) -> Followed:
        made.append(Followed(tmp_path, coordinator, **manager))
        return made[-1]

    yield follow
    for each in made:
        each.patches.uninstall()


def test_an_answer_tells_what_it_would_be_without_the_drop(tmp_path: Path, followed: Any) -> None:
    assert followed(Coordinator()).look_up() == 32
    [row] = records_of(tmp_path, GROUP_LOOKUP)["group_lookup"]
    assert (row.time_ns, row.step, row.request, row.bound_tokens, row.hit_tokens) == (11, 3, 7, 79, 32)
    assert (row.stored_tokens, row.kept_tokens, row.own_tokens, row.eagle) == (48, 32, 32, True)


def test_lookups_of_others_are_left_alone(tmp_path: Path, followed: Any) -> None:
    # GIVEN an engine that is followed, and a group of an offload tier that is of the same class
    engine = followed(Coordinator())
    Group.find_longest_cache_hit(max_length=64, drop_eagle_block=False)
    assert engine.lookups.take() is None
    assert Coordinator().find_longest_cache_hit([], 79)[1] == 32
    assert engine.lookups.take() is None


def test_a_group_that_cannot_be_asked_again_costs_its_answers_alone(tmp_path: Path, followed: Any) -> None:
    class Broken(Group):
        asked = 0

        @classmethod
        def find_longest_cache_hit(cls, **asked: Any) -> tuple[list[Any], int]:
            cls.asked += 1
            if cls.asked > 1 and not asked["drop_eagle_block"]:
                raise RuntimeError("not twice")
            return super().find_longest_cache_hit(**asked)

    class BrokenCoordinator(Coordinator):
        single_type_managers = (Broken(),)

    engine = followed(BrokenCoordinator())
    assert [engine.look_up(), engine.look_up()] == [32, 32]
    assert "RuntimeError: not twice" in engine.journal()
    assert records_of(tmp_path, GROUP_LOOKUP)["group_lookup"] == []


def test_a_coordinator_of_another_kind_is_named_and_left_alone(followed: Any) -> None:
    class Other:
        def find_longest_cache_hit(self, block_hashes: list[bytes], max_cache_hit_length: int) -> tuple[list[Any], int]:
            return [], 16

    engine = followed(Other())
    assert engine.look_up() == 16
    assert "which KV cache group and rule limited a prefix hit" in engine.journal()
    assert engine.engine.group_lookups is None


@pytest.mark.parametrize("there", [True, False])
def test_groups_that_cannot_be_asked_one_by_one_for_a_connector_are_named(followed: Any, there: bool) -> None:
    class Two(Coordinator):
        single_type_managers = (Group(), Group())

    if there:
        Two.find_longest_cache_hit_per_group = Coordinator.find_longest_cache_hit  # type: ignore[attr-defined]
    engine = followed(Two(), get_computed_blocks_for_connector=None)
    assert engine.look_up() == 32
    assert ("which KV cache groups lacked what a connector supplies" in engine.journal()) != there


def test_one_group_of_full_attention_is_not_observed(tmp_path: Path, followed: Any) -> None:
    class FullAttentionSpec:
        """Named as vLLM's."""

    class Plain(Group):
        kv_cache_spec = FullAttentionSpec()  # type: ignore[assignment]

    class PlainCoordinator(Coordinator):
        single_type_managers = (Plain(),)
        eagle_group_ids = frozenset()

    engine = followed(PlainCoordinator())
    engine.look_up()
    assert engine.engine.group_lookups is None
    assert records_of(tmp_path, GROUP_LOOKUP)["group_lookup"] == []
    assert open_recording(tmp_path).processes
