from __future__ import annotations

import hashlib
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvtrace import __version__
from kvtrace.format import layout
from kvtrace.launch.launch import child_environment
from tests.record.processes import Engine, Run, Start


def manifest(run: Path) -> dict[str, object]:
    return json.loads((run / "manifest.json").read_text())


def test_a_run_is_described_in_its_manifest(record: Run, engine: Engine, tmp_path: Path) -> None:
    before = time.time_ns()
    result = record("-o", "run", *engine("step(3)"), "--api-key", "sesame")

    assert result.returncode == 0, result.stderr
    facts = manifest(tmp_path / "run")
    assert facts["command"] == [*engine("step(3)"), "--api-key", "***"]
    assert facts["format_version"] == layout.FORMAT_VERSION
    assert facts["kvtrace_version"] == __version__
    assert facts["exit_code"] == 0
    assert before <= facts["started_ns"] < facts["ended_ns"] <= time.time_ns()
    assert [path.name for path in (tmp_path / "run").iterdir() if path.name.startswith(".")] == []


def test_the_summary_says_what_was_recorded(record: Run, engine: Engine, tmp_path: Path) -> None:
    result = record("-o", "run", *engine("step(3); print(os.getpid())"))

    summary = result.stderr.decode()
    assert "1 process of vLLM 0.32.0" in summary
    assert f"pid {result.stdout.decode().strip()}" in summary
    assert "step_schedule 3" in summary
    assert "kvtrace ingest run" in summary


@pytest.mark.parametrize("code", [0, 1, 3, 255])
def test_the_exit_code_is_the_commands(record: Run, tmp_path: Path, code: int) -> None:
    assert record("-o", "run", "sh", "-c", f"exit {code}").returncode == code
    assert manifest(tmp_path / "run")["exit_code"] == code


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGSEGV, signal.SIGABRT])
def test_a_command_killed_by_a_signal_takes_kvtrace_with_it(
    record: Run, tmp_path: Path, number: signal.Signals
) -> None:
    result = record("-o", "run", "sh", "-c", f"kill -{int(number)} $$")

    assert result.returncode == -number
    assert manifest(tmp_path / "run")["exit_code"] == -number
    assert number.name in result.stderr.decode()
    assert list(tmp_path.glob("core*")) == []


def test_stdout_is_the_commands_byte_for_byte(record: Run) -> None:
    noise = bytes(range(256)) * 5000
    result = record("head", "-c", str(len(noise)), "/dev/stdin", input=noise, stdin=None)

    assert hashlib.sha256(result.stdout).digest() == hashlib.sha256(noise).digest()


def test_the_command_has_kvtraces_stderr(record: Run) -> None:
    result = record("--quiet", "sh", "-c", "printf abc >&2")
    assert result.stderr.startswith(b"abc")


def test_stdin_is_left_for_the_command(start: Start) -> None:
    process = start("cat")
    process.stdin.write(b"one\n")
    assert process.stdout.read(4) == b"one\n"
    process.stdin.close()
    assert process.wait() == 0


@pytest.mark.parametrize("separator", [[], ["--"]])
def test_options_after_the_command_are_the_commands(record: Run, separator: list[str]) -> None:
    words = ["printf", "%s,", "serve", "--quiet", "-o", "x", "--", "--help"]
    assert record("-o", "run", *separator, *words).stdout == b"serve,--quiet,-o,x,--,--help,"


def test_the_command_starts_with_the_signals_it_would_have_had(record: Run, environment: dict[str, str]) -> None:
    def signals(status: bytes) -> dict[str, int]:
        lines = (line.split() for line in status.decode().splitlines())
        # glibc's posix_spawn ignores the two signals that it keeps for itself (32 and 33)
        return {name: int(mask, 16) & ~(3 << 31) for name, mask in lines}

    question = ["grep", "-E", "^Sig(Blk|Ign|Cgt)|^ShdPnd", "/proc/self/status"]
    without = subprocess.run(question, capture_output=True, check=True, env=environment)
    assert signals(record(*question).stdout) == signals(without.stdout)


def test_the_command_is_in_kvtraces_process_group(start: Start) -> None:
    process = start("sh", "-c", "cut -d' ' -f4-6 /proc/$$/stat")
    assert process.stdout.read().split() == [str(process.pid).encode()] * 3


def test_a_script_without_a_shebang_runs_as_in_a_shell(record: Run, tmp_path: Path) -> None:
    (tmp_path / "go").write_text("echo gone $1\n")
    (tmp_path / "go").chmod(0o755)
    assert record("./go", "far").stdout == b"gone far\n"


def test_the_environment_names_the_run_directory(record: Run, tmp_path: Path) -> None:
    result = record("-o", "run", "sh", "-c", "cd / && echo $KVTRACE_RUN_DIR")
    assert result.stdout.decode().strip() == str(tmp_path / "run")


@pytest.mark.parametrize(
    ("plugins", "expected"),
    [(None, None), ("", "kvtrace"), ("lora", "lora,kvtrace"), ("kvtrace,lora", "kvtrace,lora")],
)
def test_kvtrace_is_among_the_plugins_that_may_load(plugins: str | None, expected: str | None) -> None:
    environment = {} if plugins is None else {"VLLM_PLUGINS": plugins}
    assert child_environment(environment, Path("run")).get("VLLM_PLUGINS") == expected


@pytest.mark.parametrize(
    ("prefixes", "expected"),
    [(None, "KVTRACE_"), ("", "KVTRACE_"), ("AWS_, GCP_", "AWS_, GCP_,KVTRACE_"), ("KVTRACE_,AWS_", "KVTRACE_,AWS_")],
)
def test_vllm_copies_what_kvtrace_needs_to_ray_actors(prefixes: str | None, expected: str) -> None:
    """`tests/vllm/test_launches.py` asks vLLM itself."""
    name = "VLLM_RAY_EXTRA_ENV_VAR_PREFIXES_TO_COPY"
    environment = {} if prefixes is None else {name: prefixes}
    assert child_environment(environment, Path("run"))[name] == expected


def tenants_of(record: Run, *options: str) -> dict[str, str]:
    """Return what vLLM's processes are told of tenants."""
    result = record(*options, "sh", "-c", 'printf "%s" "$_KVTRACE_TENANTS"')
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout or "{}")


def test_each_recording_hashes_tenants_with_a_key_of_its_own_and_does_not_keep_it(record: Run, tmp_path: Path) -> None:
    first, second = (tenants_of(record, "-o", run) for run in ("a", "b"))
    assert (first["naming"], first["header"]) == ("hashed", "X-Tenant-Id")
    assert len({first["key"], second["key"]}) == 2
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and first["key"] in path.read_text("latin-1")]


def test_recordings_with_one_key_file_have_one_key(record: Run, tmp_path: Path) -> None:
    option = ["--tenant-key-file", "key"]
    first, second = (tenants_of(record, "-o", run, *option) for run in ("a", "b"))
    assert first == second
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    refused = record("--tenants", "names", *option, "true")
    assert (refused.returncode, b"--tenant-key-file" in refused.stderr) == (2, True)


def test_tenants_are_recorded_as_asked(record: Run, environment: dict[str, str]) -> None:
    asked = tenants_of(record, "-o", "a", "--tenants", "names", "--tenant-header", "X-Org")
    assert asked == {"naming": "names", "header": "X-Org", "key": ""}
    environment["_KVTRACE_TENANTS"] = "{}"  # of a recording around this one
    assert tenants_of(record, "-o", "b", "--tenants", "off") == {}
    refused = record("--tenants", "names", "--tenant-header", "Authorization", "true")
    assert (refused.returncode, b"may hold a secret" in refused.stderr) == (2, True)


@pytest.mark.parametrize("quiet", [[], ["--quiet"]])
def test_a_command_that_recorded_nothing_is_a_problem_but_not_a_failure(record: Run, quiet: list[str]) -> None:
    result = record("-o", "run", *quiet, "true")
    assert result.returncode == 0
    assert b"no vLLM process recorded anything" in result.stderr
    assert b"VLLM_PLUGINS" in result.stderr


def test_quiet_says_nothing_when_all_is_well(record: Run, engine: Engine) -> None:
    assert record("--quiet", *engine("step(3)")).stderr == b""


def test_no_command_is_a_usage_error(record: Run, tmp_path: Path) -> None:
    result = record("-o", "run")
    assert result.returncode == 2
    assert b"COMMAND" in result.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("command", "code"), [("no-such-command", 127), ("./no-such-file", 127), ("./data", 126), ("./lost", 127)]
)
def test_a_command_that_cannot_start_is_one_line_and_leaves_nothing(
    record: Run, tmp_path: Path, command: str, code: int
) -> None:
    (tmp_path / "data").write_text("")
    (tmp_path / "lost").write_text("#!/no/such/interpreter\n")
    (tmp_path / "lost").chmod(0o755)
    result = record("-o", "run", command)

    assert result.returncode == code
    *begun, refused = result.stderr.decode().splitlines()
    assert all(line.startswith("kvtrace: recording to run") for line in begun)
    assert command in refused
    assert not (tmp_path / "run").exists()


def test_a_taken_run_directory_is_refused_before_the_command_starts(record: Run, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("")
    result = record("-o", ".", "touch", "started")
    assert result.returncode == 2
    assert result.stderr.decode().count("\n") == 1
    assert not (tmp_path / "started").exists()


def test_a_python_without_vllm_is_refused_before_the_command_starts(record: Run, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    command = [python, "-c", "print('started')"]

    refused = record("-o", "run", *command)
    assert refused.returncode == 2
    assert refused.stdout == b""
    assert refused.stderr.decode().count("\n") == 1
    assert python in refused.stderr.decode()
    assert not (tmp_path / "run").exists()
    assert record("--no-preflight", *command).stdout == b"started\n"


def test_a_run_directory_deleted_meanwhile_does_not_harm_the_command(record: Run) -> None:
    result = record("-o", "run", "sh", "-c", 'rm -r "$KVTRACE_RUN_DIR"; exit 5')
    assert result.returncode == 5
    assert b"Traceback" not in result.stderr


def test_a_closed_stderr_does_not_harm_the_command(start: Start) -> None:
    process = start("sh", "-c", "read line; exit 6")
    process.stderr.close()
    process.stdin.write(b"\n")
    assert process.wait() == 6


def test_without_a_name_the_run_directory_is_made_in_the_working_directory(record: Run, tmp_path: Path) -> None:
    assert record("true").returncode == 0
    (run,) = tmp_path.iterdir()
    assert run.name.startswith("kvtrace-run-")
    assert [path.name for path in run.iterdir()] == ["manifest.json"]
