# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Rules of the source text that no other checker knows. The rules are in CONTRIBUTING.md, "Style".

Method: every file that git tracks or would track is read as text.
"""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINE_LENGTH_MAX = 120
CODE = {".py", ".pyi", ".cpp", ".h", ".cu", ".cmake", ".sh"}
CXX = {".cpp", ".h", ".cu"}

# The layers of ARCHITECTURE.md: a folder may include from itself and from those before it.
LAYERS = ["base", "format", "device", "cluster", "store", "gpu", "binding"]


def files(*suffixes: str, under: str = "") -> list[Path]:
    command = ["git", "ls-files", "-z", "-co", "--exclude-standard", "--", under or "."]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip("not a git checkout")
    found = [ROOT / name for name in done.stdout.split("\0") if name]
    return [path for path in found if path.is_file() and (not suffixes or path.suffix in suffixes)]


def is_code(path: Path) -> bool:
    return path.suffix in CODE or (path.suffix == "" and path.parent.name in {"scripts", "tools", ".ci"})


def matches(pattern: str, paths: list[Path]) -> list[str]:
    """Every hit as `path:line: text`, which editors can jump to."""
    expression = re.compile(pattern)
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in paths
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), start=1)
        if expression.search(line)
    ]


def test_lines_of_code_fit_in_120_columns() -> None:
    assert matches(f"^.{{{LINE_LENGTH_MAX + 1},}}", [path for path in files() if is_code(path)]) == []


def test_no_code_is_left_for_later() -> None:
    paths = [path for path in files() if is_code(path) and path != Path(__file__)]
    assert matches(r"\b(TODO|FIXME)\b|NotImplementedError\(\)", paths) == []


def test_exceptions_are_not_swallowed() -> None:
    assert matches(r"except( Exception| BaseException)?:\s*pass|catch \(\.\.\.\) \{\s*\}", files(*CXX, ".py")) == []


def test_cxx_tests_do_not_sleep() -> None:
    assert matches(r"\b(sleep_for|sleep_until|usleep|nanosleep)\b|\bsleep\(", files(*CXX, under="tests/cpp")) == []


def test_no_path_of_one_machine_is_named() -> None:
    text = [path for path in files() if path.suffix not in {".png", ".bin", ".img"}]
    assert matches(r"(?<![\w.}/])/(work|home|Users|root)/\w", text) == []


def test_every_source_file_names_its_licence() -> None:
    paths = [path for path in files(".py", ".pyi", *CXX) if path.stat().st_size > 0]
    without = [path for path in paths if "SPDX-License-Identifier: Apache-2.0" not in path.read_text()[:300]]
    assert [str(path.relative_to(ROOT)) for path in without] == []


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_includes_only_those_below_it(layer: str) -> None:
    above = "|".join(LAYERS[LAYERS.index(layer) + 1 :])
    pattern = rf'#include "({above})/' if above else "^$a"
    assert matches(pattern, files(*CXX, under=f"csrc/{layer}")) == []


def test_only_the_binding_knows_python() -> None:
    paths = [path for path in files(*CXX, under="csrc") if path.parent.name != "binding"]
    assert matches(r"#include [<\"](Python\.h|nanobind/)", paths) == []


def links(document: Path) -> Iterator[str]:
    text = re.sub(r"```.*?```", "", document.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not re.match(r"[a-z]+:", target):
            yield target


def anchors(document: Path) -> set[str]:
    """The names that the headings of a page get: lower case, spaces to hyphens, other signs dropped."""
    headings = re.findall(r"^#+ (.+)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_links_between_documents_resolve() -> None:
    broken = []
    for document in files(".md"):
        for target in links(document):
            name, _, anchor = target.partition("#")
            page = document.parent / name if name else document
            if not page.exists() or (anchor and page.suffix == ".md" and anchor not in anchors(page)):
                broken.append(f"{document.relative_to(ROOT)}: {target}")
    assert broken == []
