# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""``python -m bench.core open|lookup|l2|sweep|fill …``: measurements behind the README's numbers."""

from __future__ import annotations

import sys

from bench.core import fill, l2, lookup, open_many, sweep

VERBS = {
    "open": open_many.main,
    "lookup": lookup.main,
    "l2": l2.main,
    "sweep": sweep.main,
    "fill": fill.main,
}


def main() -> int:
    """Runs one measurement."""
    verb = sys.argv[1] if len(sys.argv) > 1 else ""
    if verb not in VERBS:
        print(f"bench-core: {verb!r} is none of {', '.join(VERBS)}", file=sys.stderr)
        return 2
    return VERBS[verb](sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
