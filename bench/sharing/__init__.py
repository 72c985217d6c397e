# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""``scripts/bench-sharing``: one pool on one device with 1, 2, 4 and 8 openers, each a process of its own."""
