#pragma once

#include <memory>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "comm/monitoring/noted_call.h"
#include "comm/transport/transport.h"

namespace accelerate::detail {

/// Wraps `connection` so that it takes dense tensors of any device, dtype and
/// strides, and any tag: adapters supply what the transport lacks, and cost
/// nothing if it lacks nothing.
std::shared_ptr<Connection> adapted(std::shared_ptr<Connection> connection);

/// Stages tensors of other devices through host memory.
std::shared_ptr<Connection> stage_through_host(
    std::shared_ptr<Connection> connection);

/// Reduces in a dtype that the transport can reduce, and moves values as bytes.
std::shared_ptr<Connection> widen_dtypes(
    std::shared_ptr<Connection> connection);

/// Matches messages by tag over an ordered connection: each is preceded by a
/// header, and those not requested yet are kept.
std::shared_ptr<Connection> match_tags(std::shared_ptr<Connection> connection);

/// Throws DistributedError, rather than let values mix, if two threads call a
/// connection at once and its transport is not thread-safe. The Work of a call
/// may be waited for on any thread.
std::shared_ptr<Connection> refuse_concurrent_calls(
    std::shared_ptr<Connection> connection);

/// Wraps an adapted connection as a process group for hooks of buckets. Notes
/// its calls in `calls`, unless null.
c10::intrusive_ptr<c10d::ProcessGroup> as_process_group(
    const std::shared_ptr<Connection>& connection,
    const c10::intrusive_ptr<c10d::Store>& store,
    const std::shared_ptr<NotedCalls>& calls);

}  // namespace accelerate::detail
