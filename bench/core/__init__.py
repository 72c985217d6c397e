# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Measurements that are not puts and gets in a loop, which `kvstore bench` does: open, lookup, l2, sweep, fill."""
