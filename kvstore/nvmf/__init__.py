# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""nvmf-setup: from bare drives to a pool over NVMe-oF. ``tools/nvmf-setup`` is its command line.

One YAML file says what there is to be (``spec``). What a target lacks of it is a list of steps on the kernel's configfs
(``target_plan``), which is shown, or applied and on any failure undone (``apply``). Only what these steps made is ever
changed or removed (``record``).
"""
