#include "fuzz/targets.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include <accelerate/error.h>
#include <accelerate/safetensors.h>

#include "base/text/text.h"
#include "format/checkpoint/manifest.h"
#include "format/exported/describe.h"
#include "format/exported/exported_archive.h"
#include "format/exported/exported_program.h"
#include "format/exported/tensor_table.h"
#include "format/torch/pickle_reader.h"
#include "format/torch/torch_distributed.h"
#include "format/torch/torch_file.h"
#include "format/torch/zip_reader.h"
#include "format/weights/weights.h"
#include "fuzz/guarded.h"
#include "planning/memory_estimate.h"
#include "planning/model_tree_builder.h"

namespace accelerate::fuzz {

// The directory is removed at the end of the process.
class Scratch {
 public:
  Scratch() {
    const std::filesystem::path base = std::filesystem::exists("/dev/shm")
        ? "/dev/shm"
        : std::filesystem::temp_directory_path();
    path_ = base / detail::format("accelerate-fuzz-{}", ::getpid());
    std::filesystem::create_directories(path_);
  }
  ~Scratch() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

const std::filesystem::path& scratch() {
  static const Scratch directory;
  return directory.path();
}

void put(const std::filesystem::path& path, std::string_view contents) {
  std::ofstream(path, std::ios::binary)
      .write(contents.data(), static_cast<std::streamsize>(contents.size()));
}

namespace {

// Visits all values of a tree, no deeper than files need.
std::size_t visit(const detail::Pickle::Value& value, int depth) {
  using Kind = detail::Pickle::Kind;
  if (depth > 20) return 0;
  std::size_t sum = 1;
  switch (value.kind()) {
    case Kind::dict:
      for (std::size_t i = 0; i < std::min<std::size_t>(value.size(), 8); ++i) {
        sum +=
            visit(value.key(i), depth + 1) + visit(value.value(i), depth + 1);
      }
      break;
    case Kind::list:
    case Kind::tuple:
    case Kind::set:
    case Kind::call:
    case Kind::persistent:
      for (std::size_t i = 0; i < std::min<std::size_t>(value.size(), 8); ++i) {
        sum += visit(value.item(i), depth + 1);
      }
      break;
    case Kind::text:
    case Kind::bytes:
    case Kind::global:
    case Kind::long_integer:
      for (const char c : value.text()) sum += static_cast<unsigned char>(c);
      break;
    default:
      break;
  }
  return sum;
}

}  // namespace

void safetensors_header(Input input) {
  guarded([&] {
    const auto header = safetensors::parse_header(input, input.size(), "input");
    // Any valid input can be written again.
    static_cast<void>(safetensors::header_bytes(header));
    detail::ModelTreeBuilder tree("input");
    for (const auto& [name, info] : header.tensors) {
      tree.add_parameter(name, info.shape);
    }
    static_cast<void>(detail::largest_layers(tree.finish(), {}));
  });
}

void manifest(Input input) {
  // Also fuzzes the body, because the checksum would stop nearly all inputs.
  guarded([&] {
    static_cast<void>(detail::parse_manifest(text_of(input), "input"));
  });
  guarded([&] { static_cast<void>(detail::parse_fragment(text_of(input))); });
}

void model_index(Input input) {
  const auto path = scratch() / "x.index.json";
  put(path, text_of(input));
  guarded([&] { static_cast<void>(detail::open_weights(path)); });
}

void pickle(Input input) {
  guarded([&] {
    const detail::Pickle parsed(input, "input", 2 * input.size() + 4096);
    static_cast<void>(visit(parsed.root(), 0));
  });
}

void zip(Input input) {
  guarded([&] {
    const detail::ZipReader archive(input, "input");
    for (const auto& entry : archive.entries()) {
      guarded([&] { archive.verify(entry.first); });
    }
  });
}

void torch_file(Input input) {
  guarded([&] {
    const detail::TorchFile file(input, "input");
    const auto tensor = file.tensor(file.root());
    if (tensor) static_cast<void>(tensor->contiguous());
    static_cast<void>(visit(file.root(), 0));
  });
  const auto path = scratch() / "x.bin";
  put(path, text_of(input));
  guarded([&] {
    for (const auto& [name, tensor] : detail::open_weights(path)) {
      const auto source = detail::to_write(tensor);
      std::vector<std::byte> bytes(source.bytes.num_bytes);
      if (!bytes.empty()) source.bytes.copy(0, bytes);
    }
  });
}

void state_of_distributed(Input input) {
  const auto directory = scratch() / "distributed";
  std::filesystem::create_directories(directory);
  put(directory / ".metadata", text_of(input));
  put(directory / "__0_0.distcp", text_of(input));
  guarded(
      [&] { static_cast<void>(detail::read_torch_distributed(directory)); });
}

void exported_archive(Input input) {
  guarded([&] {
    const detail::ExportedArchive archive(input, "input");
    guarded([&] { static_cast<void>(archive.facts()); });
    guarded([&] { static_cast<void>(archive.evaluation()); });
    for (const std::string& model : archive.models()) {
      guarded([&] { static_cast<void>(archive.constants(model)); });
      guarded([&] {
        static_cast<void>(detail::describe_exported(archive, model));
      });
    }
  });
}

void exported_program(Input input) {
  guarded([&] {
    static_cast<void>(detail::parse_exported_program(text_of(input), "input"));
  });
}

void exported_tensors(Input input) {
  guarded([&] {
    static_cast<void>(detail::parse_tensor_table(
        text_of(input),
        [&](const std::string& file) {
          return std::optional(
              input.first(std::min(input.size(), file.size())));
        },
        "input"));
  });
}

}  // namespace accelerate::fuzz
