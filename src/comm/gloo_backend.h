#pragma once

#include <chrono>
#include <memory>
#include <string>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace accelerate::detail {

/// The network side of Gloo: a listening address and its I/O thread, shared by
/// all groups of a World.
class GlooDevice;

/// Listens on loopback if all ranks are on this machine, else on `interface`,
/// or, if that is empty, on the address from which this machine reaches
/// `main_address`, that of rank 0: others reach it there.
std::shared_ptr<GlooDevice> make_gloo_device(
    bool single_machine,
    const std::string& interface,
    const std::string& main_address);

/// Connects all ranks with each other; returns when that is done.
c10::intrusive_ptr<c10d::Backend> make_gloo_backend(
    const std::shared_ptr<GlooDevice>& device,
    const c10::intrusive_ptr<c10d::Store>& store,
    int rank,
    int size,
    std::chrono::milliseconds timeout);

}  // namespace accelerate::detail
