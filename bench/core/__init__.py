# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""The table of ``scripts/bench-core``: kvstore next to fio and its nearest rivals, in one run on one device."""
