"""The page of versions: true to the sources at hand and to its facts; what it is made with finds what is missing."""

from __future__ import annotations

import ast
import builtins
import inspect
import re
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any

import pytest

from kvtrace.capture.recorder import Recorder
from kvtrace.doctor.declared import Argument, Declared, all_declared
from kvtrace.doctor.sources import Sources
from kvtrace.events import Event
from kvtrace.format.manifest import Manifest
from kvtrace.launch import versions
from kvtrace.probes import connectors, plugin
from kvtrace.probes.connectors import registry
from kvtrace.probes.connectors.adapters.offloading import Offloading
from kvtrace.probes.hooks import Need
from kvtrace.probes.vllm_types import SHAPES
from tests.compatibility import recorded, table
from tests.probes.tiles.versions import version_folders
from tests.vllm.faults.matrix import IN_MATRIX
from tests.vllm.offload.engines import connector_engines

POOL = "vllm.v1.core.block_pool:BlockPool"
SCHEDULER = "vllm.v1.core.sched.scheduler:Scheduler"

NOT_VLLMS = {
    *("cuda", "data_ptr", "dtype", "elapsed_time", "element_size", "get_device_name", "is_available", "numel"),
    *("shape", "stride"),
    *("digest", "_replace", "tobytes", "tolist"),
    *("descCount", "postDuration", "startTime", "totalBytes", "xferDuration"),
    *("_group_tokens_per_block", "is_kv_writer", "op", "query", "result", "retrieve_futures", "skip_first_n_tokens"),
    *("store_futures", "worker_adapter"),
}
"""Attributes of the standard library's, numpy's, torch's, NIXL's and LMCache's objects that the probes read."""

NOT_ALONE = {"nixl", "lmcache_mp"}
"""Adapters of connectors that need another process: `tests/vllm/test_handover.py`, `tests/vllm/test_lmcache_server.py`,
and `test_nixl_reads.py` and `test_lmcache_mp.py` in `tests/probes`."""

OTHER_WAYS = {
    "_block_size_bytes": "the bytes of a secondary tier's transfers are unknown",
    "_generate_job_id": "told an OffloadingConnector of before 0.26",
    "_get_reqs_to_store": "told an OffloadingConnector of before 0.26",
    "extra_kwargs": "pooling requests carry tags there",
    "is_prefill_chunk": "tells who decodes, where the scheduler has local_prefill_interval",
    "kv_event_medium": "from 0.29 on it tells disk from CPU; earlier there was only CPU",
    "last_prefill_step": "with local_prefill_interval",
    "local_prefill_interval": "from 0.33 on; an earlier one holds no prefills of its own",
    "locality": "from 0.29 on it tells remote tiers",
    "lora_int_id": "with max_loras",
    "lora_path": "tells adapters of one name apart",
    "max_num_active_reqs": "from 0.31 on; else max_num_running_reqs",
    "max_loras": "without it a request that waits for a LoRA adapter's place has the limit other",
    "num_executed_steps": "with local_prefill_interval",
    "num_hash_lookahead_tokens": "from 0.33 on; the hashes of an earlier one cover their blocks alone",
    "num_waiting_for_streaming_input": "sessions that wait for input, where a version has them",
    "prefill_capacity_bound": "with local_prefill_interval",
    "prefix_cacheable": "where a version has groups that are not",
    "session_id": "forks have it",
    "transfer_bytes": "else the bytes follow from the blocks",
    "watermark_blocks": "versions without it keep no blocks free",
}
"""Attributes that may be missing from any version without loss, and why."""


@pytest.mark.parametrize("folder", version_folders(), ids=str)
def test_the_stored_facts_are_what_the_sources_at_hand_say(folder: Path) -> None:
    sources = Sources(folder)
    if not sources.complete:
        pytest.skip(f"{folder} holds only some of vLLM's sources: `make test` fetches the rest")
    stored = table.versions()
    if sources.version not in stored:
        pytest.skip(f"no facts are stored about vLLM {sources.version}")
    assert sources.facts() == stored[sources.version]["sources"]


def test_a_hook_comes_with_the_first_version_that_has_its_place() -> None:
    """`since` excuses its absence from those before: one that is too late would hide a loss."""
    late = [declared for declared in all_declared() if declared.since]
    for declared in late:
        has = {version: facts["sources"][declared.target] is not None for version, facts in table.versions().items()}
        since = versions.parts(declared.since)
        assert has == {version: versions.parts(version) >= since for version in has}, declared.target
    assert late


def test_the_page_is_made_of_the_stored_facts() -> None:
    assert table.PAGE.read_text() == table.page(), "make compatibility"


def test_the_page_on_connectors_is_made_of_the_adapters_declarations() -> None:
    assert table.CONNECTORS_PAGE.read_text() == table.connectors_page(), "make compatibility"


def test_every_adapter_is_broken_by_the_fault_matrix() -> None:
    assert {engine.adapter for engine in connector_engines(Path()).values()} | NOT_ALONE == set(registry.declarations())
    assert set(connector_engines(Path())) <= set(IN_MATRIX)


def test_a_connector_is_recorded_in_detail_from_the_version_that_its_adapter_says() -> None:
    for name, declared in registry.declarations().items():
        since = versions.parts(declared.since)
        for version, facts in table.versions().items():
            # hooks that came later say so themselves
            early = [hook.target for hook in declared.hooks if versions.parts(hook.since) <= since]
            there = [facts["sources"][target] is not None for target in early]
            assert all(there) if versions.parts(version) >= since else not any(there), (name, version)


def test_the_summary_knows_the_versions_of_the_page() -> None:
    assert tuple(table.versions()) == versions.CHECKED


def test_facts_and_page_tell_every_declared_hook() -> None:
    targets = [declared.target for declared in all_declared()]
    for version, facts in table.versions().items():
        assert set(facts["sources"]) == set(targets), version
        assert set(facts.get("recorded", {}).get("hooks", ())) <= set(targets), version
    assert table.page().count("\n| `") == len(targets)


def test_what_the_probes_read_of_vllm_is_declared() -> None:
    """Every attribute that a probe reads is its own, the standard library's or torch's, or declared by a hook.

    A name that kvtrace's own classes have too counts as its own.
    """
    declared = {name for hook in all_declared() for name in hook.target.partition(":")[2].split(".")}
    for need in (need for hook in all_declared() for need in hook.needs):
        declared |= {name for names in need.names.split() for name in names.split("|")}
    rooms = [Path(inspect.getfile(room)).parent for room in (plugin, connectors)]
    own: set[str] = set(NOT_VLLMS) | set(OTHER_WAYS)
    for kind in (str, bytes, int, dict, list, set, tuple, type, FunctionType, builtins):
        own |= set(dir(kind))
    recorder, events = (Path(inspect.getfile(room)) for room in (Recorder, Event))
    for path in [*rooms[0].rglob("*.py"), recorder, events, recorder.with_name("_native.pyi")]:
        own |= _made_in(ast.parse(path.read_text()))
    # the command-line tool and the machinery, which read nothing of vLLM's objects
    apart = {"cupti.py", "kv_events.py", "hooks.py", "imports.py", "nvtx.py", "plugin.py"}
    folders = [*rooms, rooms[1] / "adapters"]
    files = [path for folder in folders for path in folder.glob("*.py") if path.name not in apart]
    read = {(path.name, name) for path in files for name in _read_in(ast.parse(path.read_text()))}
    assert {(path, name) for path, name in read if name not in own | declared} == set()


def test_shapes_of_vllms_objects_hold_what_hooks_declare() -> None:
    """An attribute of a shape is a `Need` of the same class, or is hooked there."""
    declared: dict[str, set[str]] = {}
    for hook in all_declared():
        owner, _, name = hook.target.rpartition(".")
        declared.setdefault(owner, set()).add(name)
        for need in hook.needs:
            for owner in need.owner.split("|"):
                declared.setdefault(owner, set()).update(
                    name for names in need.names.split() for name in names.split("|")
                )
    undeclared = {
        f"{place}.{name}"
        for shape, places in SHAPES
        for place in places.split("|")
        for name in _attributes_of(shape) - declared.get(place, set())
    }
    assert undeclared == set()
    assert len(SHAPES) > 20


def _attributes_of(shape: type) -> set[str]:
    return {
        name
        for name in (*vars(shape), *vars(shape).get("__annotations__", ()))
        if not name.startswith(("__", "_abc", "_is_"))
    }


def test_what_c_reads_of_vllm_is_declared() -> None:
    """Every name in C's tables is an attribute or an argument that a hook declares, or one of kvtrace's own classes."""
    declared = {name for hook in all_declared() for name in hook.target.partition(":")[2].split(".")}
    declared |= {argument.name for hook in all_declared() for argument in hook.arguments}
    for need in (need for hook in all_declared() for need in hook.needs):
        declared |= {name for names in need.names.split() for name in names.split("|")}
    native = Path(inspect.getfile(Recorder)).parent / "native"
    tables = {path: re.findall(r'\{&n_\w+,\s*"(\w+)"\}', path.read_text()) for path in native.glob("*.c")}
    own: set[str] = {"__dict__", "name"}  # the latter of enumerations' members
    for path in [*Path(inspect.getfile(plugin)).parent.rglob("*.py"), *native.parent.glob("*.py*")]:
        if path.suffix in (".py", ".pyi"):
            own |= _made_in(ast.parse(path.read_text()))
    read = {(path.name, name) for path, names in tables.items() for name in names}
    assert len(read) > 50
    assert {(path, name) for path, name in read if name not in own | declared} == set()


def _made_in(tree: ast.Module) -> set[str]:
    found: set[str] = set()
    own = [part for part in tree.body if not (isinstance(part, ast.ClassDef) and _is_shape(part))]
    for node in (node for part in own for node in ast.walk(part)):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.AnnAssign(target=ast.Name(id=name)):
                found.add(name)
            case ast.Attribute(attr=name, ctx=ast.Store()):
                found.add(name)
            case ast.Assign(targets=[ast.Name(id="__slots__")], value=ast.Tuple(elts=slots)):
                found |= {slot.value for slot in slots if isinstance(slot, ast.Constant)}
            case ast.Assign(targets=[ast.Name(id=name)]):  # of a class: an enumeration's member
                found.add(name)
    return found


def _is_shape(node: ast.ClassDef) -> bool:
    """Tell if a class describes one of vLLM's."""
    names = {
        name.func.id for name in node.decorator_list if isinstance(name, ast.Call) and isinstance(name.func, ast.Name)
    }
    return "shape_of" in names


def _read_in(tree: ast.AST) -> set[str]:
    """Names read as attributes, but not of imported modules."""
    modules = {alias.asname or alias.name for n in ast.walk(tree) if isinstance(n, ast.Import) for alias in n.names}
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id=name)) if name in modules:
                continue
            case ast.Attribute(attr=name, ctx=ast.Load()) if not name.startswith("__"):
                found.add(name)
            case ast.Call(func=ast.Name(id="getattr" | "hasattr"), args=[_, ast.Constant(value=str(name)), *_]):
                found.add(name)
    return {name for name in found if not name.startswith("__")}


@pytest.fixture
def some_vllm(tmp_path: Path) -> Sources:
    """A vLLM with a block pool that differs from the real ones."""
    files = {
        "_version.py": "__version__ = version = '7.1.0'\n",
        "v1/core/kv_cache_utils.py": """
class KVCacheBlock:
    block_id: int
    ref_cnt: int = 0
    @property
    def is_null(self): ...
""",
        "v1/core/pools.py": """
class Touching:
    def __init__(self):
        self.cached_block_hash_to_block = {}
    def touch(self, blocks): ...
""",
        "v1/core/block_pool.py": """
from vllm.v1.core.pools import Touching as Base
class BlockPool(Base):
    def free_blocks(self, now, ordered_blocks): ...
    def reset_prefix_cache(self): ...
class BlockHashToBlockMap:
    def insert(self, key, block): ...
    def pop(self, *args): ...
""",
    }
    for name, text in files.items():
        path = tmp_path / "vllm" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Sources(tmp_path)


def test_inherited_methods_and_renamed_imports_are_found_and_what_is_missing_is_named(some_vllm: Sources) -> None:
    facts = some_vllm.facts()
    assert some_vllm.version == "7.1.0"
    assert facts[f"{POOL}.touch"] == {}
    assert facts[f"{POOL}.get_new_blocks"] is None
    assert facts[f"{POOL}.free_blocks"] == {"argument 1 ordered_blocks": ""}
    assert facts["vllm.v1.core.block_pool:BlockHashToBlockMap.pop"] == {}
    assert facts[f"{SCHEDULER}.schedule"] is None


def test_an_attribute_that_is_gone_is_named_with_what_is_lost(some_vllm: Sources) -> None:
    block = some_vllm.folder / "vllm/v1/core/kv_cache_utils.py"
    block.write_text("class KVCacheBlock:\n    block_id: int\n    ref_cnt: int\n")
    assert some_vllm.facts()[f"{POOL}.touch"] == {"KVCacheBlock.is_null": ""}


def test_arguments_are_found_in_the_hooks_functions_and_in_what_they_call() -> None:
    found = {declared.target: declared.arguments for declared in all_declared()}
    assert found[f"{SCHEDULER}.update_from_output"] == (
        Argument(1, "scheduler_output", False),
        Argument(2, "model_runner_output", False),
    )
    assert found[f"{SCHEDULER}._free_request_blocks"] == (Argument(1, "request", False),)  # by a helper of the hook's
    connector = "vllm.distributed.kv_transfer.kv_connector.v1.base:KVConnectorBase_V1"
    assert found[f"{connector}.request_finished"] == (Argument(1, "request", False),)  # of an object, in a loop
    assert found[f"{connector}.update_connector_output"] == (Argument(1, "connector_output", False),)
    assert found[f"{connector}.reset_cache"] == ()


def test_an_offloading_connector_whose_workers_number_the_jobs_is_recorded_by_its_interface() -> None:
    """That of before vLLM 0.26, whose metadata has no jobs."""

    def connector(scheduler: Any, worker: Any) -> SimpleNamespace:
        return SimpleNamespace(connector_scheduler=scheduler, connector_worker=worker)

    old = SimpleNamespace(_get_reqs_to_store=None), SimpleNamespace(_generate_job_id=None)
    new = SimpleNamespace(_generate_job_id=None), SimpleNamespace(worker=None)
    fits = Offloading.fits
    assert [fits(connector(old[0], None)), fits(connector(None, old[1]))] == [False, False]
    assert [fits(connector(new[0], None)), fits(connector(None, new[1]))] == [True, True]
    assert not fits(SimpleNamespace())


FITS: dict[str, Any] = {"sources": {"m:f": {}}}


@pytest.mark.parametrize(
    ("facts", "since", "told"),
    [
        (FITS, "", "fits"),
        (FITS | {"recorded": {"hooks": {"m:f": "placed"}}}, "", "fits"),
        (FITS | {"recorded": {"hooks": {"m:f": "fired"}}}, "", "works"),
        (FITS | {"recorded": {"hooks": {"m:f": "failed: KeyError: 3"}}}, "", "absent: failed: KeyError: 3"),
        ({"sources": {"m:f": {"A.x": "loads"}}, "recorded": {"hooks": {"m:f": "fired"}}}, "", "degraded: lacks loads"),
        ({"sources": {"m:f": {"A.x": "", "A.y": "loads"}}}, "", "absent: needs `A.x`"),
        ({"sources": {"m:f": None}}, "", "absent"),
        ({"sources": {"m:f": None}}, "0.10.0", "none"),
        ({"sources": {"m:f": None}}, "0.9.0", "absent"),
        ({"sources": {}}, "", "not checked"),
    ],
)
def test_a_cell_says_works_only_of_what_fired(facts: dict[str, Any], since: str, told: str) -> None:
    declared = Declared("m:f", ("things",), (Need("m:A", "x y"),), (), since)
    assert table.cell(declared, "0.9.1", facts) == told


def test_a_hook_that_failed_in_one_of_the_recordings_has_failed(tmp_path: Path) -> None:
    connector = "vllm.distributed.kv_transfer.kv_connector.v1.base:KVConnectorBase_V1"
    notes = [
        [("hook", f"{POOL}.touch", "installed", ""), ("fired", f"{POOL}.touch")],
        [
            ("hook", f"{POOL}.touch", "disabled", "KeyError: 3 (line 7 of after); lost: hits"),
            ("hook", f"{POOL}.free_blocks", "installed", ""),
            ("hook", "mine:Connector.save_kv_layer", "installed", f"{connector}.save_kv_layer"),
            ("fired", "mine:Connector.save_kv_layer"),
            ("hook", f"{POOL}.get_new_blocks", "absent", "allocations"),
        ],
    ]
    for number, lines in enumerate(notes):
        run = tmp_path / f"run{number}"
        run.mkdir()
        Manifest(["vllm"], 1).write(run)
        recorder = Recorder(run)
        recorder.note("vllm", version="0.29.0+cpu")
        recorder.note("role", opens=True, role="worker")
        for kind, hook, *rest in lines:
            recorder.note(kind, hook=hook, **dict(zip(("state", "detail"), rest, strict=False)))
    assert recorded.facts([tmp_path]) == {
        "0.29.0": {
            "devices": ["CPU"],
            "runs": 2,
            "hooks": {
                f"{connector}.save_kv_layer": "fired",
                f"{POOL}.free_blocks": "placed",
                f"{POOL}.get_new_blocks": "absent",
                f"{POOL}.touch": "failed: KeyError: 3",
            },
        }
    }
