#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type_base.h>
#include <torch/nn/module.h>

#include "exported/graph/size_functions.h"

namespace accelerate::detail {

/// The source of an argument: a constant, a slot, or a list of these.
struct Operand {
  c10::IValue constant;
  /// The slot that holds the value; negative for constants and lists.
  int slot = -1;
  /// Nothing reads the slot afterwards, so the value is moved.
  bool is_last_use = false;
  /// How a number in the slot is converted.
  enum class Conversion { none, wrapped_tensor, floating };
  Conversion conversion = Conversion::none;
  /// A list that is not constant.
  struct List {
    c10::TypePtr element;
    std::vector<Operand> items;
  };
  std::shared_ptr<List> list = nullptr;
};

struct Code;

struct Instruction {
  enum class Kind {
    call,
    size,
    set_grad,
    autocast,
    cond,
    while_loop,
    scan,
    map,
  };
  Kind kind = Kind::call;
  std::optional<c10::OperatorHandle> op;
  SizeFunction size = nullptr;
  std::vector<Operand> arguments;
  /// Slots of the results; negative where nothing reads them.
  std::vector<int> results;
  /// The result is a list, each element of which has a slot.
  bool unpacks = false;

  // How eval() of the module that calls it changes it.

  /// Null for the root, which would otherwise own itself.
  std::shared_ptr<torch::nn::Module> module = nullptr;
  /// Positions of the argument that is false in eval(), and of the probability
  /// that is 0; negative if there is none.
  int training_argument = -1;
  int dropout_argument = -1;
  /// Counts batches, which eval() does not.
  bool counts_batches = false;

  // Higher-order operators.

  std::vector<Code> branches;
  /// Sizes of the lists among its arguments.
  std::vector<std::size_t> groups;

  /// For messages: "aten.linear.default of 'encoder.fc' (model.py:12: ...)".
  std::string place;
};

/// The file's description of the value in a slot.
struct KnownTensor {
  /// False for numbers, and for tensors of which the file says nothing.
  bool is_known = false;
  bool is_floating = false;
  /// Sizes in the example of the export; negative where they are unknown.
  std::vector<std::int64_t> sizes;
};

/// A graph, ready to run.
struct Code {
  /// Slots of the inputs; negative for those that are part of the graph.
  std::vector<int> inputs;
  std::vector<Instruction> instructions;
  std::vector<Operand> outputs;
  int num_slots = 0;
  /// The file's descriptions of the values, by slot.
  std::vector<KnownTensor> tensors;
};

}  // namespace accelerate::detail
