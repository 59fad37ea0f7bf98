"""The purpose of a kernel, by its function's name and template arguments: the first rule that they meet decides.

Namespaces are left out: an embedding kernel of `fbgemm_gpu` is no GEMM. So are the types of a function's parameters.

Names change with every release of every library, so this is a guess by documented rules, never an observation. The
rule that decided is kept beside the category.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from kvtrace.ingest.gpu.enums import KernelCategory, LayerRole

_C = KernelCategory


class Verdict(NamedTuple):
    """Result of reading a name."""

    category: KernelCategory
    rule: str | None
    role: LayerRole | None


RULES: tuple[tuple[KernelCategory, str], ...] = (
    (_C.kvtrace, r"^kvt_"),
    (
        _C.communication,
        r"nccl|nvshmem|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|all2all|cross_device_reduce",
    ),
    (_C.kv_write, r"(reshape|concat)_and_cache|quant_and_cache|append_?paged_?kv|(write|store|set)_kv|kv_cache_update"),
    (
        _C.attention,
        r"flash_?attn|flash_?infer|flash_fwd|fmha|attention|(^|[\W_])attn|paged_?attn|merge_attn|grouped_att",
    ),
    (_C.attention, r"batch_?(prefill|decode)with|xqa|(^|_)mla_|flash_?mla|reduce_segments|varlen_num_blocks"),
    (_C.other, r"topk_?gating|topk_softmax|grouped_topk|moe_(align|sum|permute|unpermute)"),
    (
        _C.sampling,
        r"gumbel|sampl|top_?k|top_?p|min_p|argmax|multinomial|penalt|temperature|bincount|logits|log_softmax",
    ),
    (_C.sampling, r"digit_?(cum|counts)|kth_?counts|within_?k_?counts|blockidxtokey"),  # of PyTorch's radix top-k
    (_C.sampling, r"bitmask|bad_words|_ranks_kernel|rejection|bitonicsort|logprob"),
    (_C.gemm, r"^Cijk_|(^|_)bmm_"),  # AMD's Tensile, TensorRT-LLM
    (_C.gemm, r"gemm|nvjet|cublas|cutlass|xmma|matmul|scaled_mm|marlin|machete|fused_moe|gemv|split_?k"),
    (_C.norm_activation, r"norm|silu|gelu|relu|swiglu|act_and_mul"),
    (_C.copy, r"copy|(?<!pre)fill|catarray|gather|scatter|index|transpose|swap_blocks|arange"),
)
"""Category and regular expression, matched anywhere in function and template arguments, without regard to case."""

_COMBINE = r"combine|reduce|merge"
_NO_LAYER = r"prepare|num_blocks|metadata|schedule_|_plan|indexer"
_ROLE_OF_CATEGORY = {_C.kv_write: LayerRole.kv_write, _C.attention: LayerRole.attention}
_NAMESPACE = re.compile(r"(?:\(anonymous namespace\)|<unnamed>|\b[A-Za-z_]\w*)::")
_RETURN_TYPE = re.compile(r"(void|auto) |(?=(typename )?std::enable_if)")
_COMPILED = tuple((category, rule, re.compile(rule, re.IGNORECASE)) for category, rule in RULES)


def classify(name: str) -> Verdict:
    """Return the purpose that a kernel's demangled name tells."""
    text = _without_namespaces(name)
    for category, rule, pattern in _COMPILED:
        if pattern.search(text):
            return Verdict(category, rule, _role(category, name))
    return Verdict(_C.other, None, None)


def _without_namespaces(name: str) -> str:
    """Function and template arguments, without namespaces and without the list of parameters."""
    text = _NAMESPACE.sub("", _without_return_type(name))
    return next((text[:at] for at, char in _outside(text) if char == "(" and at), text)


def _without_return_type(name: str) -> str:
    match = _RETURN_TYPE.match(name)
    if match is None:
        return name
    if match[0]:
        return name[match.end() :]
    text = name.removeprefix("typename ")
    return next((text[at + 1 :] for at, char in _outside(text) if char == " "), text)


def _outside(text: str) -> Iterator[tuple[int, str]]:
    """Characters outside of brackets, opening ones included. In parentheses, `<` and `>` may compare: `((8)>(0))`."""
    opened: list[str] = []
    for at, char in enumerate(text):
        if not opened:
            yield at, char
        if char in "<(":
            opened.append(char)
        elif char == ")":
            while opened and opened.pop() != "(":
                pass
        elif char == ">" and opened and opened[-1] == "<":
            opened.pop()


def _role(category: KernelCategory, name: str) -> LayerRole | None:
    """The part of a layer it plays. A step's set-up kernels belong to attention, but to no layer."""
    if category is not _C.attention:
        return _ROLE_OF_CATEGORY.get(category)
    function = _function(name)
    if re.search(_NO_LAYER, function, re.IGNORECASE):
        return None
    return LayerRole.attention_combine if re.search(_COMBINE, function, re.IGNORECASE) else LayerRole.attention


def _function(name: str) -> str:
    """The part of a name that says which function it is: CUTLASS hides it in its kernel's first template argument."""
    text = name.split("device_kernel<", 1)[-1]
    while (inner := re.match(r"(?!std::)[\w:]*enable_\w*<", text)) is not None:
        text = text[inner.end() :]
    return re.split(r"[<(]", _without_return_type(text), maxsplit=1)[0]


def short_name(demangled: str) -> str:
    """The function's name alone, for profiles that keep only the whole one."""
    text = _without_return_type(demangled)
    head = re.split(r"[<(]", text.replace("(anonymous namespace)", "anonymous"), maxsplit=1)[0]
    return head.rsplit("::", 1)[-1].strip() or demangled
