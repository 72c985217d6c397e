# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""``python -m bench.core [table|open|lookup|l2|sweep|fill] …``: the measurements behind the README's numbers."""

from __future__ import annotations

import sys

from bench.core import fill, l2, lookup, open_many, sweep, table

VERBS = {
    "table": table.main,
    "open": open_many.main,
    "lookup": lookup.main,
    "l2": l2.main,
    "sweep": sweep.main,
    "fill": fill.main,
}


def main() -> int:
    """Runs one measurement; the table without a verb."""
    verb = sys.argv[1] if len(sys.argv) > 1 and sys.argv[1] in VERBS else "table"
    arguments = sys.argv[2:] if verb in sys.argv[1:2] else sys.argv[1:]
    return VERBS[verb](arguments)


if __name__ == "__main__":
    sys.exit(main())
