"""Rewrites FlashInfer's attention (CUDA C++) so that its programs record the KV tiles they read.

FlashInfer has two templates. On Hopper, vLLM's prefills run `fa3`, whose warps are specialised, and 16-bit decodes run
`fa2`, which loads and multiplies with the same warps. On other GPUs both run `fa2`. Nothing depends on line numbers.
In `fa3`, the rewriting looks for the function that multiplies (it waits for Q), for the kernel that calls it, and for
the statements that give K's and V's shared memory back: by then a tile has been multiplied. In `fa2` it looks for the
first copies, of Q, K and V, for the loop over tiles, and in it for the barriers behind the products and the copies that
are issued then. In both it looks for the function that launches. A source of another form raises `MismatchError`, and
FlashInfer's own headers stay. What a kernel computes is untouched.
"""

from __future__ import annotations

import re

from kvtrace.probes.device.tiles.source import MismatchError

KERNEL_HEADER, MULTIPLY_HEADER = "prefill_sm90.cuh", "mainloop_mma.cuh"
"""The headers of `flashinfer/attention/hopper` with the kernel and its launch, and with the products."""

FORWARD_HEADER = "prefill.cuh"
"""The header of `flashinfer/attention` with all of `fa2`."""

RECORDER_HEADER = "kvtrace.cuh"
"""Of kvtrace, in `flashinfer/attention/hopper`."""

_KERNEL, _LAUNCH = "PrefillWithKVCacheKernel", "BatchPrefillWithPagedKVCacheDispatched"
_COORDINATES = ("batch_idx", "kv_head_idx", "q_tile_idx", "kv_indptr", "kv_len")
"""Names of a program's row, head, query block, its first page's index and the sequence's length in the kernel."""

_MULTIPLY = "mma_f16"
_TILES = ("mainloop_params", "variant", "kv_tile_idx_count", "swa_begin_kv_tile_idx", "thread_idx", "CTA_KV")
_RELEASES = {"pipeline_k": "key", "pipeline_v": "value"}

_FORWARD, _BOUNDED = "BatchPrefillWithPagedKVCacheDevice", "BatchPrefillWithPagedKVCacheKernel"
_ASKING = ("paged_kv", "request_idx", "tid")
_CLAIMING = ("paged_kv", "kv_head_idx", "kv_len", "tid", "chunk_start", "chunk_size")
_PLACE = ("paged_kv", "request_idx", "kv_head_idx", "qo_tile_idx", "kv_len", "tid")
_PART = ("chunk_start", "chunk_size", "num_iterations", "CTA_TILE_KV")
_LEAVING = ("paged_kv", "request_idx", "kv_head_idx", "kv_len", "tid", "CTA_TILE_KV")
"""Names of `fa2`'s program: what it asks with and claims with; its place, the sequence's tokens, and the thread; its
part of these and its tiles; and what it needs again when it has read them."""

_COUNTED = re.compile(
    r"\bnum_iterations\s*=\s*ceil_div\(\s*\(MASK_MODE == MaskMode::kCausal\s*\?[^:;]*(?:::[^:;]*)*:\s*chunk_size\)\s*,"
    r"\s*CTA_TILE_KV\s*\)"
)
"""How `fa2` counts a program's tiles, behind its first copies: without a causal mask, those of its part."""

_BARRIER = re.compile(r"\bblock\s*\.\s*sync\s*\(\s*\)\s*;")
_ISSUED = re.compile(r"\bcp_async\s*::\s*commit_group\s*\(\s*\)\s*;")


def kernel(source: str) -> str:
    """The header with the kernel: its programs know where they are, and its launch where to write.

    Raises:
        MismatchError: The header has another form.
    """
    code = _without_comments(source)
    _, begin, end = _function(code, _KERNEL)
    made = list(re.finditer(r"\bAttentionVariant(\s+variant\s*\([^;]*\)\s*;)", code[begin:end]))
    if len(made) != 1:
        raise MismatchError(f"{_KERNEL} makes {len(made)} variants where one was expected")
    known = set(re.findall(r"\w+", " ".join(re.findall(r"auto\s*\[([^\]]*)\]", code[begin : begin + made[0].start()]))))
    if missing := [name for name in _COORDINATES if name not in known]:
        raise MismatchError(f"{_KERNEL} has no {', '.join(missing)}")
    start, behind = begin + made[0].start(), begin + made[0].end()
    name = "AttentionVariant"
    edits = [(start, "kvt::Recording<"), (start + len(name), ">")]
    edits.append((behind, f" variant.kvt_at({', '.join(_COORDINATES)});"))
    return _edited(source, [*edits, _prepared(code)])


def multiply(source: str) -> str:
    """The header with the products: a program begins before it waits for Q, and tells of each tile.

    Raises:
        MismatchError: The header has another form.
    """
    code = _without_comments(source)
    _, begin, end = _function(code, _MULTIPLY)
    known = set(re.findall(r"\w+", code[max(0, code.rfind("template", 0, begin)) : end]))
    if missing := [name for name in (*_TILES, "MULTIITEMSCORING") if name not in known]:
        raise MismatchError(f"{_MULTIPLY} has no {', '.join(missing)}")
    waits = list(re.finditer(r"\bbarrier_Q\s*\.\s*(try_)?wait\s*\(", code[begin:end]))
    if not waits:
        raise MismatchError(f"{_MULTIPLY} does not wait for Q")
    first = _statement(code, begin + waits[0].start())
    edits = [(first, f"kvt::begin<MULTIITEMSCORING>({', '.join(_TILES)});\n  ")]
    counts = {}
    for pipeline, call in _RELEASES.items():
        places = [
            begin + m.start() for m in re.finditer(rf"\b{pipeline}\s*\.\s*consumer_release\s*\(", code[begin:end])
        ]
        edits += [(place, f"kvt::{call}<MULTIITEMSCORING>(variant); ") for place in places]
        counts[pipeline] = len(places)
    if len(set(counts.values())) != 1 or not counts["pipeline_k"]:
        raise MismatchError(
            f"{_MULTIPLY} gives K's memory back at {counts['pipeline_k']} places and V's at {counts['pipeline_v']}"
        )
    last = code.index(";", max(place for place, text in edits if "value" in text)) + 1
    edits.append((last, f"\n  kvt::end({', '.join(_TILES[:2])}, thread_idx);"))
    edits.append(_included(code, RECORDER_HEADER))
    return _edited(source, edits)


def forward(source: str) -> str:
    """The header of `fa2`: a program begins while its first loads are issued, and tells of each tile.

    Raises:
        MismatchError: The header has another form.
    """
    code = _without_comments(source)
    _, begin, end = _function(code, _FORWARD)
    known = set(re.findall(r"\w+", code[max(0, code.rfind("template", 0, begin)) : end]))
    if missing := [name for name in (*_PLACE, *_PART, "MASK_MODE", "kMultiItemScoring") if name not in known]:
        raise MismatchError(f"{_FORWARD} has no {', '.join(missing)}")
    loops = list(re.finditer(r"\bfor\s*\(\s*uint32_t iter = 0;\s*iter < num_iterations;", code[begin:end]))
    if len(loops) != 1:
        raise MismatchError(f"{_FORWARD} has {len(loops)} loops over tiles where one was expected")
    loop = begin + loops[0].start()
    opening = code.index("{", _closing(code, code.index("(", loop)))
    closing = _closing(code, opening)
    if not _COUNTED.search(code, begin, loop):
        raise MismatchError(f"{_FORWARD} counts its tiles otherwise")
    first = code.find("load_q_global_smem<", begin, loop)
    issued = list(_ISSUED.finditer(code, first, loop)) if first >= 0 else []
    if len(issued) < 3:
        raise MismatchError(f"{_FORWARD} does not issue copies of Q, K and V in front of its loop")
    other, causal = (f"MASK_MODE == MaskMode::{mask}" for mask in ("kMultiItemScoring", "kCausal"))
    place, part, claiming = ", ".join(_PLACE), ", ".join(_PART), f"(kvt_asked, {', '.join(_CLAIMING)}, "
    ask = f"kvt::Asked kvt_asked{{}}; kvt::ask_forward<{other}>(kvt_asked, {', '.join(_ASKING)});\n"
    early = f" kvt::claim_forward<{other} || {causal}>{claiming}ceil_div(chunk_size, CTA_TILE_KV), CTA_TILE_KV);"
    late = f"kvt::claim_forward<!({causal})>{claiming}num_iterations, CTA_TILE_KV);\n"
    starting = f"kvt::Forward kvt_forward{{}}; kvt::begin_forward<{other}>(kvt_forward, kvt_asked, {place}, {part});\n"
    edits = [
        (_statement(code, first), ask),
        (issued[1].end(), early),
        (_statement(code, loop), late + starting),
        *_behind_copies(code, opening, closing, "update_mdo_states", " kvt::forward_key(kvt_forward);"),
        *_behind_copies(code, opening, closing, "compute_sfm_v", " kvt::forward_value<CTA_TILE_KV>(kvt_forward);"),
        (_behind_barrier(code, closing, end), f" kvt::leave(kvt_forward, {', '.join(_LEAVING)});"),
        _two_blocks(code),
    ]
    return _edited(source, [*edits, _prepared(code), _included(code, f"hopper/{RECORDER_HEADER}")])


def _two_blocks(code: str) -> tuple[int, str]:
    """Make the edit that asks for registers for two thread blocks a multiprocessor, as FlashInfer sizes its tiles.

    Its own kernel takes that many. With what is inserted the compiler finds a form for three, and blocks are spread
    unevenly over the multiprocessors then: a layer's decodes of 32 sequences took 41 us instead of 36 on an H100.

    Raises:
        MismatchError: The kernel has no bounds.
    """
    found = re.search(rf"__launch_bounds__\s*\(\s*[\w:]+\s*(\))\s*void\s+{_BOUNDED}\b", code)
    if found is None:
        raise MismatchError(f"{_BOUNDED} has no bounds of one number of threads")
    return found.start(1), ", 2"


def _behind_barrier(code: str, begin: int, end: int, what: str = "its loop") -> int:
    """Find the place behind the first barrier.

    Raises:
        MismatchError: There is none.
    """
    barrier = _BARRIER.search(code, begin, end)
    if barrier is None:
        raise MismatchError(f"{_FORWARD} has no barrier behind {what}")
    return barrier.end()


def _behind_copies(code: str, begin: int, end: int, product: str, text: str) -> list[tuple[int, str]]:
    """Make the edits that insert a text where a product's memory has been given to the next copies.

    A barrier follows the last call of the product's function. Behind it, copies are issued, in one of the branches that
    a compiler chooses from. A time that is read in front of them holds them up.

    Raises:
        MismatchError: There is no such call, barrier or copy.
    """
    calls = list(re.finditer(rf"\b{product}\s*<", code[begin:end]))
    if not calls:
        raise MismatchError(f"{_FORWARD} does not call {product}")
    begin = _behind_barrier(code, begin + calls[-1].start(), end, product)
    following = _BARRIER.search(code, begin, end)
    issued = list(_ISSUED.finditer(code, begin, following.start() if following else end))
    if not issued:
        raise MismatchError(f"{_FORWARD} issues no copies behind {product}")
    return [(copies.end(), text) for copies in issued]


def _prepared(code: str) -> tuple[int, str]:
    """Make the edit that has the launching function tell the device where the facts are.

    Raises:
        MismatchError: The function has another form.
    """
    launch, launches, _ = _function(code, _LAUNCH)
    if not re.search(r"\bcudaStream_t\s+stream\b", code[launch:launches]):
        raise MismatchError(f"{_LAUNCH} takes no stream")
    return launches, " kvt::prepare(stream);"


def _included(code: str, header: str) -> tuple[int, str]:
    """Make the edit that includes a header before all others.

    Raises:
        MismatchError: None is included.
    """
    include = re.search(r"^#include", code, re.MULTILINE)
    if include is None:
        raise MismatchError(f"the header to which {header} belongs includes nothing")
    return include.start(), f'#include "{header}"\n'


def _edited(source: str, edits: list[tuple[int, str]]) -> str:
    for place, text in sorted(edits, reverse=True):
        source = source[:place] + text + source[place:]
    return source


def _without_comments(source: str) -> str:
    """The source with blanks for comments and texts, each as long as what it replaces."""

    def blank(found: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", found.group())

    return re.sub(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"", blank, source, flags=re.DOTALL)


def _function(code: str, name: str) -> tuple[int, int, int]:
    """Find the one definition of a function: its name, its body's begin behind the bracket, and its end.

    Raises:
        MismatchError: There is none or more than one.
    """
    found = []
    for called in re.finditer(rf"\b{name}\s*\(", code):
        if opening := re.compile(r"\s*\{").match(code, _closing(code, called.end() - 1) + 1):
            found.append((called.start(), opening.end(), _closing(code, opening.end() - 1)))
    if len(found) != 1:
        raise MismatchError(f"{name} is defined {len(found)} times where once was expected")
    return found[0]


def _closing(code: str, opening: int) -> int:
    """The place of the bracket that closes the one at a place.

    Raises:
        MismatchError: There is none.
    """
    one, other = code[opening], {"(": ")", "{": "}"}[code[opening]]
    depth = 0
    for place in range(opening, len(code)):
        depth += (code[place] == one) - (code[place] == other)
        if depth == 0:
            return place
    raise MismatchError("brackets do not match")


def _statement(code: str, place: int) -> int:
    """Find where the statement at a place begins."""
    behind = max(code.rfind(mark, 0, place) for mark in ";{}") + 1
    return behind + len(code[behind:place]) - len(code[behind:place].lstrip())
