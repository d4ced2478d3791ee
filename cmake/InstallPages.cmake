# Included when installing: writes manual pages and completions, which the tool makes from its own help.
#   tool   the built program
#   share  where completions go; each shell looks for its own below share/
#   man    where manual pages go
function(accelerate_install_page file)
  get_filename_component(directory "${file}" DIRECTORY)
  file(MAKE_DIRECTORY "${directory}")
  execute_process(COMMAND "${tool}" ${ARGN} OUTPUT_FILE "${file}" COMMAND_ERROR_IS_FATAL ANY)
endfunction()

accelerate_install_page("${man}/accelerate-cpp.1" man)
file(READ "${man}/accelerate-cpp.1" page)
string(REGEX REPLACE ".*\nSubcommands:" "" page "${page}")
# Lines of the list of commands: two spaces, the name with its hyphens escaped, the description.
string(REGEX MATCHALL "\n  [a-z][^ \n]*" commands "${page}")
foreach(command IN LISTS commands)
  string(REGEX REPLACE "[\n\\\\ ]" "" command "${command}")
  accelerate_install_page("${man}/accelerate-cpp-${command}.1" man ${command})
endforeach()
accelerate_install_page("${share}/bash-completion/completions/accelerate-cpp" completion bash)
accelerate_install_page("${share}/zsh/site-functions/_accelerate-cpp" completion zsh)
accelerate_install_page("${share}/fish/vendor_completions.d/accelerate-cpp.fish" completion fish)
