#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace accelerate::detail {

// What the files of Linux's /proc and of control groups say (proc(5), and the
// kernel's Documentation/admin-guide/iostats.rst and cgroup-v2.rst). Nothing for
// a text that says something else; no text makes them fail.

/// Ticks since the machine was started, of all processors together.
struct CpuTicks {
  std::uint64_t busy = 0;
  std::uint64_t all = 0;

  bool operator==(const CpuTicks&) const = default;
};

/// Bytes since the machine was started.
struct ByteCounts {
  std::uint64_t in = 0;
  std::uint64_t out = 0;

  bool operator==(const ByteCounts&) const = default;
};

/// /proc/stat.
std::optional<CpuTicks> cpu_ticks(std::string_view text);
/// Resident pages, from /proc/self/statm.
std::optional<std::uint64_t> resident_pages(std::string_view text);
/// Bytes of a line "Key:   123 kB" of /proc/meminfo.
std::optional<std::uint64_t> meminfo_bytes(
    std::string_view text,
    std::string_view key);
/// /proc/diskstats: what was read (in) and written (out), of disks, without
/// their partitions and without devices on top of other ones.
ByteCounts disk_bytes(std::string_view text);
/// /proc/net/dev, without the loopback device.
ByteCounts network_bytes(std::string_view text);
/// The process's path in the unified hierarchy, from /proc/self/cgroup.
std::optional<std::string_view> cgroup_path(std::string_view text);
/// The same of a controller of version 1 ("memory"), which has groups of its own.
std::optional<std::string_view> cgroup_path(
    std::string_view text,
    std::string_view controller);
/// A file with one number; nothing for "max".
std::optional<std::uint64_t> lone_number(std::string_view text);
/// The number behind a key, as in memory.stat.
std::optional<std::uint64_t> keyed_number(
    std::string_view text,
    std::string_view key);

}  // namespace accelerate::detail
