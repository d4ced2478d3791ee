#include "launch/board/process_state.h"

#include <unistd.h>

#include <fstream>
#include <iterator>
#include <string>

#include "base/machine/proc_text.h"
#include "base/text/text.h"

namespace accelerate::detail {

namespace {

std::string read_proc(pid_t process, const char* name) {
  std::ifstream file(format("/proc/{}/{}", process, name));
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

char process_state(pid_t process) {
  const std::string text = read_proc(process, "stat");
  // The program's name, in parentheses, can contain any character.
  const std::size_t end = text.rfind(')');
  return end == std::string::npos || end + 2 >= text.size() ? ' '
                                                            : text[end + 2];
}

std::uint64_t resident_bytes(pid_t process) {
  const auto pages = resident_pages(read_proc(process, "statm"));
  return pages ? *pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE))
               : 0;
}

bool has_ended(pid_t process) {
  const char state = process_state(process);
  return state == ' ' || state == 'Z' || state == 'X';
}

}  // namespace accelerate::detail
