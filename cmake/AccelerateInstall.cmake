# Files that `make install` puts below the prefix: library, headers, tool, and
# the files for find_package and pkg-config.
include(CMakePackageConfigHelpers)

# Builds what is installed and nothing else. Installing from a build of something
# else, such as `make demo`, builds the rest first: an installation that stops
# halfway looks complete to users of find_package until it fails.
set(installed accelerate accelerate_safetensors)
if(TARGET accelerate-cpp)
  list(APPEND installed accelerate-cpp accelerate-cpp-probe accelerate-cpp-self-check)
endif()
add_custom_target(install_programs)
add_dependencies(install_programs ${installed})
foreach(target ${installed})
  install(CODE "
    if(NOT EXISTS \"$<TARGET_FILE:${target}>\")
      message(STATUS \"Building install_programs: ${target} is missing\")
      execute_process(COMMAND \"${CMAKE_COMMAND}\" --build \"${CMAKE_BINARY_DIR}\" --target install_programs
        COMMAND_ERROR_IS_FATAL ANY)
    endif()
  ")
endforeach()

set_target_properties(accelerate PROPERTIES
  INSTALL_RPATH "$ORIGIN;${ACCELERATE_LIBTORCH_DIRECTORY}/lib")
set_target_properties(accelerate_safetensors PROPERTIES INSTALL_RPATH "$ORIGIN")
install(TARGETS accelerate_safetensors EXPORT accelerateSafetensorsTargets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(TARGETS accelerate EXPORT accelerateTargets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/accelerate DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE ${PROJECT_SOURCE_DIR}/CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/accelerate)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/python/ DESTINATION ${CMAKE_INSTALL_DATADIR}/accelerate/python FILES_MATCHING PATTERN "*.py" PATTERN __pycache__ EXCLUDE)
if(TARGET accelerate-cpp)
  install(TARGETS accelerate-cpp RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  install(TARGETS accelerate-cpp-probe accelerate-cpp-self-check RUNTIME DESTINATION libexec/accelerate)
  install(CODE "
    set(tool \"$<TARGET_FILE:accelerate-cpp>\")
    set(share \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_DATADIR}\")
    set(man \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_MANDIR}/man1\")
    include(\"${PROJECT_SOURCE_DIR}/cmake/InstallPages.cmake\")
  ")
endif()

set(package ${CMAKE_INSTALL_LIBDIR}/cmake/accelerate)
install(EXPORT accelerateTargets NAMESPACE accelerate:: DESTINATION ${package})
install(EXPORT accelerateSafetensorsTargets NAMESPACE accelerate:: DESTINATION ${package})
configure_package_config_file(
  ${PROJECT_SOURCE_DIR}/cmake/accelerateConfig.cmake.in ${PROJECT_BINARY_DIR}/accelerateConfig.cmake
  INSTALL_DESTINATION ${package})
# Before 1.0, any minor version can change the interface.
write_basic_package_version_file(
  ${PROJECT_BINARY_DIR}/accelerateConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES
  ${PROJECT_BINARY_DIR}/accelerateConfig.cmake
  ${PROJECT_BINARY_DIR}/accelerateConfigVersion.cmake
  ${PROJECT_SOURCE_DIR}/cmake/AccelerateLibTorch.cmake
  DESTINATION ${package})
install(CODE "
  set(CMAKE_INSTALL_LIBDIR \"${CMAKE_INSTALL_LIBDIR}\")
  set(CMAKE_INSTALL_INCLUDEDIR \"${CMAKE_INSTALL_INCLUDEDIR}\")
  set(ACCELERATE_LIBTORCH_DIRECTORY \"${ACCELERATE_LIBTORCH_DIRECTORY}\")
  set(PROJECT_DESCRIPTION \"${PROJECT_DESCRIPTION}\")
  set(PROJECT_VERSION \"${PROJECT_VERSION}\")
  # Relative, so that the prefix can be moved.
  file(RELATIVE_PATH ACCELERATE_PREFIX_FROM_PC \"/${CMAKE_INSTALL_LIBDIR}/pkgconfig\" \"/\")
  string(REGEX REPLACE \"/\$\" \"\" ACCELERATE_PREFIX_FROM_PC \"\${ACCELERATE_PREFIX_FROM_PC}\")
  configure_file(\"${PROJECT_SOURCE_DIR}/cmake/accelerate.pc.in\"
    \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_LIBDIR}/pkgconfig/accelerate.pc\" @ONLY)
")
install(CODE "message(STATUS \"The library loads LibTorch from ${ACCELERATE_LIBTORCH_DIRECTORY}: keep that directory, or build with LIBTORCH_DIR=/path to one that stays\")")
