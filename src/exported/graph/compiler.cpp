#include "exported/graph/compiler.h"

#include <map>
#include <optional>
#include <string_view>
#include <utility>
#include <variant>

#include "base/text/text.h"
#include "exported/graph/dtypes.h"
#include "exported/graph/operand.h"

namespace accelerate::detail {

namespace {

constexpr std::string_view kOperators = "torch.ops.";
constexpr std::string_view kHigherOrder = "torch.ops.higher_order.";
constexpr std::string_view kBatchCounter = "num_batches_tracked";

// Arguments through which Python's modules tell an operator whether they
// train: a flag, or the probability of dropout. Empty if there is none.
struct ModeArguments {
  std::string_view training;
  std::string_view dropout;
};

// accelerate_cpp_export.py has the same table.
constexpr std::pair<std::string_view, ModeArguments> kModeArguments[] = {
    {"aten::alpha_dropout", {"train", ""}},
    {"aten::alpha_dropout_", {"train", ""}},
    {"aten::batch_norm", {"training", ""}},
    {"aten::dropout", {"train", ""}},
    {"aten::dropout_", {"train", ""}},
    {"aten::feature_alpha_dropout", {"train", ""}},
    {"aten::feature_alpha_dropout_", {"train", ""}},
    {"aten::feature_dropout", {"train", ""}},
    {"aten::feature_dropout_", {"train", ""}},
    {"aten::gru", {"train", ""}},
    {"aten::lstm", {"train", ""}},
    {"aten::native_dropout", {"train", ""}},
    {"aten::rnn_relu", {"train", ""}},
    {"aten::rnn_tanh", {"train", ""}},
    {"aten::rrelu", {"training", ""}},
    {"aten::rrelu_", {"training", ""}},
    {"aten::scaled_dot_product_attention", {"", "dropout_p"}},
};

// `name` is qualified, without the overload: "aten::batch_norm".
ModeArguments mode_arguments(std::string_view name) {
  for (const auto& [op, arguments] : kModeArguments) {
    if (op == name) return arguments;
  }
  return {};
}

struct OperatorName {
  std::string name;
  std::string overload;
};

// "aten::linear" and "" of "torch.ops.aten.linear.default".
OperatorName operator_name(const std::string& target) {
  const std::string path = target.substr(kOperators.size());
  const std::size_t first = path.find('.');
  const std::size_t last = path.rfind('.');
  if (first == std::string::npos || first == last) return {path, ""};
  const std::string overload = path.substr(last + 1);
  return {
      format(
          "{}::{}",
          path.substr(0, first),
          path.substr(first + 1, last - first - 1)),
      overload == "default" ? "" : overload};
}

std::optional<Instruction::Kind> higher_order_kind(std::string_view name) {
  using Kind = Instruction::Kind;
  if (name == "wrap_with_set_grad_enabled") return Kind::set_grad;
  if (name == "wrap_with_autocast") return Kind::autocast;
  if (name == "cond") return Kind::cond;
  if (name == "while_loop") return Kind::while_loop;
  if (name == "scan") return Kind::scan;
  if (name == "map_impl") return Kind::map;
  return std::nullopt;
}

std::string place_of(const ExportedNode& node) {
  std::string place = printable(node.target);
  if (!node.module.empty()) {
    place += format(" of '{}'", printable(node.module));
  }
  if (!node.source.empty()) place += format(" ({})", printable(node.source));
  return place;
}

// True for a number where the operator takes a dtype, layout or memory format,
// which LibTorch does not check.
bool is_unnamed_enumerator(
    const ExportedArgument& argument,
    const c10::Argument& wanted) {
  c10::TypePtr type = wanted.real_type();
  if (const auto optional = type->cast<c10::OptionalType>()) {
    type = optional->getElementType();
  }
  const c10::TypeKind kind = type->kind();
  return (kind == c10::TypeKind::ScalarTypeType ||
          kind == c10::TypeKind::LayoutType ||
          kind == c10::TypeKind::MemoryFormatType) &&
      (std::holds_alternative<std::int64_t>(argument.value) ||
       argument.reference() != nullptr);
}

// True for operators that access files, which a model does not need.
bool touches_files(std::string_view name) { return name == "aten::from_file"; }

// Marks the last use of each slot, from the end of the graph.
class LastUses {
 public:
  static void mark(Code& code) {
    LastUses uses(code.num_slots);
    for (Operand& output : code.outputs) uses.visit(output, false);
    for (auto it = code.instructions.rbegin(); it != code.instructions.rend();
         ++it) {
      for (int& result : it->results) {
        if (result >= 0 && !uses.is_live_[result]) result = -1;
      }
      // The last argument that reads a slot moves it.
      for (auto argument = it->arguments.rbegin();
           argument != it->arguments.rend();
           ++argument) {
        uses.visit(*argument, true);
      }
    }
  }

 private:
  explicit LastUses(int num_slots) : is_live_(num_slots, false) {}

  void visit(Operand& operand, bool may_move) {
    if (operand.list) {
      auto& items = operand.list->items;
      for (auto item = items.rbegin(); item != items.rend(); ++item) {
        visit(*item, may_move);
      }
    }
    if (operand.slot < 0) return;
    operand.is_last_use = may_move && !is_live_[operand.slot];
    is_live_[operand.slot] = true;
  }

  std::vector<bool> is_live_;
};

}  // namespace

void mark_last_uses(Code& code) { LastUses::mark(code); }

bool is_left_out(const ExportedNode& node) {
  return node.target == "torch.ops.aten._assert_tensor_metadata.default";
}

class Compiler::Graph {
 public:
  Graph(Compiler& compiler, std::set<std::string> batch_counters)
      : compiler_(compiler), batch_counters_(std::move(batch_counters)) {}

  Code compile(const ExportedGraph& graph) {
    for (const ExportedArgument& input : graph.inputs) {
      const std::string* name = input.reference();
      code_.inputs.push_back(name == nullptr ? -1 : slots_.of(*name));
    }
    for (const ExportedNode& node : graph.nodes) {
      if (!is_left_out(node)) add(node);
    }
    for (const ExportedArgument& output : graph.outputs) {
      code_.outputs.push_back(plain_operand(output, slots_));
    }
    code_.num_slots = slots_.count();
    keep_sizes(graph);
    LastUses::mark(code_);
    return std::move(code_);
  }

 private:
  void keep_sizes(const ExportedGraph& graph) {
    code_.tensors.resize(static_cast<std::size_t>(code_.num_slots));
    for (const auto& [name, value] : graph.values) {
      const int slot = slots_.find(name);
      if (slot < 0) continue;
      const auto dtype =
          value.dtype ? std::optional(scalar_type(*value.dtype)) : std::nullopt;
      const bool is_floating =
          !dtype || at::isFloatingType(*dtype) || at::isComplexType(*dtype);
      code_.tensors[slot] = {true, is_floating, value.sizes};
    }
  }

  void add(const ExportedNode& node) {
    Instruction instruction;
    instruction.place = place_of(node);
    if (!node.module.empty()) {
      instruction.module = compiler_.module_of_(node.module);
    }
    const bool is_known = node.target.starts_with(kHigherOrder)
        ? add_higher_order(node, instruction)
        : node.target.starts_with(kOperators)
        ? add_operator(node, instruction)
        : add_size_function(node, instruction);
    for (const ExportedArgument& output : node.outputs) {
      if (const auto* items = std::get_if<ExportedList>(&output.value)) {
        instruction.unpacks = true;
        for (const ExportedArgument& item : *items)
          add_result(item, instruction);
      } else {
        add_result(output, instruction);
      }
    }
    if (is_known) code_.instructions.push_back(std::move(instruction));
  }

  void add_result(const ExportedArgument& output, Instruction& instruction) {
    const std::string* name = output.reference();
    instruction.results.push_back(name == nullptr ? -1 : slots_.of(*name));
  }

  bool add_size_function(const ExportedNode& node, Instruction& instruction) {
    instruction.kind = Instruction::Kind::size;
    instruction.size = size_function(node.target);
    if (instruction.size == nullptr) {
      compiler_.complain(format("the function {}", printable(node.target)));
      return false;
    }
    for (const ExportedNode::Input& input : node.inputs) {
      instruction.arguments.push_back(plain_operand(input.argument, slots_));
    }
    return true;
  }

  bool add_operator(const ExportedNode& node, Instruction& instruction) {
    const OperatorName name = operator_name(node.target);
    const auto op =
        c10::Dispatcher::singleton().findSchema({name.name, name.overload});
    if (!op || touches_files(name.name)) {
      compiler_.complain(format(
          "the operator {}{}",
          printable(node.target.substr(kOperators.size())),
          op ? ", which accesses files"
             : ", which no library of this program defines"));
      return false;
    }
    instruction.op = *op;
    const ModeArguments modes = mode_arguments(name.name);
    for (const c10::Argument& argument : op->schema().arguments()) {
      const auto index = static_cast<int>(instruction.arguments.size());
      if (argument.name() == modes.training) {
        instruction.training_argument = index;
      }
      if (argument.name() == modes.dropout) {
        instruction.dropout_argument = index;
      }
      instruction.arguments.emplace_back();
    }
    const std::string* first =
        node.inputs.empty() ? nullptr : node.inputs[0].argument.reference();
    instruction.counts_batches = name.name == "aten::add_" &&
        first != nullptr && batch_counters_.contains(*first);
    return add_arguments(node, op->schema(), instruction);
  }

  bool add_arguments(
      const ExportedNode& node,
      const c10::FunctionSchema& schema,
      Instruction& instruction) {
    const auto complain = [&](std::string_view what, const std::string& name) {
      compiler_.complain(format(
          "{} {} argument '{}'",
          printable(node.target),
          what,
          printable(name)));
      return false;
    };
    std::map<std::string_view, const ExportedArgument*> given;
    for (const ExportedNode::Input& input : node.inputs) {
      given[input.name] = &input.argument;
    }
    for (std::size_t i = 0; i < schema.arguments().size(); ++i) {
      const c10::Argument& wanted = schema.arguments()[i];
      const auto found = given.find(wanted.name());
      if (found == given.end()) {
        if (!wanted.default_value())
          return complain("without its", wanted.name());
        instruction.arguments[i].constant = *wanted.default_value();
        continue;
      }
      if (is_unnamed_enumerator(*found->second, wanted)) {
        return complain("with a number for its", wanted.name());
      }
      instruction.arguments[i] = operand_for(*found->second, wanted, slots_);
      given.erase(found);
    }
    if (given.empty()) return true;
    return complain("with the unknown", std::string(given.begin()->first));
  }

  bool add_higher_order(const ExportedNode& node, Instruction& instruction) {
    const auto kind = higher_order_kind(
        std::string_view(node.target).substr(kHigherOrder.size()));
    if (!kind) {
      compiler_.complain(format(
          "the higher-order operator {}",
          printable(node.target.substr(kOperators.size()))));
      return false;
    }
    instruction.kind = *kind;
    using SubGraph = std::shared_ptr<const ExportedGraph>;
    for (const ExportedNode::Input& input : node.inputs) {
      if (const auto* graph = std::get_if<SubGraph>(&input.argument.value)) {
        instruction.branches.push_back(Graph(compiler_, {}).compile(**graph));
      } else if (
          const auto* items =
              std::get_if<ExportedList>(&input.argument.value)) {
        instruction.groups.push_back(items->size());
        for (const ExportedArgument& item : *items) {
          instruction.arguments.push_back(plain_operand(item, slots_));
        }
      } else {
        instruction.arguments.push_back(plain_operand(input.argument, slots_));
      }
    }
    return has_its_parts(node, instruction);
  }

  // Whether a higher-order operator has the graphs and lists that running it
  // relies on.
  bool has_its_parts(const ExportedNode& node, const Instruction& instruction) {
    using Kind = Instruction::Kind;
    const Kind kind = instruction.kind;
    const bool has_two = kind == Kind::cond || kind == Kind::while_loop;
    const std::size_t lists = kind == Kind::scan        ? 2
        : kind == Kind::while_loop || kind == Kind::map ? 1
                                                        : 0;
    const std::size_t flags = kind == Kind::autocast   ? 4
        : kind == Kind::set_grad || kind == Kind::cond ? 1
                                                       : 0;
    if (instruction.branches.size() == (has_two ? 2 : 1) &&
        instruction.groups.size() >= lists &&
        instruction.arguments.size() >= flags) {
      return true;
    }
    compiler_.complain(
        format("{} with these arguments", printable(node.target)));
    return false;
  }

  Compiler& compiler_;
  std::set<std::string> batch_counters_;
  Slots slots_;
  Code code_;
};

Code Compiler::compile(const ExportedProgram& program) {
  for (const std::string& what : program.unsupported) complain(what);
  std::set<std::string> batch_counters;
  for (std::size_t i = 0; i < program.inputs.size(); ++i) {
    const std::string* name = program.graph.inputs[i].reference();
    if (name != nullptr && program.inputs[i].name.ends_with(kBatchCounter)) {
      batch_counters.insert(*name);
    }
  }
  return Graph(*this, std::move(batch_counters)).compile(program.graph);
}

void Compiler::complain(const std::string& what) {
  if (complained_.insert(what).second) unsupported_.push_back(what);
}

}  // namespace accelerate::detail
