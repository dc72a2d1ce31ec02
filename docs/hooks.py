"""For the site: files outside docs/ that its pages link to come along, so that it is complete."""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
OUTSIDE = re.compile(r"(?<=\]\()\.\./(?!docs/)([\w./-]+)")


def on_files(files: Files, config: Any) -> Files:
    """Add the linked files, and those in linked folders."""
    for page in list(files.documentation_pages()):
        for name in OUTSIDE.findall(page.content_string):
            path = ROOT / name
            for one in [path] if path.is_file() else sorted(path.rglob("*.*")):
                source = one.relative_to(ROOT).as_posix()
                if one.is_file() and "__pycache__" not in source and source not in files.src_uris:
                    files.append(File.generated(config, source, abs_src_path=str(one)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Lead the links to where these files are in the site, and theirs back to the pages."""
    if page.file.generated_by:
        return markdown.replace("](../docs/", "](../")
    return OUTSIDE.sub(r"\1", markdown)
