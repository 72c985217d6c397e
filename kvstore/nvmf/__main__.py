# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""``python -m kvstore.nvmf``: nvmf-setup, where its script is not at hand."""

from kvstore.nvmf.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
