#include "exported/graph/interpreter.h"

#include <iterator>
#include <string_view>
#include <utility>

#include <ATen/autocast_mode.h>
#include <ATen/core/List.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/stack.h>
#include <c10/util/Exception.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "exported/graph/operand.h"

namespace accelerate::detail {

namespace {

using c10::IValue;
using Stack = std::vector<IValue>;

// Sets autocast for one type of device, as a `with torch.autocast` block does.
class AutocastBlock {
 public:
  AutocastBlock(c10::DeviceType type, bool enabled, const IValue& dtype)
      : type_(type),
        was_enabled_(at::autocast::is_autocast_enabled(type)),
        dtype_(at::autocast::get_autocast_dtype(type)) {
    if (enabled && !dtype.isNone()) {
      at::autocast::set_autocast_dtype(type, dtype.toScalarType());
    }
    at::autocast::set_autocast_enabled(type, enabled);
  }
  AutocastBlock(const AutocastBlock&) = delete;
  AutocastBlock& operator=(const AutocastBlock&) = delete;
  ~AutocastBlock() {
    at::autocast::set_autocast_enabled(type_, was_enabled_);
    at::autocast::set_autocast_dtype(type_, dtype_);
  }

 private:
  c10::DeviceType type_;
  bool was_enabled_;
  at::ScalarType dtype_;
};

bool truth(const IValue& value) {
  return value.isTensor() ? value.toTensor().item<bool>() : value.toBool();
}

void append(Stack& stack, const Stack& values, std::size_t begin = 0) {
  stack.insert(
      stack.end(),
      values.begin() + static_cast<std::ptrdiff_t>(begin),
      values.end());
}

// Whether an operator failed because a weight has no memory, although the
// forward is to compute values.
bool needs_values(const c10::Error& error, c10::Device device) {
  const std::string_view text = error.what_without_backtrace();
  return !device.is_meta() &&
      (text.find("device meta") != std::string_view::npos ||
       text.find("Meta tensors") != std::string_view::npos);
}

class Interpreter {
 public:
  explicit Interpreter(const RunContext& context)
      : context_(context),
        moves_(context.exported_on != context.device.type()) {}

  Stack run(const Code& code, Stack inputs) const {
    Stack slots(static_cast<std::size_t>(code.num_slots));
    if (inputs.size() != code.inputs.size()) {
      throw CheckpointError(format(
          "[exported] a graph must get {} values, but gets {}",
          code.inputs.size(),
          inputs.size()));
    }
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (code.inputs[i] >= 0) slots[code.inputs[i]] = std::move(inputs[i]);
    }
    inputs.clear();
    Stack stack;
    for (const Instruction& instruction : code.instructions) {
      try {
        step(instruction, slots, stack);
        store(instruction, slots, stack);
      } catch (c10::Error& error) {
        if (needs_values(error, context_.device)) {
          error.add_context(
              "weights on the meta device have no values yet: "
              "load_checkpoint_in_model() or load_model() reads them");
        }
        error.add_context(format("while running {}", instruction.place));
        throw;
      }
    }
    Stack outputs;
    outputs.reserve(code.outputs.size());
    for (const Operand& output : code.outputs) {
      outputs.push_back(value_of(output, slots));
    }
    return outputs;
  }

 private:
  void step(const Instruction& instruction, Stack& slots, Stack& stack) const {
    using Kind = Instruction::Kind;
    stack.clear();
    for (const Operand& argument : instruction.arguments) {
      stack.push_back(value_of(argument, slots));
    }
    switch (instruction.kind) {
      case Kind::call:
        call(instruction, stack);
        break;
      case Kind::size:
        stack = {instruction.size(stack)};
        break;
      case Kind::set_grad: {
        const bool records = stack.at(0).toBool() && context_.records_gradients;
        const at::AutoGradMode mode(records);
        stack = run_branch(instruction, 0, stack, 1);
        break;
      }
      case Kind::autocast: {
        // The type of device, the dtype, whether it is on, and whether weights
        // are cached.
        const auto type = c10::Device(stack.at(0).toStringRef()).type();
        const AutocastBlock block(
            type == context_.exported_on ? context_.device.type() : type,
            stack.at(2).toBool(),
            stack.at(1));
        stack = run_branch(instruction, 0, stack, 4);
        break;
      }
      case Kind::cond:
        stack = run_branch(instruction, truth(stack.at(0)) ? 0 : 1, stack, 1);
        break;
      case Kind::while_loop:
        stack = run_while(instruction, stack);
        break;
      case Kind::scan:
      case Kind::map:
        stack = run_over_rows(instruction, stack);
        break;
    }
  }

  void call(const Instruction& instruction, Stack& stack) const {
    const bool has_modes = instruction.training_argument >= 0 ||
        instruction.dropout_argument >= 0 || instruction.counts_batches;
    if (has_modes && !is_training(instruction)) {
      if (instruction.counts_batches) return stack.clear();
      if (instruction.training_argument >= 0) {
        stack[instruction.training_argument] = false;
      }
      if (instruction.dropout_argument >= 0) {
        stack[instruction.dropout_argument] = 0.0;
      }
    }
    instruction.op->callBoxed(&stack);
  }

  [[nodiscard]] bool is_training(const Instruction& instruction) const {
    return instruction.module ? instruction.module->is_training()
                              : context_.is_training;
  }

  Stack run_branch(
      const Instruction& instruction,
      std::size_t branch,
      Stack& stack,
      std::size_t begin) const {
    Stack inputs(
        std::make_move_iterator(
            stack.begin() + static_cast<std::ptrdiff_t>(begin)),
        std::make_move_iterator(stack.end()));
    stack.clear();
    return run(instruction.branches[branch], std::move(inputs));
  }

  // Throws ConfigError about a graph within the program that does not return
  // what its caller needs.
  static void
  require(bool is_met, const Instruction& instruction, std::string_view what) {
    if (is_met) return;
    throw CheckpointError(format(
        "[exported] the graphs of {} must return {}, but do not",
        instruction.place,
        what));
  }

  // Arguments: a condition and a body; carried values, and values that all
  // iterations read.
  Stack run_while(const Instruction& instruction, const Stack& stack) const {
    const std::size_t num_carried = instruction.groups[0];
    Stack carried(
        stack.begin(),
        stack.begin() + static_cast<std::ptrdiff_t>(num_carried));
    const auto all = [&] {
      Stack values = carried;
      append(values, stack, num_carried);
      return values;
    };
    while (true) {
      const Stack condition = run(instruction.branches[0], all());
      require(condition.size() == 1, instruction, "a condition of one value");
      if (!truth(condition[0])) return carried;
      carried = run(instruction.branches[1], all());
    }
  }

  // scan takes carried values, sequences, and values that all rows read; map
  // takes the last two.
  Stack run_over_rows(const Instruction& instruction, const Stack& stack)
      const {
    const bool carries = instruction.kind == Instruction::Kind::scan;
    const std::size_t num_carried = carries ? instruction.groups[0] : 0;
    const std::size_t end = num_carried + instruction.groups[carries ? 1 : 0];
    Stack carried(
        stack.begin(),
        stack.begin() + static_cast<std::ptrdiff_t>(num_carried));
    const std::int64_t num_rows =
        end > num_carried ? stack.at(num_carried).toTensor().size(0) : 0;
    std::vector<std::vector<at::Tensor>> results;
    for (std::int64_t row = 0; row < num_rows; ++row) {
      Stack inputs = std::move(carried);
      for (std::size_t i = num_carried; i < end; ++i) {
        inputs.push_back(stack[i].toTensor().select(0, row));
      }
      append(inputs, stack, end);
      Stack outputs = run(instruction.branches[0], std::move(inputs));
      require(
          outputs.size() >= num_carried, instruction, "what it carries over");
      results.resize(outputs.size() - num_carried);
      for (std::size_t i = 0; i < results.size(); ++i) {
        results[i].push_back(outputs[num_carried + i].toTensor());
      }
      outputs.resize(num_carried);
      carried = std::move(outputs);
    }
    for (const auto& rows : results) carried.push_back(at::stack(rows));
    return carried;
  }

  static void require_results(
      const Instruction& instruction,
      std::size_t count) {
    if (instruction.results.size() <= count) return;
    throw CheckpointError(format(
        "[exported] {} must return {} values, but returns {}",
        instruction.place,
        instruction.results.size(),
        count));
  }

  static void
  store(const Instruction& instruction, Stack& slots, Stack& stack) {
    if (stack.empty()) return;
    const auto& results = instruction.results;
    if (instruction.unpacks && stack.size() == 1 && stack[0].isList()) {
      const c10::List<IValue> list = stack[0].toList();
      require_results(instruction, list.size());
      for (std::size_t i = 0; i < results.size(); ++i) {
        if (results[i] >= 0) slots[results[i]] = list.get(i);
      }
      stack.clear();
      return;
    }
    require_results(instruction, stack.size());
    for (std::size_t i = 0; i < results.size(); ++i) {
      if (results[i] >= 0) slots[results[i]] = std::move(stack[i]);
    }
    // A value that nothing reads is freed now.
    stack.clear();
  }

  IValue value_of(const Operand& operand, Stack& slots) const {
    if (operand.slot >= 0) {
      IValue& slot = slots[operand.slot];
      if (!slot.isTensor() && operand.conversion != Operand::Conversion::none) {
        return converted(operand, slot);
      }
      return operand.is_last_use ? std::move(slot) : slot;
    }
    if (operand.list) {
      c10::impl::GenericList list(operand.list->element);
      list.reserve(operand.list->items.size());
      for (const Operand& item : operand.list->items) {
        list.push_back(value_of(item, slots));
      }
      return list;
    }
    if (moves_ && operand.constant.isDevice() &&
        operand.constant.toDevice().type() == context_.exported_on) {
      return context_.device;
    }
    return operand.constant;
  }

  static IValue converted(const Operand& operand, const IValue& number) {
    if (!number.isScalar()) return number;
    if (operand.conversion == Operand::Conversion::floating) {
      return number.toScalar().toDouble();
    }
    return wrapped_number(number);
  }

  const RunContext& context_;
  /// Whether devices in the graph are replaced.
  bool moves_;
};

}  // namespace

std::vector<IValue> run_code(
    const Code& code,
    std::vector<IValue> inputs,
    const RunContext& context) {
  return Interpreter(context).run(code, std::move(inputs));
}

}  // namespace accelerate::detail
