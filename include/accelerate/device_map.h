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

/// Where the modules of a model that is too big for one device are kept.
namespace accelerate {

/// A place for weights: an accelerator device by its index, or "mps", "cpu",
/// "disk", or "meta" (shapes without values).
class ACCELERATE_API MapDevice {
 public:
  /// Throws ConfigError for a negative index.
  MapDevice(int index);
  /// A name from above, an index ("1"), or a device as LibTorch writes it, with
  /// an index ("cuda:1"). Throws ConfigError for anything else.
  MapDevice(const std::string& name);
  MapDevice(const char* name) : MapDevice(std::string(name)) {}

  /// Whether it computes: an index, or "mps".
  [[nodiscard]] bool is_accelerator() const { return kind_ <= Kind::mps; }
  [[nodiscard]] bool is_cpu() const { return kind_ == Kind::cpu; }
  [[nodiscard]] bool is_disk() const { return kind_ == Kind::disk; }
  [[nodiscard]] bool is_meta() const { return kind_ == Kind::meta; }
  /// The index of an accelerator device; nothing for a named place.
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

/// Memory that a model may take, by place: {{0, "20GB"}, {"cpu", "64GB"}}.
using MaxMemory = std::vector<std::pair<MapDevice, ByteSize>>;

/// Why infer_auto_device_map() or plan_device_map() put a module where it is.
enum class PlacementReason {
  given,     ///< by the caller
  fits,      ///< first device with room, in the order of devices
  tied,      ///< shares a parameter with the module before it
  fallback,  ///< the first part of the model with room on an unused device
  last,      ///< no other device has room: the disk takes everything
  planned,   ///< chosen for speed; `note` says why
};

/// A module, or a parameter of its own, and its place.
struct Placement {
  std::string name;  ///< dotted; empty for the whole model
  MapDevice device;
  PlacementReason reason = PlacementReason::given;
  /// Bytes of its weights; negative if the map was given without a model.
  double num_bytes = -1;
  /// State of the device when it was placed: bytes in use, and those kept free for
  /// the largest layer of what follows.
  double num_bytes_used = 0;
  double num_bytes_reserved = 0;
  std::string note = {};
};

/// What a map uses of a device.
struct DeviceUse {
  MapDevice device;
  /// Nothing for the disk, which has no limit.
  std::optional<std::int64_t> max_memory;
  double num_bytes = 0;
  /// Bytes kept free for the largest layer that has to come to it.
  double num_bytes_reserved = 0;
  /// Memory that would hold the first module that did not fit. Nothing if
  /// something fit.
  std::optional<double> minimum_needed = std::nullopt;
};

/// An ordered map from names of modules (or of parameters of their own) to
/// places. An entry holds for everything below its name.
class ACCELERATE_API DeviceMap {
 public:
  DeviceMap() = default;
  /// A map of one's own: {{"embed", 0}, {"layers", "cpu"}, {"head", "disk"}}.
  /// Throws ConfigError for a name twice.
  DeviceMap(std::initializer_list<std::pair<std::string, MapDevice>> entries);
  explicit DeviceMap(
      const std::vector<std::pair<std::string, MapDevice>>& entries);
  /// A map that was inferred.
  explicit DeviceMap(
      std::vector<Placement> placements,
      std::vector<DeviceUse> devices,
      std::vector<std::string> warnings = {});

  [[nodiscard]] const std::vector<Placement>& placements() const {
    return placements_;
  }
  [[nodiscard]] bool empty() const { return placements_.empty(); }
  [[nodiscard]] std::size_t size() const { return placements_.size(); }
  /// What each device holds; empty for a given map.
  [[nodiscard]] const std::vector<DeviceUse>& devices() const {
    return devices_;
  }
  /// What the caller should know, such as buffers that fit on no device.
  [[nodiscard]] const std::vector<std::string>& warnings() const {
    return warnings_;
  }
  /// The places in the order in which they first appear, each once.
  [[nodiscard]] std::vector<MapDevice> places() const;
  /// The place of an entry with exactly this name.
  [[nodiscard]] std::optional<MapDevice> find(std::string_view name) const;
  /// The place of a module or tensor: that of the longest entry that is its
  /// name or a part in front of one of its dots.
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

/// Replaces entries below a name by one for the name where all of them have the
/// same place, first for `module_name` (empty: the whole model), then below it.
[[nodiscard]] ACCELERATE_API DeviceMap
clean_device_map(const DeviceMap& map, const std::string& module_name = "");

/// How sizes of weights are counted.
struct ModuleSizesOptions {
  /// Floating-point weights count at most this dtype's bytes: a PyTorch name
  /// ("float16"), or "fp8", "int4", "int2". Empty: each its own dtype.
  std::string dtype = {};
  /// Dtypes of single tensors, by dotted name, whatever theirs is.
  std::vector<std::pair<std::string, std::string>> special_dtypes = {};
  /// Leaves parameters out.
  bool buffers_only = false;
};

/// Arguments of infer_auto_device_map(), as in Accelerate.
struct InferAutoDeviceMapOptions {
  /// Memory of each place. Empty: what is free now on every accelerator device,
  /// and of the RAM. The disk has no limit and need not be named.
  MaxMemory max_memory = {};
  /// Classes whose modules are kept on one device, such as a block with a
  /// residual connection.
  std::vector<std::string> no_split_module_classes = {};
  /// See ModuleSizesOptions.
  std::string dtype = {};
  std::vector<std::pair<std::string, std::string>> special_dtypes = {};
  /// Logs each decision.
  bool verbose = false;
  /// Names whole modules where all of their parts have one place.
  bool clean_result = true;
  /// Buffers travel with the weights of offloaded modules, instead of staying
  /// on the device.
  bool offload_buffers = false;
  /// If not even the next module fits on an unused device, looks for a later
  /// or smaller one that does.
  bool fallback_allocation = false;
};

}  // namespace accelerate
