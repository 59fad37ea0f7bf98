"""C's records and enumerations, generated from `kvtrace.events`.

python -m kvtrace.capture.header > kvtrace/capture/native/events.h     # `make docs` does
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from kvtrace.events import ENUMS, EVENTS, EnumType, Event, snake

_C_TYPES = {"q": "int64_t", "Q": "uint64_t", "i": "int32_t", "I": "uint32_t", "B": "uint8_t", "?": "uint8_t"}
_HEAD = """\
/* Generated from kvtrace/events.py by `make docs`: records as they lie in segment files, and enumerations.
 *
 * A hook fills a record by its fields' names and gives it to packer_store with a packer that packer_accepts its layout.
 */
/* clang-format off */

#ifndef KVTRACE_EVENTS_H
#define KVTRACE_EVENTS_H

#include <stddef.h>
#include <stdint.h>
"""


def header() -> str:
    """The text of `events.h`."""
    parts = [
        _HEAD,
        *map(_enum, ENUMS),
        "#pragma pack(push, 1)\n",
        *map(_record, EVENTS.values()),
        "#pragma pack(pop)\n",
    ]
    return "\n".join([*parts, *map(_checks, EVENTS.values()), "", "#endif\n"])


def _enum(enum: EnumType) -> str:
    members = "".join(f"    {snake(enum.__name__)}_{member.name}".upper() + f" = {member.value},\n" for member in enum)
    return f"enum {{ /* {enum.__name__} */\n{members}}};\n"


def _record(event: Event) -> str:
    fields = "".join(f"    {_C_TYPES[field.type.code]} {field.name};\n" for field in event.fields)
    layout = " ".join(_pieces(event.layout))
    whole = "    uint8_t whole; /* 1 once all of it is written */\n"
    struct = f"typedef struct {{\n{fields}{whole}}} {_camel(event.name)}Record;\n"
    return f"{struct}#define {event.name.upper()}_LAYOUT {layout}\n"


def _pieces(layout: str) -> Iterator[str]:
    """A long string literal in lines of one word each."""
    words = layout.split(" ")
    for index, word in enumerate(words):
        yield f'\\\n    "{word}{"" if index == len(words) - 1 else " "}"'


def _checks(event: Event) -> str:
    name = f"{_camel(event.name)}Record"
    return f'_Static_assert(sizeof({name}) == {event.struct.size}, "{name} is not packed");'


def _camel(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


if __name__ == "__main__":
    sys.stdout.write(header())
