"""The docs are executed: every python block of the README and of docs/*.md runs in a fresh folder."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"(?:<!-- file: (?P<file>\S+) -->\n)?```python\n(?P<code>.*?)```", re.S)


def blocks(page: Path) -> list[tuple[str, str]]:
    """A page's programs: blocks with a file name stand alone, the others make one program together."""
    alone: list[tuple[str, str]] = []
    together: list[str] = []
    for found in FENCE.finditer(page.read_text(encoding="utf-8")):
        if found["file"]:
            alone.append((found["file"], found["code"]))
        else:
            together.append(found["code"])
    return alone + ([("page.py", "\n".join(together))] if together else [])


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PROGRAMS = [pytest.param(page, name, code, id=f"{page.stem}-{name}") for page in PAGES for name, code in blocks(page)]


@pytest.mark.parametrize("page, name, code", PROGRAMS)
def test_every_python_block_of_the_docs_runs(page: Path, name: str, code: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(code, encoding="utf-8")
    environment = {**os.environ, "PYTHONWARNINGS": "error", "PYTHONPATH": str(ROOT / "src")}
    environment.pop("DOUBTLESS_STORE", None)
    done = subprocess.run([sys.executable, name], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, f"{page.name}: {name}\n{done.stdout}\n{done.stderr}"
    if page.name == "README.md" and name == "recon.py":
        assert done.stdout.split("\n")[:2] == ["['sheet-1']", "1"], "the README says what it prints"


def test_the_readme_names_the_two_commands_that_a_newcomer_needs() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "make demo" in text
    assert "make test" in text
    assert "make test" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_every_link_between_the_docs_leads_somewhere() -> None:
    for page in [*PAGES, ROOT / "ARCHITECTURE.md"]:
        prose = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S)
        for target in re.findall(r"\]\((?!https?://)([^)#]+)\)", prose):
            assert (page.parent / target).exists(), f"{page.name} links to {target}, which does not exist"


def test_the_promise_is_never_worded_as_exactly_once() -> None:
    for page in [*PAGES, ROOT / "ARCHITECTURE.md"]:
        assert not re.search(r"exactly[- ]once", page.read_text(encoding="utf-8"), re.I), page.name


def test_the_reference_page_is_what_the_code_says() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import make_reference, sys; sys.stdout.write(make_reference.page())"],
        cwd=ROOT / "docs", capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout == (ROOT / "docs" / "reference.md").read_text(encoding="utf-8"), "run `make docs`"
