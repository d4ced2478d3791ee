#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace accelerate::detail {

// Parsers for files of Linux's /proc and of control groups (proc(5), and the
// kernel's Documentation/admin-guide/iostats.rst and cgroup-v2.rst). They
// return nothing for text in another format, and never throw.

/// Ticks since the machine was started, summed over all processors.
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
/// /proc/diskstats: bytes read (in) and written (out) by disks, without their
/// partitions and without devices stacked on others.
ByteCounts disk_bytes(std::string_view text);
/// /proc/net/dev, without the loopback device.
ByteCounts network_bytes(std::string_view text);
/// The process's path in the unified hierarchy, from /proc/self/cgroup.
std::optional<std::string_view> cgroup_path(std::string_view text);
/// The process's path below a version 1 controller ("memory"), which has its
/// own groups.
std::optional<std::string_view> cgroup_path(
    std::string_view text,
    std::string_view controller);
/// A file that holds a single number; nothing for "max".
std::optional<std::uint64_t> lone_number(std::string_view text);
/// The number after a key, as in memory.stat.
std::optional<std::uint64_t> keyed_number(
    std::string_view text,
    std::string_view key);

}  // namespace accelerate::detail
