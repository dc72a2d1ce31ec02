"""One word for one thing: what must not come back into help, messages and docs."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent

INSTEAD = {
    r"pictures?": "image",
    r"skylines?": "Pareto front",
    r"multiply-adds?": "MACs",
    r"(goes|go|going|went) on": "continue",
    r"pass(es|ed)? over": "skip",
    r"drawn scenes?": "synthetic scenes",
    r"early exit by neighbours": "early exit, neighbourhood-mean entropy",
    r"prove[sd]?": "verify",
    r"mend(s|ed)?": "fix",
    r"mates?": "pairs",
    r"through and through": "recursive",
    r"who pauses": "which patches pause",
    r"judge[sd]?": "criterion, score",
    r"is no (model|number|image|folder|file)": "is not a ...",
    r"reached": "efficiency",
    r"shares? of|class shares?": "ratio",
    r"choose of": "choose from",
    r"could not be had": "could not be loaded",
    r"spare[sd]?": "save",
    r"afresh": "re-initialised",
    r"learnt": "trained",
    r"strangers?": "untrusted",
}
FORBIDDEN = re.compile(rf"\b({'|'.join(INSTEAD)})\b", re.IGNORECASE)


def texts():
    """Pages, and what each module says: its help, messages and docstrings, not its keys."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]
    for path in sorted(pages):
        yield path, path.read_text("utf-8")
    for path in sorted((ROOT / "paumer").rglob("*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        strings = (
            node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value
        )
        yield path, "\n".join(strings)
    for path in sorted((ROOT / "paumer" / "serve" / "page").glob("*.html")):
        yield path, re.sub(r"<[^>]*>", " ", path.read_text("utf-8"))


def test_only_words_of_the_vocabulary():
    found = {path: {match[0] for match in FORBIDDEN.finditer(text)} for path, text in texts()}
    assert {str(path.relative_to(ROOT)): words for path, words in found.items() if words} == {}


def test_the_list_finds_what_it_lists():
    assert FORBIDDEN.search("the patch goes on")
    assert not FORBIDDEN.search("the patch continues; an estimate, material")
