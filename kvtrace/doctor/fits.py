"""Hooks and adapters held against the sources of the installed vLLM."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvtrace.doctor.check import Check, State
from kvtrace.doctor.declared import Declared, all_declared
from kvtrace.doctor.sources import Sources, how_it_fits
from kvtrace.launch.versions import parts, remark
from kvtrace.probes.connectors.registry import declarations
from kvtrace.probes.device.tiles.launch import TARGETS
from kvtrace.probes.vllm_symbols import SCHEDULER

_NEEDED = (f"{SCHEDULER}.__init__", f"{SCHEDULER}.schedule")
"""Without these there are no steps, and nearly every table is of steps."""
_KERNELS = frozenset(f"{kernel.module}:{kernel.kernel}" for kernel in TARGETS)


@dataclass(frozen=True)
class Fits:
    """How each hook fits one vLLM. `by_target` has what `how_it_fits` says."""

    version: str
    by_target: dict[str, str]

    @classmethod
    def read(cls, folder: Path) -> Fits:
        """Read vLLM's sources. `folder` holds `vllm/`.

        Raises:
            OSError: The sources cannot be read.
            SyntaxError: They are not this Python.
            ValueError: They do not tell their version.
        """
        sources = Sources(folder)
        version, facts = sources.version, sources.facts()
        return cls(version, {each.target: how_it_fits(each, version, facts[each.target]) for each in all_declared()})

    @property
    def kernels(self) -> bool:
        """All of Triton's kernels have the form that can be rewritten."""
        return all(self.by_target[kernel] == "fits" for kernel in _KERNELS)

    def hooks(self) -> Check:
        """Tell the hooks that do not fit, with what a trace lacks without them."""
        places = [each for each in all_declared() if self._is_expected(each.target)]
        unfit = [each for each in places if self.by_target[each.target] != "fits"]
        count = len(places) - len(unfit)
        text = f"{count} of {len(places)} hooks fit vLLM {self.version}"
        lines = [self._line(each) for each in unfit]
        unknown = remark(self.version)
        facts: dict[str, Any] = {"vllm": self.version, "fit": count, "of": len(places)}
        facts["unfit"] = {each.target: self.by_target[each.target] for each in unfit}
        if broken := [target for target in _NEEDED if self.by_target[target].startswith("absent")]:
            return Check("hooks", State.problem, f"{text}; steps need {', '.join(broken)}", tuple(lines), facts)
        state = State.note if lines or unknown else State.ok
        return Check("hooks", state, text, (*lines, *([unknown] if unknown else ())), facts)

    def _is_expected(self, target: str) -> bool:
        return target not in _KERNELS and self.by_target[target] != "none"

    def _line(self, declared: Declared) -> str:
        how = self.by_target[declared.target]
        lost = "" if how.startswith("degraded") else f"; lost: {'; '.join(declared.lost)}"
        return f"{declared.target}: {how}{lost}"

    def adapters(self) -> Check:
        """Tell which connectors are recorded in detail."""
        facts: dict[str, Any] = {}
        for name, declared in declarations().items():
            absent = [hook.target for hook in declared.hooks if self.by_target[hook.target].startswith("absent")]
            fits = not absent and parts(self.version) >= parts(declared.since)
            facts[name] = {"fits": fits, "connectors": [form.name for form in declared.forms]}
        lacking = [name for name, fact in facts.items() if not fact["fits"]]
        text = f"adapters that fit: {', '.join(name for name in facts if name not in lacking) or 'none'}"
        if not lacking:
            return Check("connectors", State.ok, text, facts=facts)
        why = f"do not fit: {', '.join(lacking)}; of their connectors no transfers are recorded"
        return Check("connectors", State.note, text, (why,), facts)
