#include "optim/optimizers/graph_recorder.h"

#include <utility>

namespace accelerate::detail {

namespace {
// Thread-local because optimizers of LibTorch's classes have no other way to
// pass it on to step().
thread_local GraphRecorder* recorder_of_thread = nullptr;
}  // namespace

GraphRecorder* GraphRecorder::current() { return recorder_of_thread; }

GraphRecorderScope::GraphRecorderScope(GraphRecorder& recorder)
    : before_(std::exchange(recorder_of_thread, &recorder)) {}

GraphRecorderScope::~GraphRecorderScope() { recorder_of_thread = before_; }

}  // namespace accelerate::detail
