# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""The command line: ``kvstore VERB``, or ``python -m kvstore VERB``."""

from kvstore.cli.dispatch import main

__all__ = ["main"]
