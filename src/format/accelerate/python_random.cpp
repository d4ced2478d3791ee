#include "format/accelerate/python_random.h"

#include <array>
#include <cstdint>
#include <string_view>
#include <utility>

#include "base/text/text.h"
#include "format/checkpoint/manifest.h"

namespace accelerate::detail {

namespace {

using Json = SavedState::Json;
constexpr std::int64_t kMostDevices = 1024;
using Words = std::array<std::uint32_t, 624>;

// The state of a Mersenne Twister after seeding (Matsumoto and Nishimura 2002,
// init_genrand). The words are renewed before the next number is drawn.
Words seeded(std::uint32_t seed) {
  Words words{};
  words[0] = seed;
  for (std::uint32_t i = 1; i < words.size(); ++i) {
    words[i] = 1812433253U * (words[i - 1] ^ (words[i - 1] >> 30U)) + i;
  }
  return words;
}

TorchValue::List integers(const Words& words) {
  TorchValue::List list(words.size());
  for (std::size_t i = 0; i < words.size(); ++i) {
    list[i].value = std::int64_t{words[i]};
  }
  return list;
}

// The value of random.getstate().
TorchValue python_state(std::uint32_t seed) {
  const Words words = seeded(seed);
  TorchValue::Tuple inside{integers(words)};
  inside.items.push_back({static_cast<std::int64_t>(words.size())});
  return {TorchValue::Tuple{
      {{std::int64_t{3}}, {std::move(inside)}, TorchValue{}}}};
}

// A value that numpy.random.set_state() accepts; get_state() returns an array
// instead of the list.
TorchValue numpy_state(std::uint32_t seed) {
  const Words words = seeded(seed);
  return {TorchValue::Tuple{
      {{std::string("MT19937")},
       {integers(words)},
       {static_cast<std::int64_t>(words.size())},
       {std::int64_t{0}},
       {0.0}}}};
}

std::uint64_t hash_of(const TorchValue& value) {
  const auto* const tensor = std::get_if<TorchValue::Tensor>(&value.value);
  if (tensor == nullptr) return 0;
  std::string bytes(tensor->contents.bytes.num_bytes, '\0');
  tensor->contents.bytes.copy(0, std::as_writable_bytes(std::span(bytes)));
  return checksum_of(bytes);
}

}  // namespace

TorchValue python_random_states(
    const SavedState& rank_state,
    std::int64_t step) {
  TorchValue cpu;
  TorchValue::List cuda;
  if (const Json* random = rank_state.find("random")) {
    for (const auto& [device, state] : rank_state.state_in(*random).items()) {
      if (device == "cpu") {
        cpu = rank_state.value(state, device);
      } else if (device.starts_with("cuda:")) {
        // Python's list has one state per device. A rank only knows its own,
        // which is also used for the devices before it.
        const auto index = parse_int(std::string_view(device).substr(5));
        if (!index || *index >= kMostDevices) rank_state.fail();
        const auto place = static_cast<std::size_t>(*index);
        cuda.assign(place + 1, rank_state.value(state, device));
      }
    }
  }
  const std::uint64_t hash = hash_of(cpu);
  TorchValue::Dict dict;
  dict.add({std::string("step")}, {step});
  dict.add(
      {std::string("random_state")},
      python_state(static_cast<std::uint32_t>(hash)));
  dict.add(
      {std::string("numpy_random_seed")},
      numpy_state(static_cast<std::uint32_t>(hash >> 32U)));
  dict.add({std::string("torch_manual_seed")}, std::move(cpu));
  if (!cuda.empty()) {
    dict.add({std::string("torch_cuda_manual_seed")}, {std::move(cuda)});
  }
  return {std::move(dict)};
}

}  // namespace accelerate::detail
