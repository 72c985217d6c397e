// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Asks the `blkid` program, where it is installed, what a device or file holds: it knows many more formats than
// foreign_signatures.h. Run as a program and not linked, so that one build runs with and without it.

#pragma once

#include <cstdint>
#include <string>

namespace kvstore::store {

// "ext4 file system", "gpt partition table", ...; empty: nothing found, no blkid, or no answer within timeout_ms (it
// may hang on a sick device; the built-in list then decides alone). Blocks up to that long.
std::string ask_blkid(const std::string& path, uint64_t timeout_ms = 5000);

// What `blkid -p -o export` printed -> the same. Printable whatever the bytes.
std::string parse_blkid_export(const std::string& output);

}  // namespace kvstore::store
