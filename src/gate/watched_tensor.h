#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "gate/gate.h"

namespace accelerate::detail {

/// A keeper that is called for operators on a tensor whose memory it does not
/// keep.
struct TensorWatch {
  std::shared_ptr<GateKeeper> keeper;
  std::size_t unit = 0;
  /// Identifies the watch: the module it was made for.
  const void* owner = nullptr;
};

/// Makes operators on the tensor call `watch.keeper`, around the keeper of its
/// memory if it has one, and after existing watches. The tensor keeps its
/// memory, and holds the watch for its lifetime. It must have memory or a
/// keeper, and be dense; it may be a view, whose base is not watched.
void watch_tensor(const at::Tensor& tensor, TensorWatch watch);

/// Like watch_tensor(), but `watch` is called before existing watches.
void watch_tensor_first(const at::Tensor& tensor, TensorWatch watch);

/// Makes a copy of a tensor call the keepers that watch the tensor.
void watch_copy(const at::Tensor& copy, const at::Tensor& original);

/// Returns a dense tensor of these sizes without memory, for code that calls
/// operators on a tensor but reads only its sizes. `watch.keeper` is called for
/// each operator; it may run those that return a view, and must replace the
/// others. Accessing the memory throws an error with this message. The tensor
/// and its views keep the keeper alive.
at::Tensor make_placeholder(
    at::IntArrayRef sizes,
    const at::TensorOptions& options,
    TensorWatch watch,
    std::string message);

/// Ends the watch of this owner, if there is one.
void unwatch_tensor(const at::Tensor& tensor, const void* owner);

/// Makes a tensor use the memory of `other`, which is dense, of the same sizes
/// and of any dtype: every handle to the tensor shows it. The watches stay. If
/// a keeper has the tensor's memory, it is not called until another call gives
/// back the tensor that this one returns.
at::Tensor exchange_memory(const at::Tensor& tensor, const at::Tensor& other);

/// Returns this owner's watch on a tensor, or on the tensor that it is a view
/// of; null if there is none.
const TensorWatch* find_watch(const c10::IValue& value, const void* owner);

/// Whether the tensor has any watch.
bool is_watched(const at::Tensor& tensor);

/// The largest num_places() among the tensor's keeper and watches (GateKeeper).
std::size_t num_places_of(const at::Tensor& tensor);

/// Whether the tensor's memory is kept elsewhere while no operator uses it.
bool is_offloaded(const at::Tensor& tensor);

/// Whether the tensor is offloaded or kept as codes: it cannot be written to,
/// and has no values to send.
bool is_offloaded_or_coded(const at::Tensor& tensor);

/// Whether the tensor is offloaded, kept as codes, or has a keeper that brings
/// its memory (GateKeeper::brings_memory): its memory has no address to read
/// from.
bool is_behind_operators(const at::Tensor& tensor);

/// The keeper of the tensor's memory; null if there is none.
GateKeeper* keeper_of(const at::Tensor& tensor);

}  // namespace accelerate::detail
