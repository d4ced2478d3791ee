#pragma once

namespace accelerate::testing {

/// What the fake NCCL does wrong from now on, in all ranks of this process.
struct FakeNcclFaults {
  /// ncclGetVersion's answer; 0 for a new one.
  int version = 0;
  /// Communicators cannot be made.
  bool fails_to_connect = false;
  /// Communicators are never connected.
  bool never_connects = false;
  /// The operation with this number of each communicator (from 1) fails as if a
  /// peer were gone. 0 for none.
  int failing_operation = 0;
  /// Operations fail so from now on.
  bool fails_all = false;
  /// The operation with this number never ends. 0 for none.
  int hanging_operation = 0;
  /// Nothing is reported to ranks that wait for one that has aborted, as between
  /// devices of one machine.
  bool hides_aborts = false;
};

/// The fake library's own functions, beside NCCL's.
struct FakeNcclControls {
  void (*set_faults)(const FakeNcclFaults* faults);
  /// Number of communicators that were neither destroyed nor aborted.
  int (*num_communicators)();
  /// Number of operations and groups of operations that ranks have started.
  int (*num_starts)();
};

}  // namespace accelerate::testing

/// Found in the library by this name.
extern "C" const accelerate::testing::FakeNcclControls* fake_nccl_controls();
