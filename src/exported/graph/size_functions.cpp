#include "exported/graph/size_functions.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <string_view>
#include <utility>

#include <accelerate/error.h>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

using c10::IValue;
using Arguments = std::vector<IValue>;

[[noreturn]] void fail(std::string_view what) {
  throw ConfigError(format(
      "[exported] the sizes of this input cannot be computed: {}", what));
}

const IValue& argument_at(const Arguments& arguments, std::size_t i) {
  if (i >= arguments.size()) fail("a function lacks an argument");
  return arguments[i];
}

bool are_integers(const Arguments& arguments) {
  return std::ranges::all_of(arguments, [](const IValue& argument) {
    return argument.isInt() || argument.isBool();
  });
}

std::int64_t integer(const Arguments& arguments, std::size_t i) {
  const IValue& argument = argument_at(arguments, i);
  if (argument.isBool()) return argument.toBool() ? 1 : 0;
  if (!argument.isInt()) fail("a number is not an integer");
  return argument.toInt();
}

double number(const Arguments& arguments, std::size_t i) {
  const IValue& argument = argument_at(arguments, i);
  if (!argument.isScalar()) fail("an argument is not a number");
  return argument.toScalar().toDouble();
}

bool truth(const Arguments& arguments, std::size_t i) {
  return number(arguments, i) != 0;
}

std::int64_t rounded(double value) {
  constexpr double kLimit = 9.2e18;
  if (!(std::abs(value) < kLimit)) fail("a number is too large");
  return static_cast<std::int64_t>(value);
}

template <auto overflows>
std::int64_t checked(std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  if (overflows(a, b, &result)) fail("a number is too large");
  return result;
}
bool add_overflows(std::int64_t a, std::int64_t b, std::int64_t* result) {
  return __builtin_add_overflow(a, b, result);
}
bool sub_overflows(std::int64_t a, std::int64_t b, std::int64_t* result) {
  return __builtin_sub_overflow(a, b, result);
}
bool mul_overflows(std::int64_t a, std::int64_t b, std::int64_t* result) {
  return __builtin_mul_overflow(a, b, result);
}

std::int64_t floor_division(std::int64_t a, std::int64_t b) {
  if (b == 0) fail("a division by zero");
  if (b == -1) return checked<sub_overflows>(0, a);
  return a / b - ((a % b != 0 && (a < 0) != (b < 0)) ? 1 : 0);
}

std::int64_t power(std::int64_t base, std::int64_t exponent) {
  std::int64_t result = 1;
  while (exponent > 0) {
    if (exponent % 2 == 1) result = checked<mul_overflows>(result, base);
    exponent /= 2;
    if (exponent > 0) base = checked<mul_overflows>(base, base);
  }
  return result;
}

IValue add(const Arguments& a) {
  if (!are_integers(a)) return number(a, 0) + number(a, 1);
  return checked<add_overflows>(integer(a, 0), integer(a, 1));
}
IValue sub(const Arguments& a) {
  if (!are_integers(a)) return number(a, 0) - number(a, 1);
  return checked<sub_overflows>(integer(a, 0), integer(a, 1));
}
IValue mul(const Arguments& a) {
  if (!are_integers(a)) return number(a, 0) * number(a, 1);
  return checked<mul_overflows>(integer(a, 0), integer(a, 1));
}
IValue floordiv(const Arguments& a) {
  if (!are_integers(a)) return std::floor(number(a, 0) / number(a, 1));
  return floor_division(integer(a, 0), integer(a, 1));
}
IValue mod(const Arguments& a) {
  if (!are_integers(a)) {
    const double divisor = number(a, 1);
    return number(a, 0) - std::floor(number(a, 0) / divisor) * divisor;
  }
  const std::int64_t divisor = integer(a, 1);
  if (divisor == -1) return std::int64_t{0};
  return integer(a, 0) - floor_division(integer(a, 0), divisor) * divisor;
}
IValue truediv(const Arguments& a) {
  if (number(a, 1) == 0) fail("a division by zero");
  return number(a, 0) / number(a, 1);
}
IValue pow(const Arguments& a) {
  if (are_integers(a) && integer(a, 1) >= 0) {
    return power(integer(a, 0), integer(a, 1));
  }
  return std::pow(number(a, 0), number(a, 1));
}
IValue neg(const Arguments& a) {
  if (!are_integers(a)) return -number(a, 0);
  return checked<sub_overflows>(0, integer(a, 0));
}
IValue pos(const Arguments& a) { return argument_at(a, 0); }

template <class Compare>
IValue compared(const Arguments& a) {
  if (!are_integers(a)) return Compare()(number(a, 0), number(a, 1));
  return Compare()(integer(a, 0), integer(a, 1));
}

IValue sym_min(const Arguments& a) {
  if (!are_integers(a)) return std::min(number(a, 0), number(a, 1));
  return std::min(integer(a, 0), integer(a, 1));
}
IValue sym_max(const Arguments& a) {
  if (!are_integers(a)) return std::max(number(a, 0), number(a, 1));
  return std::max(integer(a, 0), integer(a, 1));
}
IValue both(const Arguments& a) {
  if (argument_at(a, 0).isBool()) return truth(a, 0) && truth(a, 1);
  return integer(a, 0) & integer(a, 1);
}
IValue either(const Arguments& a) {
  if (argument_at(a, 0).isBool()) return truth(a, 0) || truth(a, 1);
  return integer(a, 0) | integer(a, 1);
}
std::int64_t shift_of(const Arguments& a) {
  const std::int64_t shift = integer(a, 1);
  if (shift < 0 || shift > 62) fail("a number is shifted too far");
  return shift;
}
IValue lshift(const Arguments& a) {
  return checked<mul_overflows>(
      integer(a, 0), static_cast<std::int64_t>(1) << shift_of(a));
}
IValue rshift(const Arguments& a) { return integer(a, 0) >> shift_of(a); }
IValue sym_not(const Arguments& a) { return !truth(a, 0); }
IValue sym_float(const Arguments& a) { return number(a, 0); }
IValue sym_int(const Arguments& a) {
  if (are_integers(a)) return integer(a, 0);
  return rounded(std::trunc(number(a, 0)));
}
IValue ceil(const Arguments& a) {
  if (are_integers(a)) return integer(a, 0);
  return rounded(std::ceil(number(a, 0)));
}
IValue floor(const Arguments& a) {
  if (are_integers(a)) return integer(a, 0);
  return rounded(std::floor(number(a, 0)));
}
IValue sym_ite(const Arguments& a) {
  return truth(a, 0) ? argument_at(a, 1) : argument_at(a, 2);
}
IValue sym_sqrt(const Arguments& a) { return std::sqrt(number(a, 0)); }

constexpr std::pair<std::string_view, SizeFunction> kFunctions[] = {
    {"_operator.add", add},
    {"_operator.and_", both},
    {"_operator.eq", compared<std::equal_to<>>},
    {"_operator.floordiv", floordiv},
    {"_operator.ge", compared<std::greater_equal<>>},
    {"_operator.gt", compared<std::greater<>>},
    {"_operator.le", compared<std::less_equal<>>},
    {"_operator.lshift", lshift},
    {"_operator.lt", compared<std::less<>>},
    {"_operator.mod", mod},
    {"_operator.mul", mul},
    {"_operator.ne", compared<std::not_equal_to<>>},
    {"_operator.neg", neg},
    {"_operator.or_", either},
    {"_operator.pos", pos},
    {"_operator.pow", pow},
    {"_operator.rshift", rshift},
    {"_operator.sub", sub},
    {"_operator.truediv", truediv},
    {"math.ceil", ceil},
    {"math.floor", floor},
    {"math.trunc", sym_int},
    {"torch.sym_float", sym_float},
    {"torch.sym_int", sym_int},
    {"torch.sym_ite", sym_ite},
    {"torch.sym_max", sym_max},
    {"torch.sym_min", sym_min},
    {"torch.sym_not", sym_not},
    {"torch.sym_sqrt", sym_sqrt},
    {"torch._sym_sqrt", sym_sqrt},
};

}  // namespace

SizeFunction size_function(const std::string& target) {
  for (const auto& [name, function] : kFunctions) {
    if (name == target) return function;
  }
  return nullptr;
}

}  // namespace accelerate::detail
