#include <map>
#include <set>

#include <nlohmann/json.hpp>

#include "base/text/text.h"
#include "track/profiler/recorded_cycle.h"

namespace accelerate::detail {

namespace {

using TraceJson = nlohmann::ordered_json;

const char* category_of(EventKind kind) {
  switch (kind) {
    case EventKind::op:
      return "cpu_op";
    case EventKind::user_range:
    case EventKind::step:
      return "user_annotation";
    case EventKind::part:
      break;
  }
  return "step_part";
}

const char* category_of(DeviceWork work) {
  return work == DeviceWork::copy ? "gpu_memcpy" : "kernel";
}

// Rows of streams have numbers beyond those of threads, which are counted from
// 1.
std::uint64_t row_of(const DeviceEvent& event) {
  constexpr std::uint64_t kFirst = 1'000'000, kMostStreams = 100'000;
  return kFirst + static_cast<std::uint64_t>(event.device) * kMostStreams +
      static_cast<std::uint64_t>(event.stream) % kMostStreams;
}

class TraceText {
 public:
  explicit TraceText(const RecordedCycle& cycle) : cycle_(cycle) {}

  std::string write() {
    name_rows();
    for (std::size_t i = 0; i < cycle_.events.size(); ++i) add_event(i);
    for (std::size_t i = 0; i < cycle_.device_events.size(); ++i)
      add_device_event(i);
    for (const RecordedMemory& change : cycle_.memory) add_memory(change);
    const TraceJson head{
        {"schemaVersion", 1},
        {"displayTimeUnit", "ms"},
        {"baseTimeNanoseconds", cycle_.begin_ns + cycle_.clock.wall_base_ns},
        {"distributedInfo",
         {{"rank", cycle_.rank}, {"world_size", cycle_.world_size}}},
        {"clockOffsetNanoseconds", cycle_.clock.offset_ns},
        {"clockOffsetErrorNanoseconds", cycle_.clock.offset_error_ns}};
    std::string text = head.dump();
    text.pop_back();
    return text + ",\"traceEvents\":[\n" + events_ + "\n]}\n";
  }

 private:
  // Microseconds since the cycle's begin.
  [[nodiscard]] double since_begin(std::int64_t time_ns) const {
    return static_cast<double>(time_ns - cycle_.begin_ns) / 1000;
  }

  // Events of names that are not UTF-8 are still written.
  void add(const TraceJson& event) {
    if (!events_.empty()) events_ += ",\n";
    events_ += event.dump(-1, ' ', false, TraceJson::error_handler_t::replace);
  }

  void add_metadata(const char* name, std::uint64_t thread, TraceJson args) {
    add(
        {{"ph", "M"},
         {"name", name},
         {"pid", cycle_.rank},
         {"tid", thread},
         {"ts", 0},
         {"args", std::move(args)}});
  }

  void name_rows() {
    add_metadata("process_name", 0, {{"name", format("rank {}", cycle_.rank)}});
    add_metadata("process_sort_index", 0, {{"sort_index", cycle_.rank}});
    std::set<std::uint64_t> threads;
    for (const RecordedEvent& event : cycle_.events)
      threads.insert(event.thread);
    for (const std::uint64_t thread : threads) {
      add_metadata(
          "thread_name", thread, {{"name", format("thread {}", thread)}});
    }
    std::map<std::uint64_t, const DeviceEvent*> streams;
    for (const DeviceEvent& event : cycle_.device_events)
      streams.emplace(row_of(event), &event);
    for (const auto& [row, event] : streams) {
      add_metadata(
          "thread_name",
          row,
          {{"name",
            format("cuda:{} stream {}", event->device, event->stream)}});
      add_metadata("thread_sort_index", row, {{"sort_index", row}});
    }
  }

  void add_device_event(std::size_t i) {
    const DeviceEvent& event = cycle_.device_events[i];
    TraceJson args{{"device", event.device}, {"stream", event.stream}};
    const bool is_linked = event.launcher != EventNode::kNone;
    if (is_linked) args["operator"] = cycle_.events[event.launcher].name;
    add(
        {{"ph", "X"},
         {"cat", category_of(event.work)},
         {"name", event.name},
         {"pid", cycle_.rank},
         {"tid", row_of(event)},
         {"ts", since_begin(event.begin_ns)},
         {"dur", static_cast<double>(event.end_ns - event.begin_ns) / 1000},
         {"args", std::move(args)}});
    if (!is_linked) return;
    // An arrow from the operator.
    TraceJson arrow{
        {"ph", "s"},
        {"cat", "ac2g"},
        {"name", "ac2g"},
        {"id", i},
        {"pid", cycle_.rank},
        {"tid", cycle_.events[event.launcher].thread},
        {"ts", since_begin(event.launch_begin_ns)}};
    add(arrow);
    arrow["ph"] = "f";
    arrow["bp"] = "e";
    arrow["tid"] = row_of(event);
    arrow["ts"] = since_begin(event.begin_ns);
    add(arrow);
  }

  [[nodiscard]] TraceJson args_of(std::size_t i) const {
    const RecordedEvent& event = cycle_.events[i];
    TraceJson args = TraceJson::object();
    if (event.sequence >= 0) args["Sequence number"] = event.sequence;
    if (event.forward_thread != 0) args["Fwd thread id"] = event.forward_thread;
    if (!event.input_shapes.empty()) args["Input Dims"] = event.input_shapes;
    if (event.flops > 0) args["Flops"] = event.flops;
    if (!cycle_.nodes[i].module.empty())
      args["Module Hierarchy"] = cycle_.nodes[i].module;
    if (const auto functions = functions_of(cycle_, event); !functions.empty())
      args["Call stack"] = join(functions, ";");
    return args;
  }

  void add_event(std::size_t i) {
    const RecordedEvent& event = cycle_.events[i];
    TraceJson json{
        {"ph", event.is_async ? "b" : "X"},
        {"cat", category_of(event.kind)},
        {"name", event.name},
        {"pid", cycle_.rank},
        {"tid", event.thread},
        {"ts", since_begin(event.begin_ns)}};
    if (!event.is_async) {
      json["dur"] = static_cast<double>(event.end_ns - event.begin_ns) / 1000;
      json["args"] = args_of(i);
      return add(json);
    }
    json["id"] = i;
    json["args"] = args_of(i);
    add(json);
    json["ph"] = "e";
    json["ts"] = since_begin(event.end_ns);
    json.erase("args");
    add(json);
  }

  void add_memory(const RecordedMemory& change) {
    add(
        {{"ph", "i"},
         {"cat", "cpu_instant_event"},
         {"s", "t"},
         {"name", "[memory]"},
         {"pid", cycle_.rank},
         {"tid", change.thread},
         {"ts", since_begin(change.time_ns)},
         {"args",
          {{"Addr", reinterpret_cast<std::uintptr_t>(change.address)},
           {"Bytes", change.bytes},
           {"Total Allocated", change.total_allocated},
           {"Total Reserved", change.total_reserved},
           {"Device Type", change.device_type},
           {"Device Id", change.device_index}}}});
    if (change.device_type == 0) return;
    // A curve of the device's memory.
    add(
        {{"ph", "C"},
         {"name", format("memory of device {}", change.device_index)},
         {"pid", cycle_.rank},
         {"ts", since_begin(change.time_ns)},
         {"args",
          {{"allocated", change.total_allocated},
           {"reserved", change.total_reserved - change.total_allocated}}}});
  }

  const RecordedCycle& cycle_;
  std::string events_;
};

}  // namespace

std::string chrome_trace_of(const RecordedCycle& cycle) {
  return TraceText(cycle).write();
}

}  // namespace accelerate::detail
