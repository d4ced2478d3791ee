#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "engine.h"
#include "exported/recorded_program.h"

namespace accelerate::testing {

using Tokens = std::vector<std::int64_t>;

/// Prompts of tools/make_decoders.py, and what Python generates after them.
struct RecordedGenerations {
  explicit RecordedGenerations(const std::string& name) {
    const Record record(name);
    for (std::size_t i = 0; i < record.names("prompt.").size(); ++i) {
      prompts.push_back(tokens_of(record.at("prompt." + std::to_string(i))));
      greedy.push_back(tokens_of(record.at("greedy." + std::to_string(i))));
    }
  }
  [[nodiscard]] GenerationRequest request(std::size_t i) const {
    return {
        .tokens = prompts.at(i),
        .max_new_tokens = static_cast<std::int64_t>(greedy.at(i).size()),
        .sampling = {}};
  }

  std::vector<Tokens> prompts;
  std::vector<Tokens> greedy;

 private:
  static Tokens tokens_of(const torch::Tensor& tensor) {
    const auto* data = tensor.const_data_ptr<std::int64_t>();
    return {data, data + tensor.numel()};
  }
};

inline Tokens all_tokens(Generation& generation) {
  Tokens tokens;
  while (const auto token = generation.next()) tokens.push_back(*token);
  return tokens;
}

}  // namespace accelerate::testing
