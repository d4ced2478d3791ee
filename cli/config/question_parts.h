#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "cli/config/questions.h"

namespace accelerate::cli {

// The parts from which the questions of `config` are assembled.

using Applies = std::function<bool(const Answers&)>;
using Questions = std::vector<Question>;

/// Whether the question was asked and has this answer.
bool is(
    const Answers& answers,
    const char* key,
    const detail::ConfigJson& value);
bool is_yes(const Answers& answers, const char* key);
Applies when(const char* key, detail::ConfigJson value = true);

std::string type_of(const Answers& answers);
bool is_several(const Answers& answers);
bool is_on_devices(const Answers& answers);
bool has_machines(const Answers& answers);

std::function<std::string(const detail::ConfigJson&)> at_least(
    std::int64_t least);
/// Choices shown as they are written to the file.
std::vector<std::pair<std::string, detail::ConfigJson>> plain_choices(
    std::initializer_list<const char*> values);

void add_deepspeed_questions(Questions& all);
void add_fsdp_questions(Questions& all);
void add_parallelism_questions(Questions& all);
void add_megatron_questions(Questions& all);

}  // namespace accelerate::cli
