"""The exporter: its text, its server, its names, and a real Prometheus that scrapes it."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvtrace.events import EVENTS
from kvtrace.live.follow import Follower
from kvtrace.live.openmetrics import METRICS, render
from kvtrace.live.window import EXPORTED_NS
from tests.live.pretend import PretendEngine, begin, work
from tests.record.processes import KVTRACE, Output

DASHBOARD = Path(__file__).parent.parent.parent / "examples" / "grafana" / "kvtrace.json"
SECRETS = ("secret-model", "secret-request", "secret-session")


@pytest.fixture
def engine(tmp_path: Path) -> PretendEngine:
    begin(tmp_path / "run")
    engine = PretendEngine(tmp_path / "run")
    work(engine, 10)
    engine.queue("secret-request-waiting", 20, [7])
    engine.run_step()
    return engine


def text_of(engine: PretendEngine, **options: bool) -> str:
    follower = Follower(engine.run)
    follower.poll()
    return render(follower, **{"open_metrics": False, **options})


@pytest.fixture
def exporter(engine: PretendEngine) -> Iterator[str]:
    """The address of `kvtrace metrics` of the engine's recording."""
    command = [*KVTRACE, "metrics", str(engine.run), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        shown = Output(process.stderr.fileno()).read_until(rb"http\S+/metrics")
        try:
            yield re.findall(rb"http\S+/metrics", shown)[0].decode()
        finally:
            process.terminate()


def get(url: str, accept: str = "") -> tuple[str, str]:
    request = urllib.request.Request(url, headers={"Accept": accept} if accept else {})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


def test_counters_are_the_recordings(engine: PretendEngine) -> None:
    found = dict(re.findall(r'^(\w+)\{engine="0"\} (\S+)$', text_of(engine), re.MULTILINE))
    expected = engine.expected
    for name, value in {
        "prefix_cache_queries_tokens_total": expected.queried,
        "prefix_cache_hits_tokens_total": expected.hits,
        "generation_tokens_total": expected.output,
        "prompt_tokens_total": expected.prompt,
        "num_preemptions_total": expected.preempted,
        "kv_cache_evicted_blocks_total": expected.evicted,
        "num_requests_waiting": 1,
        "num_requests_running": 0,
    }.items():
        assert float(found[f"kvtrace_{name}"]) == value, name


def test_records_that_were_lost_are_counted(engine: PretendEngine) -> None:
    engine.recorder.drop(EVENTS["block_event"], 7)
    assert 'kvtrace_dropped_records_total{engine="0",stream="block_event"} 7\n' in text_of(engine)


@pytest.mark.parametrize("open_metrics", [True, False])
def test_the_text_parses_and_says_the_same_in_both_formats(engine: PretendEngine, open_metrics: bool) -> None:
    parser = pytest.importorskip("prometheus_client.openmetrics.parser" if open_metrics else "prometheus_client.parser")
    families = list(parser.text_string_to_metric_families(text_of(engine, open_metrics=open_metrics)))
    assert {f"kvtrace_{metric.name}" for metric in METRICS} <= {family.name for family in families}
    (latency,) = [family for family in families if family.name == "kvtrace_time_to_first_token_seconds"]
    assert latency.type == "histogram"
    assert len(latency.samples) == len(EXPORTED_NS) + 3


def test_promtool_finds_nothing_wrong(engine: PretendEngine) -> None:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed: apt-get install prometheus")
    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=text_of(engine), capture_output=True, text=True, check=False
    )
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


def test_names_are_served_only_when_asked_for(engine: PretendEngine) -> None:
    assert not any(secret in text_of(engine) for secret in SECRETS)
    named = text_of(engine, with_names=True)
    assert 'model_name="secret-model"' in named
    assert not any(secret in named for secret in SECRETS[1:])


def test_the_server_answers_locally_in_the_format_asked_for(exporter: str, engine: PretendEngine) -> None:
    assert urllib.parse.urlsplit(exporter).hostname == "127.0.0.1"
    kind, text = get(exporter)
    assert kind.startswith("text/plain")
    assert f'kvtrace_steps_total{{engine="0"}} {engine.expected.steps}' in text
    kind, text = get(exporter, "application/openmetrics-text;version=1.0.0")
    assert kind.startswith("application/openmetrics-text")
    assert text.endswith("# EOF\n")
    with pytest.raises(urllib.error.HTTPError, match="404"):
        get(exporter.replace("/metrics", "/"))


def test_a_port_in_use_is_an_error_that_says_so(exporter: str, engine: PretendEngine) -> None:
    port = str(urllib.parse.urlsplit(exporter).port)
    tried = subprocess.run(
        [*KVTRACE, "metrics", str(engine.run), "--port", port], capture_output=True, text=True, check=False, timeout=30
    )
    assert tried.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}" in tried.stderr


def test_once_prints_the_metrics_of_a_run_that_does_not_exist_yet(tmp_path: Path) -> None:
    done = subprocess.run(
        [*KVTRACE, "metrics", str(tmp_path / "run"), "--once"], capture_output=True, text=True, check=True, timeout=30
    )
    assert "kvtrace_recording 0" in done.stdout


def expressions() -> list[str]:
    """Every expression of the dashboard, with its variables filled in."""
    found: list[str] = []

    def look(value: Any) -> None:
        if isinstance(value, dict):
            found.extend(value[key] for key in ("expr",) if key in value)
            for each in value.values():
                look(each)
        elif isinstance(value, list):
            for each in value:
                look(each)

    look(json.loads(DASHBOARD.read_text()))
    return [each.replace("$__rate_interval", "10s").replace("$engine", ".*") for each in found]


def test_the_dashboard_names_only_what_is_exported(engine: PretendEngine) -> None:
    exported = set(re.findall(r"^(kvtrace_\w+)", text_of(engine), re.MULTILINE))
    used = {name for each in expressions() for name in re.findall(r"kvtrace_\w+", each)}
    assert used
    assert used <= exported


def test_a_real_prometheus_scrapes_it_and_answers_the_dashboards_expressions(exporter: str, tmp_path: Path) -> None:
    if shutil.which("prometheus") is None:
        pytest.skip("prometheus is not installed: apt-get install prometheus")
    target, address = urllib.parse.urlsplit(exporter).netloc, f"127.0.0.1:{free_port()}"
    config = {
        "global": {"scrape_interval": "1s"},
        "scrape_configs": [{"job_name": "kvtrace", "static_configs": [{"targets": [target]}]}],
    }
    (tmp_path / "prometheus.yml").write_text(json.dumps(config))
    command = ["prometheus", f"--config.file={tmp_path / 'prometheus.yml'}", f"--storage.tsdb.path={tmp_path / 'tsdb'}"]
    with subprocess.Popen([*command, f"--web.listen-address={address}"], stderr=subprocess.DEVNULL) as process:
        try:
            url = f"http://{address}"
            wait_for(url, 'count_over_time(up{job="kvtrace"}[1m]) >= 3')
            assert ask(url, 'up{job="kvtrace"}')[0]["value"][1] == "1"
            for expression in expressions():
                assert ask(url, expression), f"no answer to {expression}"
        finally:
            process.terminate()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_for(url: str, expression: str) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            if ask(url, expression):
                return
        except OSError:  # it is still starting
            pass
        time.sleep(0.2)
    raise AssertionError(f"{expression} had no answer in 60 s")


def ask(url: str, expression: str) -> list[dict[str, Any]]:
    with urllib.request.urlopen(
        f"{url}/api/v1/query?{urllib.parse.urlencode({'query': expression})}", timeout=10
    ) as reply:
        result: list[dict[str, Any]] = json.load(reply)["data"]["result"]
        return result
