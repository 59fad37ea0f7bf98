"""MkDocs hooks of the documentation site: the pages are those of the repository, as they lie.

The navigation is the index, docs/README.md. Pages of the root become pages of the site, and links to them are
rewritten; GitHub shows the same files with the same links.
"""

from __future__ import annotations

import json
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from kvtrace.lab.explorer import explorer_page, runs_of

ROOT = Path(__file__).parent.parent.parent
FRONT = {
    "README.md": "index.md",
    "docs/README.md": "contents.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "RELEASING.md": "releasing.md",
    "CHANGELOG.md": "changelog.md",
    "examples/recordings/README.md": "recordings.md",
    "examples/notebooks/pandas.ipynb": "tutorials/pandas.md",
    "examples/notebooks/polars.ipynb": "tutorials/polars.md",
    "docs/studies/results": "studies/explorer.html",
}
"""Files of the repository that have another name on the site, and the folder of results, of which it has a page."""
EXPLORE = ROOT / ".explore"
"""Pages of recordings that `make explore` made. `make site` copies them if they are there."""

SHOWN = {"page.html": "page", "report/report.html": "report"}
SOURCES = {place: name for name, place in FRONT.items()}
LINK = re.compile(r"(?<=\]\()([^)\s#]+)(?=[)#])")
CODE = re.compile(r"\[([^]]+)\]\((?:\.\./)*(?:LICENSE|[\w/.-]+\.(?:py|c|ts|toml|sql))\)")
NAV = re.compile(r"^(?P<level>##+) (?P<section>.+)|^(?:-|\d\.) \[(?P<title>[^]]+)\]\((?P<target>[^)]+)\)", re.MULTILINE)


def on_config(config: Any) -> Any:
    """Take the navigation from the index."""
    config.nav = [{"Home": "index.md"}, *navigation((ROOT / "docs" / "README.md").read_text())]
    about = {"All pages": "contents.md"}, {"Changes": "changelog.md"}, {"Releasing": "releasing.md"}
    config.nav.append({"About": list(about)})
    config.watch += [str(ROOT / name) for name in FRONT]
    return config


def navigation(index: str) -> list[Any]:
    """The index's sections and the pages that they list, without links into the middle of a page."""
    nav: list[Any] = []
    listed: list[list[Any]] = [nav]
    for line in NAV.finditer(index):
        if line["section"]:
            level = len(line["level"]) - 1
            del listed[level:]
            listed[-1].append({line["section"]: (pages := [])})
            listed.append(pages)
        elif "#" not in line["target"]:
            listed[-1].append({line["title"].replace("`", ""): site_path("docs/README.md", line["target"])})
    return nav


def site_path(page: str, target: str) -> str:
    """The place on the site of what a page of the repository links to."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(page), target))
    return FRONT.get(path, path.removeprefix("docs/"))


def on_files(files: Files, config: Any) -> Files:
    """Add the root's pages under their names on the site."""
    if there := files.get_file_from_path("README.md"):
        files.remove(there)
    for name, place in FRONT.items():
        if name.endswith(".ipynb"):
            files.append(File.generated(config, place, content=notebook(ROOT / name)))
        elif (ROOT / name).is_dir():
            runs = runs_of(sorted((ROOT / name).iterdir()))
            files.append(File.generated(config, place, content=explorer_page(runs)))
        else:
            files.append(File.generated(config, place, abs_src_path=str(ROOT / name)))
    for stamp in EXPLORE.glob("*/made"):
        for shown in SHOWN:
            place = f"explore/{stamp.parent.name}/{shown}"
            files.append(File.generated(config, place, abs_src_path=str(stamp.parent / shown)))
    return files


def notebook(path: Path) -> str:
    """Return a notebook as a page: its text, code and what that showed."""
    cells = json.loads(path.read_text())["cells"]
    parts = []
    for cell in cells:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
        for output in cell.get("outputs", ()):
            data = output.get("data", {"text/plain": output.get("text", "")})
            if "image/png" in data:
                parts.append(f"![The plot of the cell above](data:image/png;base64,{data['image/png'].strip()})")
            else:
                parts.append(f"```text\n{''.join(data['text/plain'])}\n```")
    return "\n\n".join(parts) + "\n"


def with_explored(markdown: str) -> str:
    """Add links to the page and report of each recording in the first column of a table."""

    def linked(row: re.Match[str]) -> str:
        place = f"explore/{row[1]}"
        if not (EXPLORE / row[1] / "made").exists():
            return row[0]
        return f"| `{row[1]}` " + " ".join(f"[{what}]({place}/{file})" for file, what in SHOWN.items())

    return re.sub(r"^\| `([\w-]+)`(?= \|)", linked, markdown, flags=re.MULTILINE)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Make links between pages of the repository links between pages of the site; those to its code become text."""
    here = page.file.src_uri
    source = SOURCES.get(here, f"docs/{here}")

    def moved(link: re.Match[str]) -> str:
        if ":" in link[0]:
            return link[0]
        return posixpath.relpath(site_path(source, link[0]), posixpath.dirname(here) or ".")

    text = LINK.sub(moved, CODE.sub(r"\1", markdown))
    text = with_explored(text) if here == FRONT["examples/recordings/README.md"] else text
    return re.sub(r"`[^`\n]+`", lambda code: code[0].replace("\\|", "|"), text)  # in a table GitHub wants it escaped


LONGEST_WHOLE, LONGEST_IN_TABLE = 32, 16
SPLIT = re.compile(r"(<pre.*?</pre>|<table.*?</table>)", re.DOTALL)


def on_page_content(html: str, **_: Any) -> str:
    """Keep short code in one line: a browser breaks it behind every hyphen, `--` too."""

    def whole(part: str, longest: int) -> str:
        return re.sub(rf"<code>(?=[^<]{{1,{longest}}}</code>)", '<code class="whole">', part)

    parts = SPLIT.split(html)
    parts[::2] = (whole(part, LONGEST_WHOLE) for part in parts[::2])
    parts[1::2] = (part if part.startswith("<pre") else whole(part, LONGEST_IN_TABLE) for part in parts[1::2])
    return "".join(parts)


NAMES = {
    '<div class="md-search" ': '<div class="md-search" aria-label="Search" ',
    'type="checkbox" id="__search"': 'type="checkbox" id="__search" aria-label="Search"',
    'type="checkbox" id="__drawer"': 'type="checkbox" id="__drawer" aria-label="Navigation"',
}
"""Parts that the theme leaves without a name for screen readers."""


def on_post_page(output: str, **_: Any) -> str:
    """Name the parts of a page for screen readers."""
    for part, named in NAMES.items():
        output = output.replace(part, named)
    return output


def on_post_template(output_content: str, **_: Any) -> str:
    """Do the same in the page of missing pages."""
    return on_post_page(output_content)
