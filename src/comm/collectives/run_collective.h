#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <thread>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include <accelerate/error.h>
#include <accelerate/world.h>

#include "comm/group/group_impl.h"
#include "comm/monitoring/public_call.h"

namespace accelerate::detail {

/// Formats a tensor, as in "Float [2, 3]".
std::string text_of(const at::Tensor& tensor);
inline std::string text_of(const std::string& detail) { return detail; }

/// The entry of a call on the board.
struct CollectiveCall {
  const char* operation;
  CallSite site;
  int root = -1;  ///< in the group
};

inline NotedCall noted(
    const GroupImpl& group,
    const CollectiveCall& call,
    const at::Tensor* tensor) {
  NotedCall note;
  note.operation = call.operation;
  const char* const function = PublicCall::current();
  note.place = function != nullptr ? CallPlace{function}
                                   : CallPlace{call.site.file, call.site.line};
  note.blocks_program =
      std::this_thread::get_id() == group.world->program_thread;
  if (call.root >= 0) note.root = group.peer_in_world(call.root);
  if (tensor == nullptr) return note;
  note.dtype = c10::toString(tensor->scalar_type());
  note.shape = {tensor->sizes().data(), tensor->sizes().size()};
  return note;
}

inline const at::Tensor* tensor_in(const at::Tensor& detail) { return &detail; }

inline const at::Tensor* tensor_in(const std::string&) { return nullptr; }

/// Runs one collective: numbers it, notes it on the board, compares it between
/// ranks in debug mode, and turns failures into errors that name the peers.
/// `detail` is a tensor of the same shape on all ranks, or a string; only used
/// in debug mode and on the board.
template <class Detail, class Body>
auto run_collective(
    const GroupImpl& group,
    const CollectiveCall& call,
    const Detail& detail,
    Body&& body) {
  const at::NoGradGuard no_grad;
  const StepPartScope part(group.world->steps.get(), StepPart::communication);
  const std::uint64_t sequence = ++const_cast<GroupImpl&>(group).sequence;
  const NotedCallScope note(
      group.calls.get(), noted(group, call, tensor_in(detail)));
  try {
    if (group.world->debug) {
      check_agreement(group, call.operation, text_of(detail));
    }
    return std::forward<Body>(body)();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    // The number by which the board knows it, if there is one.
    const std::uint64_t number = group.calls ? note.number() : sequence;
    fail_collective(group, call.operation, sequence, error, number);
  }
}

/// Runs a send or a receive.
template <class Body>
void run_message(
    const GroupImpl& group,
    const char* operation,
    int peer,
    Body&& body) {
  const at::NoGradGuard no_grad;
  const std::array peers{group.peer_in_world(peer)};
  const BoardWaitScope wait(group.world->notes(), operation, peers);
  try {
    std::forward<Body>(body)();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    fail_collective(group, operation, group.sequence, error);
  }
}

/// These throw ConfigError for an argument that does not fit the group.
void require_rank(const GroupImpl& group, const char* operation, int rank);
void require_tag(const char* operation, int tag);
void require_parts(
    const GroupImpl& group,
    const char* operation,
    std::size_t count);

}  // namespace accelerate::detail
