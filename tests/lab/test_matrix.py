"""Reading a matrix: which cells, in which order, and which mistakes are found before anything runs."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kvtrace.cli.main import app
from kvtrace.errors import KvtraceError
from kvtrace.lab.cell import arguments_of
from kvtrace.lab.matrix import Matrix, read_matrix
from kvtrace.lab.policies import engine_arguments, environment, gave_up, jobs_go_in_order, policy_of
from kvtrace.lab.replay.cell import settings_of
from kvtrace.lab.workloads import Workload, make

STUDIES = sorted((Path(__file__).parents[2] / "examples" / "studies").glob("*.toml"))
TEXT = """
repeats = 2
[cell]
kv_tokens = "90k"
rate = 2.0
[axes]
policy = ["fcfs", { name = "offloading", host_gib = 16 }]
block_size = [16, 32]
[workloads.w]
kind = "fixed"
jobs = 3
prompt = 100
"""


def matrix(tmp_path: Path, text: str) -> Matrix:
    path = tmp_path / "m.toml"
    path.write_text(text)
    return read_matrix(path)


def test_cells_are_the_product_of_the_axes_and_repeats(tmp_path: Path) -> None:
    cells = matrix(tmp_path, TEXT).cells
    assert len({cell.id for cell in cells}) == 8
    assert {(cell.policy["name"], cell.block_size, cell.repeat) for cell in cells} == {
        (policy, size, repeat) for policy in ("fcfs", "offloading") for size in (16, 32) for repeat in (0, 1)
    }
    assert {cell.kv_tokens for cell in cells} == {90_000}


def test_json_says_the_same_as_toml(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    path.write_text(json.dumps(tomllib.loads(TEXT)))
    assert read_matrix(path) == matrix(tmp_path, TEXT)


def test_the_order_is_shuffled_and_stable(tmp_path: Path) -> None:
    ids = [cell.id for cell in matrix(tmp_path, TEXT).cells]
    assert ids == [cell.id for cell in matrix(tmp_path, TEXT).cells]
    other = [cell.id for cell in matrix(tmp_path, "order_seed = 7" + TEXT).cells]
    assert set(other) == set(ids)
    assert other != ids


def test_another_setting_is_another_cell(tmp_path: Path) -> None:
    one, other = (matrix(tmp_path, text).cells for text in (TEXT, TEXT.replace("jobs = 3", "jobs = 4")))
    assert {cell.id for cell in one}.isdisjoint({cell.id for cell in other})


def test_policies_get_the_same_requests_and_repeats_get_others(tmp_path: Path) -> None:
    digests: dict[int, set[str]] = {}
    for cell in matrix(tmp_path, TEXT).cells:
        digests.setdefault(cell.repeat, set()).add(cell.make_workloads()[0].digest())
    assert [len(found) for found in digests.values()] == [1, 1]
    assert digests[0] != digests[1]
    assert matrix(tmp_path, TEXT).cells[0].make_workloads()[0].parameters["arrival"] == "poisson"


def test_a_cell_becomes_vllms_arguments(tmp_path: Path) -> None:
    (cell,) = (
        c
        for c in matrix(tmp_path, TEXT).cells
        if c.policy["name"] == "offloading" and c.block_size == 32 and not c.repeat
    )
    arguments = arguments_of(cell, cell.make_workloads())
    assert arguments["num_gpu_blocks_override"] == 90_000 // 32 + 1  # one is vLLM's null block
    assert arguments["kv_transfer_config"]["kv_connector"] == "OffloadingConnector"
    assert arguments["kv_transfer_config"]["kv_connector_extra_config"] == {"cpu_bytes_to_use": 16 << 30}
    json.dumps(arguments)


def test_repeats_have_one_engine(tmp_path: Path) -> None:
    """Draws have other lengths; vLLM would compile anew for another `max_model_len`."""
    text = TEXT.replace("prompt = 100", "prompt = 1500")
    cells = [cell for cell in matrix(tmp_path, text).cells if cell.policy["name"] == "fcfs"]
    lengths = {arguments_of(cell, cell.make_workloads())["max_model_len"] for cell in cells}
    assert lengths == {2048}


@pytest.mark.parametrize(
    ("kv_tokens", "block_size", "longest"),
    [(1800, 8, 1800), (1800, 64, 1792), (1000, 16, 1628), (1700, 16, 1696), (90_000, 64, 2048)],
)
def test_an_engines_longest_sequence_is_held_by_its_blocks(
    tmp_path: Path, kv_tokens: int, block_size: int, longest: int
) -> None:
    """An engine whose blocks could not hold it does not start. It is never shorter than the workload."""
    cell = matrix(tmp_path, TEXT.replace("prompt = 100", "prompt = 1500")).cells[0]
    cell = replace(cell, kv_tokens=kv_tokens, block_size=block_size)
    assert arguments_of(cell, cell.make_workloads())["max_model_len"] == longest


def test_a_workload_longer_than_the_shape_is_refused(tmp_path: Path) -> None:
    cell = matrix(tmp_path, TEXT.replace("prompt = 100", "prompt = 9000")).cells[0]
    with pytest.raises(KvtraceError, match="9128 tokens, tiny runs up to 8192"):
        arguments_of(cell, cell.make_workloads())


def test_pins_can_go_with_jobs_served_in_their_order() -> None:
    pinning, plain = (policy_of({"name": "ttl-pin", "ttl_s": 2.0, **order}) for order in ({"order": "jobs"}, {}))
    arguments = engine_arguments(pinning)
    assert arguments["scheduling_policy"] == "priority"
    assert arguments["additional_config"] == engine_arguments(plain)["additional_config"]
    assert [jobs_go_in_order(policy) for policy in (pinning, plain, {"name": "priority"})] == [True, False, True]
    with pytest.raises(KvtraceError, match='"requests" or "jobs", not 1'):
        policy_of({"name": "ttl-pin", "order": 1})


@pytest.mark.parametrize("name", ["simple-cpu-offload", "offloading", "lmcache", "lmcache-mp"])
def test_connectors_can_go_with_jobs_served_in_their_order(name: str) -> None:
    ordered, plain = (policy_of({"name": name, "host_gib": 1, **order}) for order in ({"order": "jobs"}, {}))
    assert [jobs_go_in_order(policy) for policy in (ordered, plain)] == [True, False]
    assert engine_arguments(ordered)["scheduling_policy"] == "priority"
    assert "scheduling_policy" not in engine_arguments(plain)
    if name != "lmcache-mp":  # which is not replayed
        assert settings_of(ordered) == ["order=jobs", *settings_of(plain)]


@pytest.mark.parametrize("name", ["lmcache", "lmcache-mp"])
def test_lmcache_is_refused_where_it_is_not_installed(name: str) -> None:
    with pytest.raises(KvtraceError, match="lmcache is not installed"):
        environment(policy_of({"name": name, "host_gib": 1}))


@pytest.mark.parametrize(
    ("log", "why"),
    [
        (
            "ERROR: Failed to initialize components. System will operate in degraded mode (recompute).",
            "recomputed everything",
        ),
        (
            "ERROR: Something went wrong when processing the store request for request_id=0-b7",
            "failed to store or to load",
        ),
    ],
)
def test_lmcache_that_gave_up_is_no_result(log: str, why: str) -> None:
    lmcache = policy_of({"name": "lmcache", "host_gib": 1})
    assert why in str(gave_up(lmcache, log))
    assert gave_up(lmcache, "LMCache WARNING: something else") is None
    assert gave_up(policy_of("fcfs"), log) is None


def test_engines_side_by_side_have_lmcache_servers_of_their_own() -> None:
    policy = policy_of({"name": "lmcache-mp", "host_gib": 2, "chunk_tokens": 64})
    first, second = (engine_arguments(policy)["kv_transfer_config"]["kv_connector_extra_config"] for _ in range(2))
    assert first["lmcache.mp.port"] != second["lmcache.mp.port"]
    assert "--l1-size-gb 2 " in first["lmcache.mp.autostart.server_args"]
    assert "--chunk-size 64 " in first["lmcache.mp.autostart.server_args"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("repeats", "repeat", "unknown entry repeat"),
        ("block_size = [16, 32]", "block_size = 16", "axis block_size: expected a list"),
        ('"fcfs"', '"fifo"', "no policy 'fifo'"),
        (", host_gib = 16", "", "offloading needs host_gib"),
        ("jobs = 3", "job = 3", "no parameter job"),
        ('"90k"', '"91k"', "expected a number of tokens or 90k"),
        ("rate = 2.0", 'model = "gpt-9"', "no model shape 'gpt-9'"),
        ("rate = 2.0", "rounds = 0", "a cell has no phases: name some, and rounds of at least 1"),
        ("rate = 2.0", 'phases = ["x"]', r"no such \[workloads.NAME\]"),
        ("rate = 2.0", '"workload.ratio" = 2', "no workload of phases w has a parameter ratio"),
        ("[axes]", "[axes", "is no TOML"),
    ],
)
def test_mistakes_are_found_before_anything_runs(old: str, new: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(KvtraceError, match=rf"m.toml: .*{message}|m.toml is no TOML"):
        matrix(tmp_path, TEXT.replace(old, new, 1))


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_the_studies_can_be_run(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: dict[str, Workload] = {}

    def make_once(name: str, given: dict[str, Any]) -> Workload:
        """Cells that differ in their engine alone have one workload, and making it is what takes time."""
        key = json.dumps([name, given], sort_keys=True)
        if key not in made:
            made[key] = make(name, given)
        return made[key]

    monkeypatch.setattr("kvtrace.lab.matrix.make", make_once)
    found = read_matrix(path)
    for cell in found.cells:
        if cell.policy["name"] != "hf-generate":
            arguments_of(cell, cell.make_workloads())
    assert found.compare is None or len(found.axes[found.compare]) > 1


def test_the_command_line_lists_cells_and_describes_workloads(tmp_path: Path) -> None:
    (tmp_path / "m.toml").write_text(TEXT)
    listed = CliRunner().invoke(app, ["lab", "run", str(tmp_path / "m.toml"), "-o", str(tmp_path / "x"), "--dry-run"])
    assert len(listed.stdout.splitlines()) == 8
    assert "m: policy offloading 16 GiB, block_size 32, repeat 1  (" in listed.stdout
    assert not (tmp_path / "x").exists()
    arguments = ["lab", "run", str(tmp_path / "m.toml"), "-o", str(tmp_path / "x"), "--dry-run", "--share"]
    shares = [CliRunner().invoke(app, [*arguments, f"{number}/3"]).stdout.splitlines() for number in (1, 2, 3)]
    assert [len(share) for share in shares] == [3, 3, 2]
    assert sorted(chain.from_iterable(shares)) == sorted(listed.stdout.splitlines())
    only = ["--only", "block_size 32, repeat 1", "--only", "policy offloading"]
    some = CliRunner().invoke(app, [*arguments[:-1], *only]).stdout.splitlines()
    wanted = [[line for line in listed.stdout.splitlines() if text in line] for text in only[1::2]]
    assert some == list(dict.fromkeys(chain.from_iterable(wanted)))
    assert "no cell has that" in str(CliRunner().invoke(app, [*arguments[:-1], "--only", "offloadin gs"]).exception)
    for wrong in ("0/3", "4/3", "1", "a/b", "-1/2"):
        refused = CliRunner().invoke(app, [*arguments, wrong])
        assert isinstance(refused.exception, KvtraceError)
        assert "expected I/N" in str(refused.exception)
    told = CliRunner().invoke(app, ["lab", "workload", "fixed", "jobs=7", "rate=0.5", "seed=3"])
    expected = make("fixed", {"kind": "fixed", "jobs": 7, "rate": 0.5, "seed": 3}).digest()
    assert json.loads(told.stdout)["sha256"] == expected
    kinds = CliRunner().invoke(app, ["lab", "workload"]).stdout
    assert "\nmooncake: path=? jobs=1000 longest=32768" in kinds
