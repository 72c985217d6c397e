# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Tells at import when another distribution's ``kvstore`` lies in our place, or the compiled core is missing.

The import name is a common one; our distribution is called ``nvme-kvstore``.
"""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

OURS = "nvme-kvstore"
FOREIGN = "kvstore"


def foreign_owner(package: Path) -> str | None:
    """Name and version of the distribution ``kvstore`` if it claims files of this package folder."""
    try:
        foreign = importlib.metadata.distribution(FOREIGN)
    except importlib.metadata.PackageNotFoundError:
        return None
    for file in foreign.files or ():
        if file.parts[:1] == ("kvstore",) and Path(str(foreign.locate_file("kvstore"))).resolve() == package.resolve():
            return f"{FOREIGN} {foreign.version}"
    return None


def _mend(owner: str) -> str:
    return (
        f"the distribution '{owner}' is another project that installs into the same folder {Path(__file__).parent}. "
        f"Mend it with: pip uninstall {FOREIGN} && pip install --force-reinstall {OURS}"
    )


def refuse_foreign() -> None:
    """Raise ImportError when a foreign distribution mixed its files with ours: either may be overwritten."""
    owner = foreign_owner(Path(__file__).parent)
    if owner is not None:
        raise ImportError(f"import kvstore: {_mend(owner)}")


def explain_missing_core(error: ImportError) -> ImportError:
    """The ImportError to raise when ``kvstore._core`` does not import."""
    built = sorted(path.name for path in Path(__file__).parent.glob("_core.*.so"))
    if built:
        text = f"kvstore._core ({', '.join(built)}) does not load: {error}. Was it built for another Python?"
    else:
        try:
            installed = importlib.metadata.distribution(OURS).version
        except importlib.metadata.PackageNotFoundError:
            installed = ""
        text = f"kvstore._core is not built in {Path(__file__).parent}. "
        if installed:
            text += f"{OURS} {installed} is installed, but this source tree comes first: run from another folder. "
            text += f"Otherwise: scripts/setup here, or pip install {OURS}"
        else:
            text += f"Run scripts/setup in the source tree, or pip install . there, or: pip install {OURS}"
    return ImportError(text, name=error.name, path=error.path)


refuse_foreign()
try:
    import kvstore._core  # noqa: F401
except ImportError as error:
    raise explain_missing_core(error) from error
