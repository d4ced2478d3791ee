#pragma once

namespace accelerate::detail {

/// While alive, makes a keeper's own operators stop at gates, as those of a
/// program do: for a keeper that computes with tensors of other keepers.
class StopAtGates {
 public:
  StopAtGates();
  ~StopAtGates();
  StopAtGates(const StopAtGates&) = delete;
  StopAtGates& operator=(const StopAtGates&) = delete;

 private:
  bool before_;
};

}  // namespace accelerate::detail
