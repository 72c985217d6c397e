# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""``python -m kvstore``: the command line, where its entry point is not on the path."""

from kvstore.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
