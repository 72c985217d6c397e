# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Every example in a docstring runs, and every public class has one."""

from __future__ import annotations

import doctest
import inspect

import pytest
from python_support import POOL

import kvstore
from kvstore import errors, pool, sizes, space, testing
from kvstore.testing import SimDisk

PUBLIC = [getattr(kvstore, name) for name in kvstore.__all__]
CLASSES = [one for one in PUBLIC if inspect.isclass(one)] + [SimDisk]
# Plain carriers: the base class of the errors has the example.
WITHOUT = {pool.Registration} | {one for one in CLASSES if issubclass(one, errors.KvStoreError)} - {errors.KvStoreError}


def examples() -> dict[str, doctest.DocTest]:
    """Docstrings with an example, by name: of the module, its classes with their methods, and its functions."""
    parser, found = doctest.DocTestParser(), {}
    for owner in [kvstore, *CLASSES, kvstore.format, kvstore.open, sizes.parse_size, sizes.format_size,
                  space.canonical_identity]:  # fmt: skip
        members = vars(owner).values() if inspect.isclass(owner) else []
        for one in [owner, *(member for member in members if inspect.isfunction(member))]:
            name = f"{one.__module__}.{one.__qualname__}" if hasattr(one, "__qualname__") else one.__name__
            test = parser.get_doctest(inspect.getdoc(one) or "", {}, name, None, 0)
            if test.examples:
                found[name] = test
    return found


EXAMPLES = examples()


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_gives_what_it_says(name, tmp_path):
    disk = SimDisk(POOL["size"])
    kvstore.format(disk.path, region_bytes="4MiB")
    test = EXAMPLES[name]
    test.globs = {
        "kvstore": kvstore,
        "example_pool": disk.path,
        "new_file": str(tmp_path / "pool.img"),
        **{name: getattr(sizes, name) for name in sizes.__all__},
        "canonical_identity": space.canonical_identity,
    }
    runner = doctest.DocTestRunner(optionflags=doctest.REPORT_NDIFF)
    output: list[str] = []
    runner.run(test, out=output.append)
    disk.remove()
    assert runner.failures == 0, "".join(output)


@pytest.mark.parametrize("one", CLASSES, ids=lambda one: one.__name__)
def test_every_public_class_has_a_docstring_and_an_example(one):
    assert inspect.getdoc(one), f"{one} has no docstring"
    if one not in WITHOUT:
        assert f"{one.__module__}.{one.__qualname__}" in EXAMPLES


@pytest.mark.parametrize("one", [*CLASSES, kvstore.open, kvstore.format, testing], ids=lambda one: one.__name__)
def test_every_public_method_has_a_docstring(one):
    members = vars(one).items() if inspect.isclass(one) else []
    for name, member in members:
        if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, property)):
            if one.__module__ == "kvstore._core":
                continue  # attributes of result classes are listed in the docstring of their class
            assert inspect.getdoc(member), f"{one.__name__}.{name} has no docstring"
