# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""kvbench: what a store of KV blocks does on this machine, in fio's habits. ``kvstore bench`` and ``bench/kvbench``.

Nothing here is imported by the rest of the package but for the verb. Needs the extra: ``pip install
'nvme-kvstore[bench]'``.
"""
