#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <accelerate/byte_size.h>
#include <accelerate/export.h>

/// The places of the modules of a model that is too big for one device.
namespace accelerate {

/// A place for weights: an accelerator device by its index, or "mps", "cpu",
/// "disk", or "meta" (shapes without values).
class ACCELERATE_API MapDevice {
 public:
  /// Throws ConfigError for a negative index.
  MapDevice(int index);
  /// One of the names above, an index ("1"), or a device as LibTorch writes it,
  /// with an index ("cuda:1"). Throws ConfigError for anything else.
  MapDevice(const std::string& name);
  MapDevice(const char* name) : MapDevice(std::string(name)) {}

  /// Whether it is an accelerator: an index, or "mps".
  [[nodiscard]] bool is_accelerator() const { return kind_ <= Kind::mps; }
  /// Whether it is the memory of the host.
  [[nodiscard]] bool is_cpu() const { return kind_ == Kind::cpu; }
  /// Whether weights stay in files until they are used.
  [[nodiscard]] bool is_disk() const { return kind_ == Kind::disk; }
  /// Whether it is the meta device, whose tensors have no values.
  [[nodiscard]] bool is_meta() const { return kind_ == Kind::meta; }
  /// The index of an accelerator device; unset for a named place.
  [[nodiscard]] std::optional<int> index() const;
  /// "0", "cpu".
  [[nodiscard]] std::string name() const;

  /// Order of filling: devices by index, mps, cpu, disk, meta.
  auto operator<=>(const MapDevice&) const = default;

 private:
  enum class Kind { device, mps, cpu, disk, meta };
  Kind kind_ = Kind::cpu;
  int index_ = 0;
};

/// Memory that a model can take, by place: {{0, "20GB"}, {"cpu", "64GB"}}.
using MaxMemory = std::vector<std::pair<MapDevice, ByteSize>>;

/// Why infer_auto_device_map() or plan_device_map() put a module where it is.
enum class PlacementReason {
  given,     ///< by the caller
  fits,      ///< first device with room, in the order of devices
  tied,      ///< shares a parameter with the module before it
  fallback,  ///< the first part of the model that fits on an unused device
  last,      ///< no other device has room: the disk takes everything
  planned,   ///< chosen for speed; `note` says why
};

/// A module, or a parameter held directly by one, and its place.
struct Placement {
  std::string name;  ///< dotted; empty for the whole model
  /// Where it is put.
  MapDevice device;
  /// Why it is put there.
  PlacementReason reason = PlacementReason::given;
  /// Bytes of its weights; negative if the map was given without a model.
  double num_bytes = -1;
  /// State of the device at placement: bytes in use, and bytes reserved for the
  /// largest layer still to come.
  double num_bytes_used = 0;
  /// Bytes reserved for the largest layer still to come.
  double num_bytes_reserved = 0;
  /// Further explanation, for explain(); may be empty.
  std::string note = {};
};

/// How much of a device a map uses.
struct DeviceUse {
  /// The device.
  MapDevice device;
  /// Unset for the disk, which has no limit.
  std::optional<std::int64_t> max_memory;
  /// Bytes of the weights that the map puts there.
  double num_bytes = 0;
  /// Bytes reserved for the largest layer that is fetched to it.
  double num_bytes_reserved = 0;
  /// Memory needed for the first module that did not fit. Unset if something
  /// fit.
  std::optional<double> minimum_needed = std::nullopt;
};

/// An ordered map from names of modules (or of single parameters) to places. An
/// entry applies to everything below its name.
class ACCELERATE_API DeviceMap {
 public:
  // Not inline, like StateDict's.
  DeviceMap();
  DeviceMap(const DeviceMap& other);
  DeviceMap(DeviceMap&& other) noexcept;
  DeviceMap& operator=(const DeviceMap& other);
  DeviceMap& operator=(DeviceMap&& other) noexcept;
  ~DeviceMap();
  /// A map written by hand: {{"embed", 0}, {"layers", "cpu"}, {"head",
  /// "disk"}}. Throws ConfigError for a duplicate name.
  DeviceMap(std::initializer_list<std::pair<std::string, MapDevice>> entries);
  explicit DeviceMap(
      const std::vector<std::pair<std::string, MapDevice>>& entries);
  /// An inferred map.
  explicit DeviceMap(
      std::vector<Placement> placements,
      std::vector<DeviceUse> devices,
      std::vector<std::string> warnings = {});

  /// The entries, in the order given or planned.
  [[nodiscard]] const std::vector<Placement>& placements() const {
    return placements_;
  }
  /// Whether the map has no entries.
  [[nodiscard]] bool empty() const { return placements_.empty(); }
  /// Number of entries.
  [[nodiscard]] std::size_t size() const { return placements_.size(); }
  /// What each device holds; empty for a map written by hand.
  [[nodiscard]] const std::vector<DeviceUse>& devices() const {
    return devices_;
  }
  /// What the caller should know, such as buffers that fit on no device.
  [[nodiscard]] const std::vector<std::string>& warnings() const {
    return warnings_;
  }
  /// The distinct places, in order of first appearance.
  [[nodiscard]] std::vector<MapDevice> places() const;
  /// The place of an entry with exactly this name.
  [[nodiscard]] std::optional<MapDevice> find(std::string_view name) const;
  /// The place of a module or tensor: that of the longest entry that is its
  /// name or a prefix of it that ends before a dot.
  [[nodiscard]] std::optional<MapDevice> device_of(std::string_view name) const;

  /// Two tables for people: each entry with its size, place and the reason, and
  /// each device with its limit and use.
  [[nodiscard]] std::string explain() const;

  /// Same names and places in the same order.
  bool operator==(const DeviceMap& other) const;

 private:
  std::vector<Placement> placements_;
  std::vector<DeviceUse> devices_;
  std::vector<std::string> warnings_;
};

/// Merges the entries below a name into one for that name if all have the same
/// place, first for `module_name` (empty: the whole model), then below it.
[[nodiscard]] ACCELERATE_API DeviceMap
clean_device_map(const DeviceMap& map, const std::string& module_name = "");

/// How sizes of weights are counted.
struct ModuleSizesOptions {
  /// Floating-point weights count with at most this dtype's size: a PyTorch
  /// name ("float16"), or "fp8", "int4", "int2". Empty: each counts with its
  /// own.
  std::string dtype = {};
  /// Overrides the dtypes of single tensors, by dotted name.
  std::vector<std::pair<std::string, std::string>> special_dtypes = {};
  /// Leaves out parameters.
  bool buffers_only = false;
};

/// Arguments of infer_auto_device_map(), as in Accelerate.
struct InferAutoDeviceMapOptions {
  /// Memory of each place. Empty: what is free now on every accelerator device
  /// and in RAM. The disk has no limit and need not be named.
  MaxMemory max_memory = {};
  /// Classes whose modules are kept on one device, such as a block with a
  /// residual connection.
  std::vector<std::string> no_split_module_classes = {};
  /// See ModuleSizesOptions.
  std::string dtype = {};
  /// Dtypes of tensors by name, where they differ; see ModuleSizesOptions.
  std::vector<std::pair<std::string, std::string>> special_dtypes = {};
  /// Logs each decision.
  bool verbose = false;
  /// Merges the entries of a module into one if they have the same place.
  bool clean_result = true;
  /// Offloads buffers along with the weights of their modules, instead of
  /// keeping them on the device. A warning says when they do not fit there.
  bool offload_buffers = false;
  /// If not even the next module fits on an unused device, looks for a later
  /// or smaller one that does. If false, such a device stays empty.
  bool fallback_allocation = false;
};

}  // namespace accelerate
