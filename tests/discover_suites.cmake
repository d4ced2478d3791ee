# Read by ctest: registers a GoogleTest program as one test. Loading LibTorch takes half a second, as long as dozens of small
# cases, so cases registered individually would spend most of their time on it. If by_suite is set, or the environment
# has ACCELERATE_TEST_SUITES, as with `make test TESTS=regex`, each suite is a test, so that it can be selected.
#   program     its path
#   emulator    the command that runs it when cross-compiling
#   program_name  the name of the test
#   by_suite    whether each suite is always a test
#   prefix      begins the names of the tests
#   filter      GoogleTest's filter for the cases
#   rank_sources  files whose suites are registered; none means all. The filter then begins with - and only excludes
#   properties  properties of each test
#   labels      their labels, unless the properties have them
#   list        the file that caches the cases until the program changes
if(NOT EXISTS "${program}")
  get_filename_component(name "${program}" NAME)
  add_test("${prefix}${name}_NOT_BUILT" "${prefix}${name}_NOT_BUILT")
  return()
endif()

if(rank_sources)
  set(patterns "")
  foreach(source IN LISTS rank_sources)
    file(READ "${source}" text)
    string(REGEX MATCHALL "(TEST|TEST_F|TEST_P|RC_GTEST_PROP)[(][ \n]*[A-Za-z0-9_]+" tests "${text}")
    foreach(test IN LISTS tests)
      string(REGEX REPLACE ".*[( \n]" "" suite "${test}")
      list(APPEND patterns "${suite}.*" "*/${suite}.*")
    endforeach()
  endforeach()
  list(REMOVE_DUPLICATES patterns)
  list(JOIN patterns ":" patterns)
  set(filter "${patterns}${filter}")
endif()

if(NOT by_suite AND NOT "$ENV{ACCELERATE_TEST_SUITES}")
  add_test("${prefix}${program_name}" ${emulator} "${program}" "--gtest_filter=${filter}" --gtest_brief=1)
  set_tests_properties("${prefix}${program_name}" PROPERTIES ${properties})
  if(labels)
    set_tests_properties("${prefix}${program_name}" PROPERTIES LABELS "${labels}")
  endif()
  return()
endif()

if("${program}" IS_NEWER_THAN "${list}")
  execute_process(
    COMMAND ${emulator} "${program}" --gtest_list_tests "--gtest_filter=${filter}"
    OUTPUT_VARIABLE cases RESULT_VARIABLE failure TIMEOUT 60)
  if(failure)
    message(FATAL_ERROR "${program} --gtest_list_tests: ${failure}")
  endif()
  file(WRITE "${list}" "${cases}")
endif()

file(READ "${list}" cases)
# Text after # describes a parameter.
string(REGEX REPLACE " *#[^\n]*" "" cases "${cases}")
string(REGEX MATCHALL "[^\n]+" lines "${cases}")
set(suites "")
foreach(line IN LISTS lines)
  if(line MATCHES "^  (.+)")
    string(APPEND cases_of_${suite} ":${suite}${CMAKE_MATCH_1}")
  elseif(line MATCHES "^[^ ]+[.]$")
    set(suite "${line}")
    list(APPEND suites "${suite}")
    set(cases_of_${suite} "")
  endif()
endforeach()
foreach(suite IN LISTS suites)
  string(REGEX REPLACE "[.]$" "" name "${prefix}${suite}")
  string(SUBSTRING "${cases_of_${suite}}" 1 -1 cases)
  add_test("${name}" ${emulator} "${program}" "--gtest_filter=${cases}" --gtest_brief=1)
  set_tests_properties("${name}" PROPERTIES ${properties})
  if(labels)
    set_tests_properties("${name}" PROPERTIES LABELS "${labels}")
  endif()
endforeach()
